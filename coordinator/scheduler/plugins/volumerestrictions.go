package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

var (
	diskTaken  = framework.NewStatus(framework.Unschedulable, "node(s) had no available disk")
	claimTaken = framework.NewStatus(framework.Unschedulable, "node(s) unavailable due to PersistentVolumeClaim "+
		"with ReadWriteOncePod access mode already in-use by another pod")
)

// volumeRestrictions refuses a pod whose claim is for one pod alone (ReadWriteOncePod,
// KEP-2485) and has one, and nodes where a pod has a disk that cannot be mounted twice.
type volumeRestrictions struct{ storage Storage }

func (*volumeRestrictions) Name() string { return VolumeRestrictionsName }

func (*volumeRestrictions) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return key, !HasClaims(pod.Pod) && !hasDisks(pod.Pod)
}

func hasDisks(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.ISCSI != nil || v.RBD != nil
	})
}

func (r *volumeRestrictions) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	alone := r.alone(pod.Pod)
	switch {
	case len(alone) > 0:
		return &aloneFilter{disks: diskFilter{pod.Pod}, namespace: pod.Pod.Namespace, claims: alone}, nil, nil
	case hasDisks(pod.Pod):
		return diskFilter{pod.Pod}, nil, nil
	}
	return nil, nil, nil
}

// alone are the names of the claims that the pod must have for itself. Of one that is
// missing volumeBinding tells.
func (r *volumeRestrictions) alone(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		name := claimName(pod, &pod.Spec.Volumes[i])
		if name == "" || r.storage == nil {
			continue
		}
		c, err := r.storage.Claim(pod.Namespace, name)
		if err == nil && slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
			names = append(names, name)
		}
	}
	return names
}

func (*volumeRestrictions) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Pod, Actions: framework.Delete, Hint: volumeFreed},
		{Resource: framework.PersistentVolumeClaim, Actions: framework.Add | framework.UpdateOther, Hint: ownClaim},
		{Resource: framework.Node, Actions: framework.Add},
	}
}

// volumeFreed: a pod is gone that had a claim, or a disk, that this one has too.
func volumeFreed(pod *corev1.Pod, e framework.Event) framework.Hint {
	gone := podOf(e.Old)
	if gone == nil || gone.Spec.NodeName == "" {
		return framework.QueueSkip
	}
	if disksConflict(pod, gone) {
		return framework.Queue
	}
	return framework.Hint(gone.Namespace == pod.Namespace && sharesClaim(pod, gone))
}

// ownClaim: the claim is of the pod's namespace.
func ownClaim(pod *corev1.Pod, e framework.Event) framework.Hint {
	c, _ := e.New.(*corev1.PersistentVolumeClaim)
	return framework.Hint(c == nil || c.Namespace == pod.Namespace)
}

func sharesClaim(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		if name := claimName(a, &a.Spec.Volumes[i]); name != "" && namesClaim(b, name) {
			return true
		}
	}
	return false
}

func namesClaim(pod *corev1.Pod, name string) bool {
	for i := range pod.Spec.Volumes {
		if claimName(pod, &pod.Spec.Volumes[i]) == name {
			return true
		}
	}
	return false
}

// aloneFilter counts the pods, wherever they are, that have claims which the pod must
// have for itself.
type aloneFilter struct {
	disks     diskFilter
	namespace string
	claims    []string

	counts []int // by slot
	sum    int
}

// Track implements framework.Tracker.
func (f *aloneFilter) Track(slot int, n *framework.NodeInfo) {
	f.counts = grow(f.counts, slot, 0)
	f.sum -= f.counts[slot]
	f.counts[slot] = 0
	if n == nil {
		return
	}
	for _, p := range n.Pods {
		if p.Pod.Namespace == f.namespace &&
			slices.ContainsFunc(f.claims, func(c string) bool { return namesClaim(p.Pod, c) }) {
			f.counts[slot]++
		}
	}
	f.sum += f.counts[slot]
}

// Filter implements framework.NodeFilter.
func (f *aloneFilter) Filter(n *framework.NodeInfo) *framework.Status {
	if f.sum > 0 {
		return claimTaken
	}
	return f.disks.Filter(n)
}

// diskFilter refuses nodes where another pod has a disk of the pod.
type diskFilter struct{ pod *corev1.Pod }

// Filter implements framework.NodeFilter.
func (f diskFilter) Filter(n *framework.NodeInfo) *framework.Status {
	if hasDisks(f.pod) && slices.ContainsFunc(n.Pods, func(p *framework.PodInfo) bool {
		return disksConflict(f.pod, p.Pod)
	}) {
		return diskTaken
	}
	return nil
}

func disksConflict(a, b *corev1.Pod) bool {
	for i := range a.Spec.Volumes {
		for j := range b.Spec.Volumes {
			if diskConflicts(&a.Spec.Volumes[i], &b.Spec.Volumes[j]) {
				return true
			}
		}
	}
	return false
}

// diskConflicts tells whether two pods cannot have these volumes at one node: the same
// disk, unless both only read it, which is no help with EBS.
func diskConflicts(a, b *corev1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && !(x.ReadOnly && y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && !(a.ISCSI.ReadOnly && b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		return x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && !(x.ReadOnly && y.ReadOnly) &&
			slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
	}
	return false
}
