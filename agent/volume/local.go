package volume

import (
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
)

// local is a directory that was made by hand; the pod's group gets it.
func local(p *v1.Pod, v *v1.Volume, pv *v1.PersistentVolume) error {
	path := pv.Spec.Local.Path
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("failed to stat local volume %q: %w", path, err)
	}
	if !st.IsDir() {
		return fmt.Errorf("local volume %q is no directory: devices are not supported by this node yet", path)
	}
	readOnly := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
	if group := fsGroup(p); group != nil && !readOnly {
		return own(path, int(*group), changePolicy(p))
	}
	return nil
}
