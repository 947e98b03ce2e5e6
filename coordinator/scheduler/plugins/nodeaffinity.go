package plugins

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// nodeAffinityPlugin refuses nodes that spec.nodeSelector or a required node
// affinity excludes, and prefers those that preferred terms name.
type nodeAffinityPlugin struct {
	// added is an affinity that the profile puts on all its pods.
	added          *nodeaffinity.NodeSelector
	addedPreferred *nodeaffinity.PreferredSchedulingTerms
}

var (
	affinityMismatch = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match Pod's node affinity/selector")
	affinityEnforced = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match scheduler-enforced node affinity")
	affinityConflict = framework.NewStatus(framework.UnschedulableAndUnresolvable, "pod affinity terms conflict")
)

func newNodeAffinity(args []byte, _ *Deps) (framework.Plugin, error) {
	var a configv1.NodeAffinityArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	p := &nodeAffinityPlugin{}
	if a.AddedAffinity == nil {
		return p, nil
	}
	var err error
	if r := a.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		if p.added, err = nodeaffinity.NewNodeSelector(r); err != nil {
			return nil, fmt.Errorf("parsing addedAffinity.requiredDuringSchedulingIgnoredDuringExecution: %w", err)
		}
	}
	if r := a.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(r) > 0 {
		if p.addedPreferred, err = nodeaffinity.NewPreferredSchedulingTerms(r); err != nil {
			return nil, fmt.Errorf("parsing addedAffinity.preferredDuringSchedulingIgnoredDuringExecution: %w", err)
		}
	}
	return p, nil
}

func (*nodeAffinityPlugin) Name() string { return NodeAffinityName }

func (*nodeAffinityPlugin) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	key = signLabels(key, pod.Pod.Spec.NodeSelector)
	a := nodeAffinityOf(pod.Pod)
	if a == nil {
		return signBool(key, false), true
	}
	return signProto(signBool(key, true), a)
}

func (p *nodeAffinityPlugin) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	a := nodeAffinityOf(pod.Pod)
	required := a != nil && a.RequiredDuringSchedulingIgnoredDuringExecution != nil
	if !required && len(pod.Pod.Spec.NodeSelector) == 0 && p.added == nil {
		return nil, nil, nil
	}
	f := &nodeAffinityFilter{added: p.added, pod: nodeaffinity.GetRequiredNodeAffinity(pod.Pod)}
	if !required {
		return f, nil, nil
	}
	only, conflict := namedNodes(a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
	if conflict {
		return nil, nil, affinityConflict
	}
	return f, only, nil
}

func (p *nodeAffinityPlugin) PreScore(pod *framework.PodInfo,
	_ *framework.Snapshot) (framework.Scorer, *framework.Status) {
	s := nodeAffinityScore{added: p.addedPreferred}
	if a := nodeAffinityOf(pod.Pod); a != nil && len(a.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		var err error
		if s.pod, err = nodeaffinity.NewPreferredSchedulingTerms(
			a.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return nil, framework.AsStatus(err)
		}
	}
	if s.added == nil && s.pod == nil {
		return nil, nil
	}
	return s, nil
}

func (p *nodeAffinityPlugin) Events() []framework.EventHint {
	return []framework.EventHint{{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeLabel,
		Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint {
			n := nodeOf(e.New)
			if n == nil {
				return framework.Queue
			}
			f := &nodeAffinityFilter{added: p.added, pod: nodeaffinity.GetRequiredNodeAffinity(pod)}
			return framework.Hint(f.judge(n) == nil)
		}}}
}

type nodeAffinityFilter struct {
	added *nodeaffinity.NodeSelector
	pod   nodeaffinity.RequiredNodeAffinity
}

func (f *nodeAffinityFilter) Filter(n *framework.NodeInfo) *framework.Status { return f.judge(n.Node) }

func (f *nodeAffinityFilter) judge(n *corev1.Node) *framework.Status {
	if f.added != nil && !f.added.Match(n) {
		return affinityEnforced
	}
	// A term that cannot be parsed matches nothing, as in the API it could be
	// written before validation got strict.
	if ok, _ := f.pod.Match(n); !ok {
		return affinityMismatch
	}
	return nil
}

type nodeAffinityScore struct {
	added, pod *nodeaffinity.PreferredSchedulingTerms
}

func (s nodeAffinityScore) Score(n *framework.NodeInfo) int64 {
	var sum int64
	if s.added != nil {
		sum += s.added.Score(n.Node)
	}
	if s.pod != nil {
		sum += s.pod.Score(n.Node)
	}
	return sum
}

func (nodeAffinityScore) Normalize(scores []int64) { normalize(scores, false) }

func nodeAffinityOf(pod *corev1.Pod) *corev1.NodeAffinity {
	if pod.Spec.Affinity == nil {
		return nil
	}
	return pod.Spec.Affinity.NodeAffinity
}

// namedNodes returns the nodes that the terms name with matchFields
// metadata.name, when every term does (DS-8, DS-9). Terms are alternatives; the
// fields of one term must all hold, and conflict tells that none can.
func namedNodes(terms []corev1.NodeSelectorTerm) (only sets.Set[string], conflict bool) {
	only = sets.New[string]()
	for _, t := range terms {
		var names sets.Set[string]
		for _, r := range t.MatchFields {
			if r.Key != "metadata.name" || r.Operator != corev1.NodeSelectorOpIn {
				continue
			}
			if s := sets.New(r.Values...); names == nil {
				names = s
			} else {
				names = names.Intersection(s)
			}
		}
		if names == nil {
			return nil, false
		}
		only = only.Union(names)
	}
	return only, len(terms) > 0 && only.Len() == 0
}
