package volume

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// localDriver gives pods directories of the node that were made by hand for
// their claims. Their content outlives the pods.
type localDriver struct{ fixed }

// Supports implements driver.
func (localDriver) Supports(s Source) bool {
	return s.Persistent != nil && s.Persistent.Spec.Local != nil && !s.block()
}

// Path implements driver.
func (localDriver) Path(_ string, s Source) string { return s.Persistent.Spec.Local.Path }

// Mount implements driver. The directory is given to the pod's group.
func (localDriver) Mount(_ context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	st, err := os.Stat(v.Path)
	if err != nil {
		return time.Time{}, fmt.Errorf("failed to stat local volume %q: %w", v.Path, err)
	}
	if !st.IsDir() {
		return time.Time{}, fmt.Errorf("local volume %q is no directory: devices are not supported by this node yet",
			v.Path)
	}
	readOnly := v.Volume.PersistentVolumeClaim != nil && v.Volume.PersistentVolumeClaim.ReadOnly
	if group := fsGroup(p); group != nil && !readOnly {
		return time.Time{}, own(v.Path, int(*group), changePolicy(p))
	}
	return time.Time{}, nil
}

// Unmount implements driver.
func (localDriver) Unmount(context.Context, *Volume) error { return nil }
