package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// nodeFeatures refuses nodes that do not declare the features which a pod asks for
// (KEP-5328): an older agent in a cluster that is being upgraded.
type nodeFeatures struct {
	asked nodedeclaredfeatures.FeatureSet
}

var (
	lacksFeatures = framework.NewStatus(framework.UnschedulableAndUnresolvable,
		"node(s) didn't match Pod's required features")
	featuresOf   = nodedeclaredfeatures.DefaultFramework
	featureMinor = version.MajorMinor(1, 36)
)

func (nodeFeatures) Name() string { return NodeDeclaredFeaturesName }

func featuresAsked(pod *corev1.Pod) (nodedeclaredfeatures.FeatureSet, error) {
	return featuresOf.InferForPodScheduling(&nodedeclaredfeatures.PodInfo{Spec: &pod.Spec}, featureMinor)
}

func (nodeFeatures) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	asked, err := featuresAsked(pod.Pod)
	if err != nil {
		return key, false
	}
	return signString(key, asked.String()), true
}

func (nodeFeatures) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	asked, err := featuresAsked(pod.Pod)
	if err != nil {
		return nil, nil, framework.AsStatus(err)
	}
	if asked.IsEmpty() {
		return nil, nil, nil
	}
	return nodeFeatures{asked}, nil, nil
}

func (p nodeFeatures) Filter(n *framework.NodeInfo) *framework.Status {
	has, err := p.asked.IsSubset(featuresOf.TryMap(n.Node.Status.DeclaredFeatures))
	if err != nil {
		return framework.AsStatus(err)
	}
	if !has {
		return lacksFeatures
	}
	return nil
}

// Events: what a pod asks for cannot change, only what nodes declare.
func (nodeFeatures) Events() []framework.EventHint {
	return []framework.EventHint{{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeDeclaredFeature,
		Hint: func(_ *corev1.Pod, e framework.Event) framework.Hint {
			old, now := nodeOf(e.Old), nodeOf(e.New)
			return framework.Hint(old == nil || now == nil ||
				!slices.Equal(old.Status.DeclaredFeatures, now.Status.DeclaredFeatures))
		}}}
}
