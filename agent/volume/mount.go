package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mounted tells whether path is a mount point, also of a bind mount.
func mounted(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// tmpfs mounts a tmpfs at path unless one is there. Size is in bytes, 0 for
// the kernel's default (half the memory). Its pages never go to swap where
// the kernel can promise that (noswap, Linux 6.4).
func tmpfs(path string, size int64) error {
	ok, err := mounted(path)
	if err != nil || ok {
		return err
	}
	opts := "mode=0755"
	if size > 0 {
		opts += fmt.Sprintf(",size=%d", size)
	}
	err = unix.Mount("tmpfs", path, "tmpfs", 0, opts+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", 0, opts)
	}
	if err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", path, err)
	}
	return nil
}

// unmount takes every mount at path away; none is no error. One that is busy
// is detached.
func unmount(path string) error {
	for {
		ok, err := mounted(path)
		if err != nil || !ok {
			return err
		}
		err = unix.Unmount(path, unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// UnmountUnder takes away every mount at or below dir, deepest first.
func UnmountUnder(dir string) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.SplitSeq(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		p := unescape(f[4])
		if p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/") {
			points = append(points, p)
		}
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- { // later mounts lie on earlier ones
		err := unix.Unmount(points[i], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}

// unescape undoes mountinfo's octal escapes (proc_pid_mountinfo(5)).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// SubPath names a part of a volume that one container mounts.
type SubPath struct {
	Volume, Container string
	// Index is that of the mount in the container.
	Index int
	// Path is relative to the volume.
	Path string
}

// bindSubPath binds root/sub at target, making missing directories. No link
// inside the volume leads out of it, also when it is changed meanwhile.
func bindSubPath(root, sub, target string) error {
	if !filepath.IsLocal(sub) {
		return fmt.Errorf("subPath %q must be relative and stay within the volume", sub)
	}
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(rootFD)
	fd, err := openBeneath(rootFD, sub)
	if errors.Is(err, fs.ErrNotExist) {
		if err = mkdirBeneath(rootFD, sub); err == nil {
			fd, err = openBeneath(rootFD, sub)
		}
	}
	if err != nil {
		return fmt.Errorf("subPath %q: %w", sub, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := unmount(target); err != nil {
		return err
	}
	if err := placeFor(target, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	src := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Mount(src, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind subPath %q: %w", sub, err)
	}
	return nil
}

// placeFor makes an empty directory or file to mount on.
func placeFor(target string, dir bool) error {
	if dir {
		return os.MkdirAll(target, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return err
	}
	return f.Close()
}

func openBeneath(root int, path string) (int, error) {
	return unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
}

// mkdirBeneath makes the directories of path one by one, each opened beneath
// the root before the next is made in it.
func mkdirBeneath(root int, path string) error {
	at := ""
	parts := strings.Split(filepath.Clean(path), "/")
	for _, part := range parts {
		parent := "."
		if at != "" {
			parent = at
		}
		dir, err := openBeneath(root, parent)
		if err != nil {
			return err
		}
		err = unix.Mkdirat(dir, part, 0o750)
		if err == nil {
			// As the volume itself: its users are not known here.
			err = unix.Fchmodat(dir, part, 0o777, 0)
		}
		unix.Close(dir)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		at = filepath.Join(at, part)
	}
	return nil
}
