package volume

import (
	"context"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Source is what a volume of a pod stands for.
type Source struct {
	// Volume is as the pod names it.
	Volume corev1.Volume `json:"volume"`
	// Persistent is the volume behind its claim, nil for volumes that are none.
	Persistent *corev1.PersistentVolume `json:"persistent,omitempty"`
}

// Volume is one volume of one pod, and all that its driver needs to undo it: its
// record, which is on disk before the first effect and until the last is
// undone.
type Volume struct {
	Pod Owner `json:"pod"`
	Source
	// Driver is the name of the driver that makes it.
	Driver string `json:"driver"`
	// Path is where it lies on the host: what the driver said when it was
	// recorded.
	Path string `json:"path,omitempty"`
	// CSI is of volumes of storage drivers.
	CSI *CSI `json:"csi,omitempty"`
	// Disk is of volumes on disks of a storage network.
	Disk *Disk `json:"disk,omitempty"`
	// Project is what an emptyDir is counted by where the file system has quotas of
	// projects; 0 for none.
	Project uint32 `json:"project,omitempty"`
	// Label is that of SELinux which it is mounted with, "" for none.
	Label string `json:"label,omitempty"`

	// mounted: it was a mount of its own when it was made.
	mounted bool
	// looked is when the claim of a volume that no storage driver makes was looked at for a
	// new size.
	looked time.Time
}

// Owner names the pod of a volume.
type Owner struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
}

// driver makes the volumes of one type. Stage, Mount, Unmount and Unstage are
// called in this order, but each of them again after a failure or a crash,
// with whatever part of its work done before: what is done already they leave,
// and what is undone already is no error. They are called for one volume of a
// pod at a time, and at the same time for different pods.
type driver interface {
	// Supports tells whether a volume is of this type, from its source alone.
	Supports(s Source) bool

	// Path is where the volume will lie on the host: below podDir (pods/UID)
	// where it is the pod's own, "" where the container runtime mounts it by
	// itself. It looks at its arguments alone and does nothing.
	Path(podDir string, s Source) string

	// Follows tells whether what the volume shows changes while containers have
	// it. Then Mount is called again when the pod's labels or an object of its
	// namespace changed, and when Mount asked for it; an error of that is
	// logged and tried again, and containers keep what they have.
	Follows(s Source) bool

	// Stage makes a persistent volume ready on this node, once for all pods
	// that use it: never at the same time as Unstage or another Stage of it, and
	// before the first Mount. It is not called for volumes of a pod alone. A
	// driver that has nothing to do for a node does nothing.
	Stage(ctx context.Context, v *Volume) error

	// Mount makes the volume for its pod at v.Path, as containers will see it.
	// It must not be waited for longer than ctx. What it returns is when it
	// wants to be called again, zero for never.
	Mount(ctx context.Context, p *corev1.Pod, v *Volume) (again time.Time, err error)

	// Unmount undoes Mount, and Mount alone: it leaves content that outlives
	// the pod. It is called when no container has the volume any more, and knows
	// no more of the pod than v does: after a restart nothing else may be known.
	// What a container could have written there it never follows.
	Unmount(ctx context.Context, v *Volume) error

	// Unstage undoes Stage, after the last Unmount on this node. A driver that
	// has nothing to do for a node does nothing.
	Unstage(ctx context.Context, v *Volume) error
}

// fixed is embedded by drivers of volumes that show the same as long as they
// are mounted, and that need nothing done for a node.
type fixed struct{ unstaged }

// Follows implements driver.
func (fixed) Follows(Source) bool { return false }

// unstaged is embedded by drivers of volumes that need nothing done for a node.
type unstaged struct{}

// Stage implements driver.
func (unstaged) Stage(context.Context, *Volume) error { return nil }

// Unstage implements driver.
func (unstaged) Unstage(context.Context, *Volume) error { return nil }

// name is what the volume's directory is named by: a persistent volume's own name.
func (s Source) name() string {
	if s.Persistent != nil {
		return s.Persistent.Name
	}
	return s.Volume.Name
}

// ownDir is where the volumes lie that are a pod's own, named as the kubelet
// names them.
func ownDir(podDir, plugin string, s Source) string {
	return filepath.Join(podDir, "volumes", "kubernetes.io~"+plugin, s.Volume.Name)
}
