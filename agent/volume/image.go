package volume

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// imageDriver leaves images to the container runtime, which mounts them for
// each container by itself.
type imageDriver struct{ fixed }

// Supports implements driver.
func (imageDriver) Supports(s Source) bool { return s.Volume.Image != nil }

// Path implements driver.
func (imageDriver) Path(string, Source) string { return "" }

// Mount implements driver.
func (imageDriver) Mount(context.Context, *corev1.Pod, *Volume) (time.Time, error) {
	return time.Time{}, nil
}

// Unmount implements driver.
func (imageDriver) Unmount(context.Context, *Volume) error { return nil }
