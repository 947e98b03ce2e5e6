package plugins

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

var otherZone = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) had no available volume zone")

// zoneLabels of volumes are those of nodes that a volume with them can be used at; the
// older names are the same.
var zoneLabels = map[string]string{
	corev1.LabelTopologyZone:            corev1.LabelFailureDomainBetaZone,
	corev1.LabelTopologyRegion:          corev1.LabelFailureDomainBetaRegion,
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
}

// zoneSeparator is between the zones of a volume that is in several.
const zoneSeparator = "__"

// volumeZone refuses nodes in other zones and regions than the labels of a pod's
// volumes say.
type volumeZone struct{ storage Storage }

func (*volumeZone) Name() string { return VolumeZoneName }

func (*volumeZone) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return key, !HasClaims(pod.Pod)
}

func (z *volumeZone) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if z.storage == nil {
		return nil, nil, nil
	}
	var f zoneFilter
	for i := range pod.Pod.Spec.Volumes {
		name := claimName(pod.Pod, &pod.Pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		c, err := z.storage.Claim(pod.Pod.Namespace, name)
		if err != nil || c.Spec.VolumeName == "" {
			continue // volumeBinding tells of it
		}
		pv, err := z.storage.Volume(c.Spec.VolumeName)
		if err != nil {
			continue
		}
		for label := range zoneLabels {
			if value, ok := pv.Labels[label]; ok {
				f = append(f, zoneNeed{label, sets.New(strings.Split(value, zoneSeparator)...)})
			}
		}
	}
	if len(f) == 0 {
		return nil, nil, nil
	}
	return f, nil, nil
}

func (*volumeZone) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeLabel},
		{Resource: framework.PersistentVolumeClaim, Actions: framework.Add | framework.UpdateOther, Hint: ownClaim},
		{Resource: framework.PersistentVolume, Actions: framework.Add | framework.UpdateOther},
	}
}

// zoneNeed is a label of a volume and the values that a node may have for it.
type zoneNeed struct {
	label  string
	values sets.Set[string]
}

type zoneFilter []zoneNeed

// Filter implements framework.NodeFilter. A node that names no zone and no region is
// in all of them.
func (f zoneFilter) Filter(n *framework.NodeInfo) *framework.Status {
	labelled := false
	for label := range zoneLabels {
		if _, ok := n.Node.Labels[label]; ok {
			labelled = true
		}
	}
	for _, need := range f {
		value, ok := n.Node.Labels[need.label]
		if !ok {
			value, ok = n.Node.Labels[zoneLabels[need.label]]
		}
		if labelled && (!ok || !need.values.Has(value)) {
			return otherZone
		}
	}
	return nil
}
