package quota

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/csi/btrfs"
)

// ErrNone tells that a directory has no limit.
var ErrNone = errors.New("the directory has no quota")

// Disk limits directories of one file system.
type Disk struct {
	// How says by what.
	How      string
	projects *projects // nil on btrfs
}

// Open finds out how directories below one, which is there, can be limited. Where they
// cannot, the disk is nil and why says what lacks.
func Open(dir string) (d *Disk, why string, err error) {
	if is, err := btrfs.On(dir); err != nil || is {
		if err == nil {
			d, why, err = openBtrfs(dir)
		}
		return d, why, err
	}
	m, err := mountOf(dir)
	if err != nil {
		return nil, "", err
	}
	if m.FSType != "ext4" && m.FSType != "xfs" {
		return nil, m.FSType + " has no quotas of directories", nil
	}
	options := strings.Split(m.VFSOptions, ",")
	if !slices.Contains(options, "prjquota") && !slices.Contains(options, "pquota") {
		return nil, m.FSType + " at " + m.Mountpoint + " is mounted without prjquota", nil
	}
	k := kernel{dir: dir}
	if _, err := k.Use(0); err != nil {
		return nil, fmt.Sprintf("the kernel does not tell of the project quotas of %s: %v", m.Mountpoint, err), nil
	}
	return &Disk{How: "project quotas of " + m.FSType, projects: newProjects(k)}, "", nil
}

func openBtrfs(dir string) (*Disk, string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	on, err := btrfs.Simple(f)
	if err != nil || on {
		return &Disk{How: "simple quotas of btrfs"}, "", err
	}
	return nil, "simple quotas of btrfs are off at " + dir + ": `btrfs quota enable --simple` turns them on " +
		"(Linux 6.7)", nil
}

// mountOf is the mount that a directory is in.
func mountOf(dir string) (*mountinfo.Info, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_MNT_ID, &st); err != nil {
		return nil, &fs.PathError{Op: "statx", Path: dir, Err: err}
	}
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		is := uint64(m.ID) == st.Mnt_id
		return !is, is
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("no mount has %s", dir)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// Take gives a project that nobody has, or the same again after a restart; 0 where
// directories need none.
func (d *Disk) Take(project uint32) (uint32, error) {
	if d.projects == nil {
		return 0, nil
	}
	return d.projects.take(project)
}

// Give gives a project back that was removed, when nobody's record has it any more.
func (d *Disk) Give(project uint32) {
	if d.projects != nil {
		d.projects.give(project)
	}
}

// Mkdir makes a directory that takes at most so many bytes.
func (d *Disk) Mkdir(path string, project uint32, bytes int64) error {
	if d.projects != nil {
		return d.projects.mkdir(path, project, bytes)
	}
	if err := btrfs.Create(path); err != nil {
		return err
	}
	f, err := btrfs.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return btrfs.Limit(f, bytes)
}

// Uncounted is the number of inodes where file systems do not count them.
const Uncounted = -1

// Used is what a directory that Mkdir made takes; ErrNone where nobody counts it. What
// a process in the node's own user namespace made, it may have put into another project:
// then ownUsers is false, and nothing is told.
func (d *Disk) Used(path string, project uint32, ownUsers bool) (Usage, error) {
	switch {
	case d.projects != nil && !ownUsers:
		return Usage{}, ErrNone
	case d.projects != nil:
		return d.projects.used(project)
	}
	f, err := btrfs.Open(path)
	if errors.Is(err, btrfs.ErrNone) {
		return Usage{}, ErrNone
	}
	if err != nil {
		return Usage{}, err
	}
	defer f.Close()
	if _, err := btrfs.Adopt(f); err != nil {
		return Usage{}, err
	}
	has, err := btrfs.Used(f)
	if errors.Is(err, fs.ErrNotExist) { // somebody turned quotas off
		return Usage{}, ErrNone
	}
	return Usage{Bytes: has.Bytes, Inodes: Uncounted, Limit: has.Limit}, err
}

// Share limits another directory of the file system, which is there, on behalf of one
// that Mkdir made: where there are projects both have one, and one limit. On btrfs it has
// a limit of its own, if it is empty or a subvolume; what is made in it is deleted by
// RemoveTree. Nothing below parent is followed. ErrNone where parent is on a disk that
// cannot.
func (d *Disk) Share(parent *os.File, name string, project uint32, bytes int64) error {
	path := fmt.Sprintf("/proc/self/fd/%d/%s", parent.Fd(), name)
	if d.projects != nil {
		return d.projects.share(path, project)
	}
	if is, err := btrfs.On(filepath.Dir(path)); err != nil || !is {
		return errors.Join(err, ErrNone)
	}
	if on, err := btrfs.Simple(parent); err != nil || !on {
		return errors.Join(err, ErrNone)
	}
	f, err := btrfs.Open(path)
	if errors.Is(err, btrfs.ErrNone) {
		return d.replace(parent, name, bytes)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return btrfs.Limit(f, bytes)
}

// replace has a subvolume in the place of an empty directory.
func (d *Disk) replace(parent *os.File, name string, bytes int64) error {
	var st unix.Stat_t
	fd := int(parent.Fd())
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil {
		return &fs.PathError{Op: "remove an empty directory", Path: name, Err: err}
	}
	path := fmt.Sprintf("/proc/self/fd/%d/%s", fd, name)
	if err := d.Mkdir(path, 0, bytes); err != nil {
		return errors.Join(err, unix.Mkdirat(fd, name, st.Mode&0o7777))
	}
	f, err := btrfs.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(f.Chown(int(st.Uid), int(st.Gid)), f.Chmod(fs.FileMode(st.Mode&0o777)))
}

// Remove deletes a directory that Mkdir made, and its limit. What is there that somebody
// else made, is deleted as any other; nothing there is no error. Where no record tells
// the project, 0, the directory itself does.
func (d *Disk) Remove(path string, project uint32) error {
	if d.projects != nil && project == 0 {
		project = d.projects.of(path)
	}
	if err := Remove(path); err != nil || d.projects == nil || project == 0 {
		return err
	}
	return d.projects.kernel.Limit(project, 0)
}

// Remove deletes a directory, which may be a subvolume.
func Remove(path string) error {
	if err := btrfs.Delete(path); !errors.Is(err, btrfs.ErrNone) {
		return err
	}
	return beneath.RemoveAll(path)
}

// RemoveTree deletes a directory in which some may be subvolumes.
func RemoveTree(path string) error {
	if is, err := btrfs.On(path); err != nil || !is {
		return beneath.RemoveAll(path) // it may be gone
	}
	return errors.Join(removeWithin(path), beneath.RemoveAll(path))
}

// removeWithin deletes the subvolumes that lie in a directory.
func removeWithin(path string) error {
	parent, err := beneath.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer parent.Close()
	dir, err := parent.OpenDir(filepath.Base(path), beneath.NoLinks)
	if err != nil {
		return nil // not a directory: there is nothing in it
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	errs := []error{err}
	for _, name := range names {
		err := btrfs.Delete(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name))
		if !errors.Is(err, btrfs.ErrNone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
