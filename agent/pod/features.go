package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/features/inplacepodresize"
	"k8s.io/component-helpers/nodedeclaredfeatures/features/restartallcontainers"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/shoal-project/shoal/agent/record"
)

// built are the features among those that Nodes declare (KEP-5328) which the agent has.
// WebSockets are not among them: the coordinator translates them for every node.
var built = types.FeatureGateMap{
	inplacepodresize.IPPRInitContainersFeatureGate:            true,
	inplacepodresize.IPPRPodLevelResourcesFeatureGate:         true,
	restartallcontainers.RestartAllContainersOnContainerExits: true,
}

// minor is the version of the API whose features these are.
var minor = version.MajorMinor(1, 36)

// DeclaredFeatures are what status.declaredFeatures of the agent's Node says, in order:
// what pods may ask for that older nodes of a cluster lack.
func DeclaredFeatures() []string {
	return nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(
		&nodedeclaredfeatures.NodeConfiguration{FeatureGates: built, Version: minor})
}

// unsupported tells which declared feature a pod asks for that the agent lacks.
func unsupported(p *corev1.Pod) *record.Verdict {
	all := nodedeclaredfeatures.DefaultFramework
	asked, err := all.InferForPodScheduling(&nodedeclaredfeatures.PodInfo{Spec: &p.Spec, Status: &p.Status}, minor)
	if err != nil {
		return &record.Verdict{Reason: "PodFeatureUnsupported",
			Message: "Failed to infer pod's feature requirements: " + err.Error()}
	}
	if asked.IsEmpty() {
		return nil
	}
	match, err := all.MatchNodeFeatureSet(asked, all.TryMap(DeclaredFeatures()))
	if err != nil {
		return &record.Verdict{Reason: "PodFeatureUnsupported",
			Message: "Failed to match pod's feature requirements against the node: " + err.Error()}
	}
	if match.IsMatch {
		return nil
	}
	return &record.Verdict{Reason: "PodFeatureUnsupported",
		Message: "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", ")}
}
