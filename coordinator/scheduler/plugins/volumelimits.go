package plugins

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
	"github.com/shoal-project/shoal/csi/migration"
)

var tooManyVolumes = framework.NewStatus(framework.Unschedulable, "node(s) exceed max volume count")

// volumeLimits refuses nodes that would have more volumes of a driver than it can
// attach there (LIM-1, LIM-4): what CSINode says against what pods have, pods are
// about to have, and what is still attached without one.
type volumeLimits struct{ storage Storage }

func (*volumeLimits) Name() string { return NodeVolumeLimitsName }

func (*volumeLimits) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return key, !HasClaims(pod.Pod)
}

func (l *volumeLimits) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if l.storage == nil || !HasClaims(pod.Pod) {
		return nil, nil, nil
	}
	f := &limitFilter{storage: l.storage, wants: map[driverVolume]bool{}, attached: map[string][]driverVolume{}}
	l.add(f.wants, pod.Pod)
	if len(f.wants) == 0 {
		return nil, nil, nil
	}
	all, err := l.storage.Attachments()
	if err != nil {
		return nil, nil, framework.AsStatus(err)
	}
	for _, va := range all {
		if v, ok := l.ofAttachment(va); ok {
			f.attached[va.Spec.NodeName] = append(f.attached[va.Spec.NodeName], v)
		}
	}
	f.of = l.add
	return f, nil, nil
}

func (*volumeLimits) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.CSINode, Actions: framework.Add | framework.UpdateOther},
		{Resource: framework.Pod, Actions: framework.Delete, Hint: claimantGone},
		{Resource: framework.PersistentVolumeClaim, Actions: framework.Add | framework.UpdateOther, Hint: ownClaim},
		{Resource: framework.VolumeAttachment, Actions: framework.Delete},
		{Resource: framework.Node, Actions: framework.Add},
	}
}

// claimantGone: a pod with claims is gone from its node.
func claimantGone(_ *corev1.Pod, e framework.Event) framework.Hint {
	gone := podOf(e.Old)
	return framework.Hint(gone != nil && gone.Spec.NodeName != "" && HasClaims(gone))
}

// driverVolume names a volume: by its handle, or by its claim as long as there is none.
type driverVolume struct{ driver, volume string }

// add puts the volumes of a pod into a set.
func (l *volumeLimits) add(into map[driverVolume]bool, pod *corev1.Pod) {
	for i := range pod.Spec.Volumes {
		name := claimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		c, err := l.storage.Claim(pod.Namespace, name)
		if err != nil {
			continue // volumeBinding tells of it
		}
		if v, ok := l.ofClaim(c); ok {
			into[v] = true
		}
	}
}

func (l *volumeLimits) ofClaim(c *corev1.PersistentVolumeClaim) (driverVolume, bool) {
	if c.Spec.VolumeName != "" {
		if pv, err := l.storage.Volume(c.Spec.VolumeName); err == nil {
			return ofVolume(pv)
		}
	}
	class, err := l.storage.Class(storagehelper.GetPersistentVolumeClaimClass(c))
	if err != nil {
		return driverVolume{}, false
	}
	driver := class.Provisioner
	if d := migration.Driver(driver); d != "" {
		driver = d
	}
	return driverVolume{driver, "claim " + c.Namespace + "/" + c.Name}, true
}

func ofVolume(pv *corev1.PersistentVolume) (driverVolume, bool) {
	if pv.Spec.CSI == nil {
		return driverVolume{}, false
	}
	return driverVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle}, true
}

func (l *volumeLimits) ofAttachment(va *storagev1.VolumeAttachment) (driverVolume, bool) {
	if va.Spec.Source.PersistentVolumeName == nil {
		return driverVolume{}, false
	}
	if pv, err := l.storage.Volume(*va.Spec.Source.PersistentVolumeName); err == nil {
		return ofVolume(pv)
	}
	return driverVolume{va.Spec.Attacher, "volume " + *va.Spec.Source.PersistentVolumeName}, true
}

type limitFilter struct {
	storage  Storage
	wants    map[driverVolume]bool
	attached map[string][]driverVolume // by node
	of       func(into map[driverVolume]bool, pod *corev1.Pod)
}

// Filter implements framework.NodeFilter.
func (f *limitFilter) Filter(n *framework.NodeInfo) *framework.Status {
	limits := f.storage.Limits(n.Node.Name)
	if len(limits) == 0 {
		return nil
	}
	there := map[driverVolume]bool{}
	for _, p := range n.Pods {
		f.of(there, p.Pod)
	}
	for _, v := range f.attached[n.Node.Name] {
		there[v] = true
	}
	count, more := map[string]int64{}, map[string]bool{}
	for v := range there {
		count[v.driver]++
	}
	for v := range f.wants {
		if !there[v] {
			count[v.driver]++
			more[v.driver] = true
		}
	}
	for driver := range more {
		if limit, ok := limits[driver]; ok && count[driver] > limit {
			return tooManyVolumes
		}
	}
	return nil
}
