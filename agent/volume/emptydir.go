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

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/record"
)

// emptyDirDriver makes directories that live as long as their pod: on the
// node's disk, or in memory. A volume without any source is one, too.
type emptyDirDriver struct {
	fixed
	mounts mounter
	quotas Quotas
	memory int64 // that all pods together may take; 0: not known
	log    *slog.Logger
}

// Supports implements driver.
func (emptyDirDriver) Supports(s Source) bool {
	return s.Volume.EmptyDir != nil || s.Volume.VolumeSource == (corev1.VolumeSource{})
}

// Path implements driver.
func (emptyDirDriver) Path(podDir string, s Source) string { return ownDir(podDir, "empty-dir", s) }

// Mount implements driver. Once it is made, content, owner and mode of the
// directory are the pod's: it appears with all of them at once, so that none
// that exists is changed.
func (d emptyDirDriver) Mount(_ context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	src := v.Volume.EmptyDir
	if src == nil {
		src = &corev1.EmptyDirVolumeSource{}
	}
	group := fsGroup(p)
	mode := fs.FileMode(0o777)
	if group != nil {
		mode |= fs.ModeSetgid
	}
	switch src.Medium {
	case corev1.StorageMediumDefault:
		return time.Time{}, makeDir(v.Path, mode, group, func(path string) error { return d.mkdir(path, v) })
	case corev1.StorageMediumMemory:
		// A tmpfs is sticky by itself, and users know it so.
		o := tmpfsOptions{mode: mode | fs.ModeSticky, group: group, size: lower(d.memory, memoryLimit(p))}
		if src.SizeLimit != nil {
			o.size = lower(o.size, src.SizeLimit.Value())
		}
		return time.Time{}, tmpfsAt(d.mounts, v.Path, o)
	}
	if hugePages(src.Medium) {
		size, err := pageSize(p, src.Medium)
		if err != nil {
			return time.Time{}, err
		}
		return time.Time{}, tmpfsAt(d.mounts, v.Path, tmpfsOptions{mode: mode, group: group, pages: size})
	}
	return time.Time{}, fmt.Errorf("storage medium %q is not supported by this node", src.Medium)
}

// lower is the lower one of two limits, of which those that are not above 0 are none.
func lower(a, b int64) int64 {
	if b > 0 && (a <= 0 || b < a) {
		return b
	}
	return a
}

// memoryLimit is what a pod may take of memory, 0 where it is not limited.
func memoryLimit(p *corev1.Pod) int64 {
	limited := true
	record.EachContainer(p, func(c *corev1.Container) { limited = limited && !c.Resources.Limits.Memory().IsZero() })
	if p.Spec.Resources != nil && !p.Spec.Resources.Limits.Memory().IsZero() {
		limited = true
	}
	if !limited {
		return 0
	}
	limits := resourcehelper.PodLimits(p, resourcehelper.PodResourcesOptions{})
	return limits.Memory().Value()
}

// Unmount implements driver.
func (d emptyDirDriver) Unmount(_ context.Context, v *Volume) error {
	if d.quotas == nil || hardLimit(v) == 0 {
		return removeDir(d.mounts, v.Path)
	}
	if err := d.mounts.UnmountUnder(v.Path); err != nil {
		return err
	}
	return d.quotas.Remove(v.Path, v.Project)
}

// makeDir makes a directory with its mode and group in one step, unless it is
// there: a crash leaves none that is half made.
func makeDir(path string, mode fs.FileMode, group *int64, mkdir func(string) error) error {
	if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent, name := filepath.Split(path)
	if err := os.MkdirAll(parent, 0o750); err != nil {
		return err
	}
	fresh := filepath.Join(parent, ".new-"+name) // no volume is named so
	if err := beneath.RemoveAll(fresh); err != nil {
		return err
	}
	if err := mkdir(fresh); err != nil {
		return err
	}
	if group != nil {
		if err := os.Chown(fresh, -1, int(*group)); err != nil {
			return err
		}
	}
	if err := os.Chmod(fresh, mode); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
