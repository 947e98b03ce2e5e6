package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	v1 "k8s.io/api/core/v1"
)

func (m *Manager) emptyDir(p *v1.Pod, v *v1.Volume) error {
	dir := m.dir(p, v)
	src := v.EmptyDir
	if src == nil {
		src = &v1.EmptyDirVolumeSource{}
	}
	_, err := os.Lstat(dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	switch src.Medium {
	case v1.StorageMediumDefault:
	case v1.StorageMediumMemory:
		is, err := mounted(dir)
		if err != nil {
			return err
		}
		fresh = fresh || !is
		var size int64
		if src.SizeLimit != nil {
			size = src.SizeLimit.Value()
		}
		if err := tmpfs(dir, size); err != nil {
			return err
		}
	default:
		return fmt.Errorf("storage medium %q is not supported by this node", src.Medium)
	}
	if !fresh {
		return nil // its content and modes are the pod's
	}
	mode := fs.FileMode(0o777)
	if g := fsGroup(p); g != nil {
		if err := os.Chown(dir, -1, int(*g)); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	return os.Chmod(dir, mode)
}
