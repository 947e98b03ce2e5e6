package attachdetach

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/csi/storagenet"
)

const (
	// forceAfter is how long a node that is not ready may keep a volume.
	forceAfter = 6 * time.Minute
	// attachTimeout is how long an attacher may take before pods are told.
	attachTimeout = 2 * time.Minute

	// csiPrefix begins the names of CSI volumes in Nodes' statuses.
	csiPrefix = "kubernetes.io/csi/"
)

// uniqueName is what a volume is called in Nodes' statuses.
func uniqueName(csi *corev1.CSIPersistentVolumeSource) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(csiPrefix + csi.Driver + "^" + csi.VolumeHandle)
}

// attachmentName is the name of the VolumeAttachment of a volume and a node, which
// agents compute too.
func attachmentName(driver, handle, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

var attachmentNames = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)

// ours tells whether a VolumeAttachment is one that this controller makes: others
// may be anybody's.
func ours(va *storagev1.VolumeAttachment) bool {
	return attachmentNames.MatchString(va.Name) && va.Spec.Source.PersistentVolumeName != nil
}

// isOf tells whether a name in a Node's status is the volume of a VolumeAttachment.
func isOf(name corev1.UniqueVolumeName, va *storagev1.VolumeAttachment) bool {
	rest, csi := strings.CutPrefix(string(name), csiPrefix)
	driver, handle, ok := strings.Cut(rest, "^")
	return csi && ok && attachmentName(driver, handle, va.Spec.NodeName) == va.Name
}

// exclusive tells whether a volume must not be at two nodes.
func exclusive(pv *corev1.PersistentVolume) bool {
	return len(pv.Spec.AccessModes) > 0 && !slices.ContainsFunc(pv.Spec.AccessModes,
		func(m corev1.PersistentVolumeAccessMode) bool {
			return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
		})
}

// uses tells whether a pod that names a volume needs it at its node.
func uses(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" || controller.PodTerminal(pod) {
		return false
	}
	return pod.DeletionTimestamp == nil || len(pod.Status.ContainerStatuses) == 0 ||
		slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Terminated == nil && s.State.Waiting == nil
		})
}

// holder is what is known of a node that has a volume.
type holder struct {
	// inUse: the node may have it mounted.
	inUse bool
	ready bool
	// outOfService: somebody has seen that the node is off.
	outOfService bool
	// since is from when on it has been not ready and had a volume that no pod of it
	// uses, as far as that was seen.
	since time.Time
}

// decision is what to do about a volume at a node that no pod uses there.
type decision int

const (
	keep decision = iota
	detach
	// forceTimeout and forceService detach it although it may be mounted.
	forceTimeout
	forceService
)

// judge decides whether a volume is detached; wait is when to ask again where only
// time can change it.
func judge(h holder, now time.Time, forced bool) (d decision, wait time.Duration) {
	switch {
	case !h.inUse:
		return detach, 0
	case h.outOfService:
		return forceService, 0
	case h.ready || !forced:
		return keep, 0
	}
	if wait = h.since.Add(forceAfter).Sub(now); wait > 0 {
		return keep, wait
	}
	return forceTimeout, 0
}

// multiAttach is what a pod is told whose volume is at another node, by the pods
// that use it there. Names of other namespaces' pods are not its business.
func multiAttach(pv string, pod *corev1.Pod, others []*corev1.Pod) string {
	var local []string
	elsewhere := 0
	for _, o := range others {
		if o.Namespace == pod.Namespace {
			local = append(local, o.Name)
		} else {
			elsewhere++
		}
	}
	slices.Sort(local)
	what := "Volume is already exclusively attached to one node and can't be attached to another"
	switch {
	case len(local) > 0 && elsewhere > 0:
		what = fmt.Sprintf("Volume is already used by pod(s) %s and %d pod(s) in different namespaces",
			strings.Join(local, ", "), elsewhere)
	case len(local) > 0:
		what = "Volume is already used by pod(s) " + strings.Join(local, ", ")
	case elsewhere > 0:
		what = fmt.Sprintf("Volume is already used by %d pod(s) in different namespaces", elsewhere)
	}
	return fmt.Sprintf("Multi-Attach error for volume %q %s", pv, what)
}

// attached is what a Node's status should list: its disks, the volumes of the
// attachments that stand, in order, and what is neither's. name finds an attachment's
// volume, "" for unknown.
func attached(have []corev1.AttachedVolume, disks []corev1.UniqueVolumeName, standing []*storagev1.VolumeAttachment,
	name func(*storagev1.VolumeAttachment) corev1.UniqueVolumeName) (want []corev1.AttachedVolume) {
	want = []corev1.AttachedVolume{}
	for _, v := range have {
		if !strings.HasPrefix(string(v.Name), csiPrefix) && !storagenet.Is(v.Name) {
			want = append(want, v)
		}
	}
	for _, n := range disks {
		want = append(want, corev1.AttachedVolume{Name: n})
	}
	for _, va := range standing {
		n := name(va)
		for _, v := range have { // the volume may be gone, and still attached
			if n == "" && isOf(v.Name, va) {
				n = v.Name
			}
		}
		if n != "" {
			want = append(want, corev1.AttachedVolume{Name: n})
		}
	}
	slices.SortFunc(want, func(a, b corev1.AttachedVolume) int {
		return strings.Compare(string(a.Name), string(b.Name))
	})
	return slices.Compact(want)
}
