package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// options are those of mount(8) that are flags of mount(2). The others go to the
// file system.
var options = map[string]struct {
	flag uintptr
	off  bool
}{
	"ro": {unix.MS_RDONLY, false}, "rw": {unix.MS_RDONLY, true},
	"nosuid": {unix.MS_NOSUID, false}, "suid": {unix.MS_NOSUID, true},
	"nodev": {unix.MS_NODEV, false}, "dev": {unix.MS_NODEV, true},
	"noexec": {unix.MS_NOEXEC, false}, "exec": {unix.MS_NOEXEC, true},
	"sync": {unix.MS_SYNCHRONOUS, false}, "async": {unix.MS_SYNCHRONOUS, true},
	"dirsync":    {unix.MS_DIRSYNC, false},
	"noatime":    {unix.MS_NOATIME, false},
	"nodiratime": {unix.MS_NODIRATIME, false},
	"relatime":   {unix.MS_RELATIME, false}, "strictatime": {unix.MS_STRICTATIME, false},
	"lazytime": {unix.MS_LAZYTIME, false},
	"defaults": {},
}

// parsed splits mount options.
func parsed(list []string) (flags uintptr, data string) {
	var rest []string
	for _, o := range list {
		known, ok := options[o]
		switch {
		case !ok:
			rest = append(rest, o)
		case known.off:
			flags &^= known.flag
		default:
			flags |= known.flag
		}
	}
	return flags, strings.Join(rest, ",")
}

// mounted is the topmost mount at a path, nil for none.
func mounted(path string) (*mountinfo.Info, error) {
	real, err := filepath.EvalSymlinks(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(real))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[len(list)-1], nil
}

// of tells whether a mount is of one of the devices.
func of(m *mountinfo.Info, devices []string) bool {
	for _, path := range devices {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == st.Rdev {
			return true
		}
	}
	return false
}

// alias tells whether two paths are one by another name, as where the directory of
// the kubelet is a mount of another: then they end alike.
func alias(a, b string) bool {
	for range 3 {
		if filepath.Base(a) != filepath.Base(b) {
			return false
		}
		a, b = filepath.Dir(a), filepath.Dir(b)
	}
	return true
}

// shownAt is where a volume is mounted beside where it is staged; "" for nowhere.
func shownAt(v *view, staged string) (string, error) {
	if real, err := filepath.EvalSymlinks(staged); err == nil {
		staged = real
	}
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return alias(m.Mountpoint, staged) || !v.is(m), false
	})
	if err != nil || len(list) == 0 {
		return "", err
	}
	return list[0].Mountpoint, nil
}

// A process that is being started has all files open that its parent had, until it
// executes its program: what was closed here can be open there for a moment longer.
const busyFor, busyCheck = 2 * time.Second, 20 * time.Millisecond

// unmount takes away all that is mounted at a path. What stays in use for longer than a
// moment is an error, for the caller to try again.
func unmount(path string) error {
	for end := time.Now().Add(busyFor); ; {
		m, err := mounted(path)
		if err != nil || m == nil {
			return err
		}
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) && time.Now().Before(end) {
			time.Sleep(busyCheck) // nothing tells of its end
			continue
		}
		if err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// bind shows what is at one path at another.
func bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	if err != nil {
		return errors.Join(fmt.Errorf("make %s read-only: %w", to, err), unmount(to))
	}
	return nil
}

// still has nobody write to a file that a device shows while it is used.
func still(ctx context.Context, file string, use func(file string) error) error {
	devices, err := attached(file)
	if err != nil {
		return err
	}
	if len(devices) == 0 {
		return use(file)
	}
	list, err := mountsOf(devices)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.Join(synced(devices...), use(file))
	}
	dir, err := os.Open(list[0].Mountpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(int(dir.Fd()), freeze, 0); err != nil {
		return fmt.Errorf("hold writes to %s: %w", dir.Name(), err)
	}
	err = use(file)
	return errors.Join(err, unix.IoctlSetInt(int(dir.Fd()), thaw, 0))
}

// FIFREEZE and FITHAW of linux/fs.h.
const freeze, thaw = 0xc0045877, 0xc0045878

// mountsOf are where devices, whole, are mounted.
func mountsOf(devices []string) ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Root != "/" || !of(m, devices), false
	})
}

// thaw lets volumes be written to that a driver held when it was killed.
func (s shelf) thaw() error {
	ids, err := s.ids()
	if errors.Is(err, os.ErrNotExist) {
		return nil // there are no volumes yet
	}
	if err != nil {
		return err
	}
	for _, id := range ids {
		devices, err := attached(s.image(id))
		if err != nil || len(devices) == 0 {
			continue // it is not mounted, or has no image
		}
		list, err := mountsOf(devices)
		if err != nil {
			return err
		}
		for _, m := range list[:min(1, len(list))] {
			dir, err := os.Open(m.Mountpoint)
			if err != nil {
				return err
			}
			err = unix.IoctlSetInt(int(dir.Fd()), thaw, 0)
			if err := errors.Join(err, dir.Close()); err != nil && !errors.Is(err, unix.EINVAL) { // not held
				return fmt.Errorf("let %s be written to: %w", m.Mountpoint, err)
			}
		}
	}
	return nil
}
