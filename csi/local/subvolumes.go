package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-project/shoal/csi/btrfs"
)

// btrfsType is the file system of volumes that are subvolumes of the disk's own.
const btrfsType = "btrfs"

// subvolumes is the back end of volumes with the file system btrfs. Their size holds
// against who writes files in them: package btrfs says against whom it does not.
type subvolumes struct {
	dir string // of the driver
	// lacks is why none can be made here, "" where they can.
	lacks string
	done  func(step string)
	log   *slog.Logger

	mu sync.Mutex
	on bool // simple quotas are
}

// openSubvolumes finds out whether there can be subvolumes, and has those that are
// there keep to their limits.
func (d *Driver) openSubvolumes(c Config) error {
	s := &subvolumes{dir: c.Directory, done: func(step string) { d.volumes.done(step) }, log: d.log}
	d.subvolumes = s
	var err error
	if s.lacks, s.on, err = lacksSubvolumes(c.Directory); err != nil {
		return err
	}
	if c.FSType == btrfsType && s.lacks != "" {
		return errors.New("file system btrfs: " + s.lacks)
	}
	if !s.on {
		return nil
	}
	ids, err := d.volumes.ids()
	if err != nil {
		return err
	}
	all := map[string]int64{}
	for _, id := range ids {
		all[id] = 0
	}
	if err := d.limit(all); err != nil {
		d.log.Warn("volumes may have another limit than they should", "err", err)
	}
	return nil
}

// lacksSubvolumes tells why there can be no subvolumes in a directory, "" where there
// can, and whether simple quotas are on already. Where the whole disk is the driver's it
// may turn them on: kernels before 6.7 do not mount it then.
func lacksSubvolumes(path string) (why string, on bool, err error) {
	is, err := btrfs.On(path)
	if err != nil {
		return "", false, err
	}
	if !is {
		return "the disk of " + path + " has another file system", false, nil
	}
	dir, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer dir.Close()
	mode, err := btrfs.Mode(dir)
	if err != nil || mode == btrfs.ModeSimple {
		return "", err == nil, err
	}
	if mode != "" {
		return "the disk of " + path + " has quotas that are not simple ones", false, nil
	}
	if !btrfs.KernelHasSimple() {
		return "the kernel has no simple quotas (Linux 6.7)", false, nil
	}
	mine, err := wholeDisk(path)
	if err == nil && !mine {
		why = "simple quotas are off on the disk of " + path + ", which others use too: " +
			"`btrfs quota enable --simple` turns them on"
	}
	return why, false, err
}

// wholeDisk tells whether a disk is mounted there and nowhere outside.
func wholeDisk(path string) (bool, error) {
	m, err := mounted(path)
	if err != nil || m == nil || m.Root != "/" {
		return false, err
	}
	others, err := mountinfo.GetMounts(func(o *mountinfo.Info) (skip, stop bool) {
		same := o.Major == m.Major && o.Minor == m.Minor && o.Mountpoint != m.Mountpoint
		return !same, same
	})
	return len(others) == 0, err
}

// begin turns simple quotas on before the first subvolume is made.
func (s *subvolumes) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lacks != "" {
		return errors.New("no volume with the file system btrfs: " + s.lacks)
	}
	if s.on {
		return nil
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := btrfs.Enable(dir); err != nil {
		return err
	}
	s.on = true
	s.log.Info("simple quotas are on now: kernels before 6.7 do not mount the disk any more", "dir", s.dir)
	return nil
}

// volume opens what is in a directory.
func (*subvolumes) volume(dir string) (*os.File, error) { return btrfs.Open(filepath.Join(dir, data)) }

// settled has a new subvolume, which lasts with the kernel's next transaction, on disk.
func (s *subvolumes) settled(f *os.File) error {
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &fs.PathError{Op: "syncfs", Path: f.Name(), Err: err}
	}
	s.done("settled")
	return nil
}

// make implements backEnd.
func (s *subvolumes) make(_ context.Context, dir string, _ record, size int64) error {
	path := filepath.Join(dir, data)
	if err := btrfs.Create(path); err != nil {
		return err
	}
	s.done("subvolume made")
	if err := os.Chmod(path, 0o755); err != nil {
		return err
	}
	return s.limited(dir, size)
}

// limited limits a volume that nobody has yet.
func (s *subvolumes) limited(dir string, size int64) error {
	f, err := s.volume(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := btrfs.Limit(f, size); err != nil {
		return err
	}
	s.done("limited")
	return s.settled(f)
}

// copy implements backEnd. What is on its way to the disk the kernel has in the copy;
// so it counts for the source, which is measured after.
func (s *subvolumes) copy(_ context.Context, from, to string, size int64) (int64, error) {
	source, err := s.volume(from)
	if err != nil {
		return 0, err
	}
	defer source.Close()
	if err := btrfs.Snapshot(source, filepath.Join(to, data), size == 0); err != nil {
		return 0, err
	}
	s.done("copied")
	has, err := btrfs.Used(source)
	if errors.Is(err, fs.ErrNotExist) { // a snapshot: what it holds counts for others
		err = nil
	}
	if err != nil {
		return 0, err
	}
	if size > 0 {
		return has.Bytes, s.limited(to, size)
	}
	return has.Bytes, s.settled(source)
}

// owes implements backEnd.
func (s *subvolumes) owes(dir string) (int64, error) {
	f, err := s.volume(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	has, err := btrfs.Used(f)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // it has no limit since somebody turned quotas off, and cannot be mounted
	}
	return max(0, has.Limit-has.Bytes+has.Coming), err
}

// anew is how much more a volume may take of the disk when there is one more copy of
// it: what that keeps counts for the volume, which can be written anew all the same.
func (s *subvolumes) anew(dir string, size int64) (int64, error) {
	f, err := s.volume(dir)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := s.settled(f); err != nil {
		return 0, err
	}
	has, err := btrfs.Used(f)
	return max(0, size+has.Bytes-has.Limit), err
}

// limit has volumes, those that are there, keep to their size: beside it they may have
// what copies of them keep.
func (d *Driver) limit(volumes map[string]int64) error {
	if len(volumes) == 0 {
		return nil
	}
	d.limits.Lock()
	defer d.limits.Unlock()
	kept, err := d.kept()
	if err != nil {
		return err
	}
	var errs []error
	for id := range volumes {
		rec, size, err := d.volumes.get(id)
		if errors.Is(err, fs.ErrNotExist) || err == nil && rec.FSType != btrfsType {
			continue
		}
		if err == nil {
			err = d.subvolumes.limit(d.volumes.path(id), size+kept[id])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("limit volume %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// limit sets a limit. It is not made smaller than what is there: the kernel needs a
// while to give back what was deleted, and who has the volume is to notice nothing.
func (s *subvolumes) limit(dir string, bytes int64) error {
	f, err := s.volume(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	has, err := btrfs.Used(f)
	switch {
	case errors.Is(err, fs.ErrNotExist): // none yet
	case err != nil || has.Limit == bytes || bytes < has.Limit && has.Bytes > bytes:
		return err
	}
	defer s.done("limit set")
	return btrfs.Limit(f, bytes)
}

// kept is how much of what counts for volumes copies hold, at most, by the volumes. What
// earlier copies hold, counted when the last was made.
func (d *Driver) kept() (map[string]int64, error) {
	kept := map[string]int64{}
	for _, s := range []shelf{d.volumes, d.snapshots} {
		ids, err := s.ids()
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			rec, _, err := s.get(id)
			if err != nil {
				continue // it is being deleted
			}
			for of, bytes := range rec.Charged {
				kept[of] = max(kept[of], bytes)
			}
		}
	}
	return kept, nil
}

// counts has what was made inside count, and tells why a volume's size is no limit.
func (s *subvolumes) counts(f *os.File) error {
	if on, err := btrfs.Simple(f); err != nil || !on {
		return errors.Join(err, errors.New("simple quotas of the disk are off, so that the volume has no size: "+
			"`btrfs quota enable --simple` turns them on"))
	}
	strays, err := btrfs.Adopt(f)
	if strays > 0 {
		s.log.Warn("subvolumes that were made in a volume to count for nobody count now", "volume", f.Name(),
			"subvolumes", strays)
	}
	if err != nil {
		return fmt.Errorf("subvolumes in the volume are not counted: %w", err)
	}
	return nil
}

// strayPeriod is how long a subvolume that is made in a volume to count for nobody does.
const strayPeriod = 10 * time.Second

// countStrays looks for subvolumes that count for nobody until ctx ends.
func (d *Driver) countStrays(ctx context.Context) {
	if d.subvolumes.lacks != "" {
		return
	}
	each := time.NewTicker(strayPeriod)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-each.C:
		}
		ids, err := d.volumes.ids()
		if err != nil {
			d.log.Warn("volumes are not looked at for subvolumes that count for nobody", "err", err)
		}
		for _, id := range ids {
			f, err := d.subvolumes.volume(d.volumes.path(id))
			if err != nil {
				continue // an image, or it is being deleted
			}
			if err := errors.Join(d.subvolumes.counts(f), f.Close()); err != nil {
				d.log.Debug("a volume's size may be no limit", "volume", id, "err", err)
			}
		}
	}
}

// holds tells why a volume's size was no limit. A limit that was left higher while the
// kernel gave back what was deleted, is set.
func (d *Driver) holds(id string, size int64) error {
	f, err := d.subvolumes.volume(d.volumes.path(id))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := d.subvolumes.counts(f); err != nil {
		return err
	}
	has, err := btrfs.Used(f)
	if err == nil && has.Limit != size {
		if err = d.limit(map[string]int64{id: 0}); err == nil {
			has, err = btrfs.Used(f)
		}
	}
	if err != nil {
		return err
	}
	if over := has.Bytes - has.Limit; over > granularity {
		return fmt.Errorf("the volume takes %d bytes more of the disk than it may: subvolumes were made in it that "+
			"counted for nobody; delete what is not needed", over)
	}
	return nil
}

// view implements backEnd.
func (s *subvolumes) view(dir string) (*view, error) {
	path := filepath.Join(dir, data)
	var own unix.Stat_t
	if err := unix.Lstat(path, &own); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	end := filepath.Join("/", filepath.Base(dir), data)
	v := &view{is: func(m *mountinfo.Info) bool {
		var st unix.Stat_t
		return m.FSType == btrfsType && strings.HasSuffix(m.Root, end) &&
			unix.Lstat(m.Mountpoint, &st) == nil && st.Dev == own.Dev && st.Ino == own.Ino
	}}
	list, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		is := v.is(m)
		return !is, is
	})
	v.used = len(list) > 0
	return v, err
}

// attributes are the mount options that can differ between mounts of one file system.
var attributes = map[string]struct{ set, clear uint64 }{
	"ro": {unix.MOUNT_ATTR_RDONLY, 0}, "rw": {0, unix.MOUNT_ATTR_RDONLY},
	"nosuid": {unix.MOUNT_ATTR_NOSUID, 0}, "suid": {0, unix.MOUNT_ATTR_NOSUID},
	"nodev": {unix.MOUNT_ATTR_NODEV, 0}, "dev": {0, unix.MOUNT_ATTR_NODEV},
	"noexec": {unix.MOUNT_ATTR_NOEXEC, 0}, "exec": {0, unix.MOUNT_ATTR_NOEXEC},
	"noatime":     {unix.MOUNT_ATTR_NOATIME, unix.MOUNT_ATTR__ATIME},
	"relatime":    {0, unix.MOUNT_ATTR__ATIME},
	"strictatime": {unix.MOUNT_ATTR_STRICTATIME, unix.MOUNT_ATTR__ATIME},
	"nodiratime":  {unix.MOUNT_ATTR_NODIRATIME, 0},
	"defaults":    {},
}

// mount implements backEnd: the options are there from the first moment on.
func (s *subvolumes) mount(_ context.Context, dir, path string, _ record,
	how *csipb.VolumeCapability_MountVolume) error {
	var attr unix.MountAttr
	for _, o := range how.GetMountFlags() {
		a, ok := attributes[o]
		if !ok {
			return badOptions(btrfsType, how)
		}
		attr.Attr_set, attr.Attr_clr = attr.Attr_set&^a.clear|a.set, attr.Attr_clr&^a.set|a.clear
	}
	f, err := s.volume(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(btrfs.Writable(f), s.counts(f)); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	tree, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return &fs.PathError{Op: "open_tree", Path: f.Name(), Err: err}
	}
	defer unix.Close(tree)
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return &fs.PathError{Op: "mount_setattr", Path: f.Name(), Err: err}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "move_mount", Path: path, Err: err}
	}
	s.done("staged")
	return nil
}

// grow implements backEnd: a new limit holds at once.
func (*subvolumes) grow(context.Context, *view, record, string) error { return nil }

// usage implements backEnd: the kernel counts.
func (s *subvolumes) usage(dir, path string) ([]*csipb.VolumeUsage, error) {
	f, err := s.volume(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	has, err := btrfs.Used(f)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	left := min(max(0, has.Limit-has.Bytes), int64(st.Bavail)*st.Bsize)
	return []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: has.Limit, Used: has.Bytes, Available: left}}, nil
}
