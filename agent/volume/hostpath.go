package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// hostPathDriver gives pods what is on the node, also through a claim. It is
// the node's: it is neither mounted nor removed.
type hostPathDriver struct{ fixed }

// Supports implements driver.
func (hostPathDriver) Supports(s Source) bool { return hostPathOf(s) != nil && !s.block() }

// Path implements driver.
func (hostPathDriver) Path(_ string, s Source) string { return hostPathOf(s).Path }

// Mount implements driver.
func (hostPathDriver) Mount(_ context.Context, _ *corev1.Pod, v *Volume) (time.Time, error) {
	return time.Time{}, hostPath(hostPathOf(v.Source))
}

// Unmount implements driver.
func (hostPathDriver) Unmount(context.Context, *Volume) error { return nil }

func hostPathOf(s Source) *corev1.HostPathVolumeSource {
	if s.Persistent != nil {
		return s.Persistent.Spec.HostPath
	}
	return s.Volume.HostPath
}

// hostPath checks the path's type, and makes it where the type says so.
func hostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	if kind == corev1.HostPathUnset {
		return nil
	}
	st, err := os.Stat(h.Path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	switch kind {
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(h.Path, 0o755)
		}
		return want(st.IsDir(), h.Path, "a directory")
	case corev1.HostPathFileOrCreate:
		if missing {
			// Exclusive: what appeared meanwhile could be a link or a FIFO.
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		return want(st.Mode().IsRegular(), h.Path, "a file")
	}
	if missing {
		st = nil
	}
	return hostPathIs(h.Path, st, kind)
}

func hostPathIs(path string, st fs.FileInfo, kind corev1.HostPathType) error {
	is := func(f func(fs.FileMode) bool) bool { return st != nil && f(st.Mode()) }
	switch kind {
	case corev1.HostPathDirectory:
		return want(is(fs.FileMode.IsDir), path, "a directory")
	case corev1.HostPathFile:
		return want(is(fs.FileMode.IsRegular), path, "a file")
	case corev1.HostPathSocket:
		return want(is(func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }), path, "a socket file")
	case corev1.HostPathCharDev:
		return want(is(func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }), path, "a character device")
	case corev1.HostPathBlockDev:
		block := func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 }
		return want(is(block), path, "a block device")
	}
	return fmt.Errorf("%s is an invalid volume type", kind)
}

func want(ok bool, path, what string) error {
	if ok {
		return nil
	}
	return fmt.Errorf("hostPath type check failed: %s is not %s", path, what)
}
