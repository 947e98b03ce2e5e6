package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// localDriver gives pods directories of the node, or file systems on its devices,
// that were chosen by hand for their claims. Their content outlives the pods. A
// device is mounted once for all pods, and gets a file system where it has none.
type localDriver struct {
	fixed
	root   string // the kubelet's root directory
	mounts mounter
	// used tells whether other pods have a volume, tell writes an event of a pod.
	used func(v *Volume) bool
	tell func(p *corev1.Pod, kind, reason, format string, args ...any)
	log  *slog.Logger
}

// Supports implements driver.
func (localDriver) Supports(s Source) bool {
	return s.Persistent != nil && s.Persistent.Spec.Local != nil && !s.block()
}

// Path implements driver.
func (localDriver) Path(podDir string, s Source) string {
	return filepath.Join(podDir, "volumes", "kubernetes.io~local-volume", s.Persistent.Name)
}

// device is where a device is mounted for all pods, as the kubelet has it.
func (d localDriver) device(v *Volume) string {
	return filepath.Join(d.root, "plugins", "kubernetes.io", "local-volume", "mounts", v.Persistent.Name)
}

// Stage implements driver.
func (d localDriver) Stage(ctx context.Context, v *Volume) error {
	local := v.Persistent.Spec.Local
	st, err := os.Stat(local.Path)
	switch {
	case err != nil:
		return fmt.Errorf("failed to stat local volume %q: %w", local.Path, err)
	case st.IsDir():
		return nil
	case st.Mode().Type() != fs.ModeDevice: // a character device has one more bit
		return fmt.Errorf("local volume %q is neither a directory nor a block device", local.Path)
	}
	path, fstype := d.device(v), "ext4"
	if local.FSType != nil && *local.FSType != "" {
		fstype = *local.FSType
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if err := d.mounts.Format(ctx, fstype, local.Path, path, mountOptions(v.Source, false)); err != nil {
		return &Error{Step: "MountDevice", Err: fmt.Errorf("local: failed to mount device %s at %s (fstype: %s), error %w",
			local.Path, path, fstype, err)}
	}
	return nil
}

// Mount implements driver. The volume is given to the group of the first pod that has it
// here, once: containers may set other rights afterwards.
func (d localDriver) Mount(ctx context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	if is, err := v.stands(d.mounts); is || err != nil {
		return time.Time{}, err
	}
	source := v.Persistent.Spec.Local.Path
	st, err := os.Stat(source)
	if err != nil {
		return time.Time{}, fmt.Errorf("failed to stat local volume %q: %w", source, err)
	}
	if !st.IsDir() {
		source = d.device(v)
	}
	readOnly := v.Volume.PersistentVolumeClaim != nil && v.Volume.PersistentVolumeClaim.ReadOnly
	if err := os.MkdirAll(v.Path, 0o750); err != nil {
		return time.Time{}, err
	}
	options := append([]string{"bind"}, mountOptions(v.Source, readOnly)...)
	if err := d.mounts.Mount(ctx, "none", source, v.Path, options); err != nil {
		return time.Time{}, err
	}
	group := fsGroup(p)
	switch {
	case group == nil || readOnly:
		return time.Time{}, nil
	case !d.used(v):
		return time.Time{}, own(v.Path, int(*group), changePolicy(p), d.log)
	}
	var dir unix.Stat_t
	if err := unix.Stat(v.Path, &dir); err == nil && int64(dir.Gid) != *group {
		d.tell(p, corev1.EventTypeWarning, "AlreadyMountedVolume", "The requested fsGroup is %d, but the volume %s has "+
			"GID %d. The volume may not be shareable.", *group, v.Persistent.Name, dir.Gid)
	}
	return time.Time{}, nil
}

// Grow implements grower. A directory is as large as its disk.
func (d localDriver) Grow(ctx context.Context, v *Volume) error {
	source := v.Persistent.Spec.Local.Path
	st, err := os.Stat(source)
	if err != nil || st.IsDir() {
		return err
	}
	return d.mounts.Resize(ctx, source, d.device(v))
}

// Unmount implements driver. Only an empty directory is removed.
func (d localDriver) Unmount(ctx context.Context, v *Volume) error {
	if v.Path == v.Persistent.Spec.Local.Path {
		return nil // an agent of an earlier version made it, and mounted nothing
	}
	return d.unmounted(ctx, v.Path)
}

// Unstage implements driver.
func (d localDriver) Unstage(ctx context.Context, v *Volume) error {
	return d.unmounted(ctx, d.device(v))
}

func (d localDriver) unmounted(ctx context.Context, path string) error {
	if err := d.mounts.Unmount(ctx, path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
