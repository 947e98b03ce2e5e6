package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// mounted tells whether path is a mount point, also of a bind mount.
func mounted(path string) (bool, error) {
	var st unix.Statx_t
	const how = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	err := unix.Statx(unix.AT_FDCWD, path, how, 0, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "statx", Path: path, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mounter is what drivers need of the kernel's mounts.
type mounter interface {
	// Mounted tells whether something is mounted at path. It waits for no server.
	Mounted(path string) (bool, error)
	// Tmpfs mounts a tmpfs at a directory, unless one is there.
	Tmpfs(path string, o tmpfsOptions) error
	// Bind makes target show what lies at sub in the volume at root, and makes
	// directories of sub that are missing.
	Bind(root, sub, target string) error
	// Mount mounts what a program of the node knows to mount, unless something is
	// mounted at target.
	Mount(ctx context.Context, fstype, source, target string, options []string) error
	// Format mounts a device as Mount does, and makes a file system on it before where
	// it has none.
	Format(ctx context.Context, fstype, device, target string, options []string) error
	// Resize has the file system of a device, which is mounted at target, fill it.
	Resize(ctx context.Context, device, target string) error
	// Unmount undoes Mount and Format; nothing there is no error.
	Unmount(ctx context.Context, target string) error
	// UnmountUnder takes away every mount at or below a directory.
	UnmountUnder(dir string) error
}

// mounter is what mounts for this manager.
func (m *Manager) mounter() mounter {
	if m.mounts != nil {
		return m.mounts
	}
	return kernel{}
}

// kernel is the mounter of a node.
type kernel struct{}

// Mounted implements mounter.
func (kernel) Mounted(path string) (bool, error) { return mounted(path) }

// Tmpfs implements mounter.
func (kernel) Tmpfs(path string, o tmpfsOptions) error { return tmpfs(path, o) }

// Bind implements mounter.
func (kernel) Bind(root, sub, target string) error { return bindSubPath(root, sub, target) }

// UnmountUnder implements mounter.
func (kernel) UnmountUnder(dir string) error { return UnmountUnder(dir) }

// tmpfsAt makes a directory with a tmpfs on it.
func tmpfsAt(m mounter, path string, o tmpfsOptions) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	return m.Tmpfs(path, o)
}

// removeDir unmounts below a directory, and removes it only when nothing is
// mounted there any more.
func removeDir(m mounter, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := m.UnmountUnder(dir); err != nil {
		return err
	}
	return beneath.RemoveAll(dir)
}

// tmpfsOptions are those of one tmpfs.
type tmpfsOptions struct {
	// size is in bytes, 0 for the kernel's default (half the memory).
	size int64
	// mode and group are those of its directory from the first moment on; nil
	// leaves the group.
	mode  fs.FileMode
	group *int64
	// pages is the size of the huge pages that it consists of, in bytes; 0: of none.
	pages int64
}

func (o tmpfsOptions) String() string {
	mode := uint32(o.mode.Perm())
	if o.mode&fs.ModeSetgid != 0 {
		mode |= unix.S_ISGID
	}
	if o.mode&fs.ModeSticky != 0 {
		mode |= unix.S_ISVTX
	}
	s := fmt.Sprintf("mode=%04o", mode)
	if o.group != nil {
		s += fmt.Sprintf(",gid=%d", *o.group)
	}
	if o.size > 0 {
		s += fmt.Sprintf(",size=%d", o.size)
	}
	if o.pages > 0 {
		s += fmt.Sprintf(",pagesize=%d", o.pages)
	}
	return s
}

// tmpfs mounts a tmpfs at path unless one is there. Its pages never go to swap
// where the kernel can promise that (noswap, Linux 6.4).
func tmpfs(path string, o tmpfsOptions) error {
	ok, err := mounted(path)
	if err != nil || ok {
		return err
	}
	if o.pages > 0 {
		if err := unix.Mount("hugetlbfs", path, "hugetlbfs", 0, o.String()); err != nil {
			return fmt.Errorf("mount hugetlbfs at %s: %w", path, err)
		}
		return nil
	}
	err = unix.Mount("tmpfs", path, "tmpfs", 0, o.String()+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", path, "tmpfs", 0, o.String())
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

// UnmountUnder takes away every mount at or below dir, deepest first. Links in
// the path of dir are root's: /var/lib/kubelet may lie on another disk.
func UnmountUnder(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if detached(dir) {
		return nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(mounts) { // later mounts lie on earlier ones
		errs = append(errs, beneath.Detach(m.Mountpoint))
	}
	return errors.Join(errs...)
}

// detached takes away what is mounted at dir itself, with all below, and tells whether
// nothing is left there. It saves the mount table, which is long where there are many
// pods: with 100 of them, reading it took 6 % of the agent's time for starts and ends.
func detached(dir string) bool {
	const layers = 16 // mounted over each other
	for range layers {
		var st unix.Statx_t
		// A server that does not answer is not asked.
		const how = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
		err := unix.Statx(unix.AT_FDCWD, dir, how, 0, &st)
		if err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 { // before Linux 5.8
			return false
		}
		if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			break
		}
		if beneath.Detach(dir) != nil {
			return false
		}
	}
	// An empty directory has no mount points.
	d, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// SubPath names a part of a volume that one container mounts.
type SubPath struct {
	Volume, Container string
	// Index is that of the mount in the container.
	Index int
	// Path is relative to the volume.
	Path string
}

// bindSubPath binds root/sub at target, making missing directories with the
// volume's own mode, as the kubelet does. No link inside the volume leads out
// of it, also when it is changed meanwhile.
func bindSubPath(root, sub, target string) error {
	switch {
	case filepath.IsAbs(sub):
		return fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	case slices.Contains(strings.Split(sub, "/"), ".."):
		return fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
	case !filepath.IsLocal(sub):
		return fmt.Errorf("subPath %q must stay within the volume", sub)
	}
	d, err := beneath.Open(root)
	if err != nil {
		return err
	}
	defer d.Close()
	held, err := d.Hold(sub, beneath.LinksInside)
	if errors.Is(err, fs.ErrNotExist) {
		if err = mkdirSubPath(d, sub); err == nil {
			held, err = d.Hold(sub, beneath.LinksInside)
		}
	}
	if err != nil {
		return fmt.Errorf("subPath %q: %w", sub, err)
	}
	defer held.Close()
	st, err := held.Stat()
	if err != nil {
		return err
	}
	if err := unmount(target); err != nil {
		return err
	}
	if err := placeFor(target, st.IsDir()); err != nil {
		return err
	}
	src := fmt.Sprintf("/proc/self/fd/%d", held.Fd())
	if err := unix.Mount(src, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind subPath %q: %w", sub, err)
	}
	return nil
}

func mkdirSubPath(d *beneath.Dir, sub string) error {
	volume, err := d.Self()
	if err != nil {
		return err
	}
	return d.MkdirAll(sub, fileMode(volume.Stat.Mode))
}

// fileMode is what the kernel calls a file's permissions and special bits.
func fileMode(bits uint32) fs.FileMode {
	mode := fs.FileMode(bits).Perm()
	for bit, m := range map[uint32]fs.FileMode{
		unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky,
	} {
		if bits&bit != 0 {
			mode |= m
		}
	}
	return mode
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
