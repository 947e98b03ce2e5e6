package quota

import (
	"errors"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernel is the edge of a node: dir is any directory of the file system.
type kernel struct{ dir string }

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, extSize, extents, project, cowExtSize uint32
	_                                            [8]byte
}

// FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, and the flag that what is made in a directory
// has its project.
const (
	getXattr       = 2<<30 | 28<<16 | 'X'<<8 | 31
	setXattr       = 1<<30 | 28<<16 | 'X'<<8 | 32
	projectInherit = 0x200
)

// Set implements edge.
func (kernel) Set(dir *os.File, project uint32) error {
	var a fsxattr
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getXattr, uintptr(unsafe.Pointer(&a))); e != 0 {
		return &fs.PathError{Op: "get the project", Path: dir.Name(), Err: e}
	}
	a.project = project
	a.flags |= projectInherit
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), setXattr, uintptr(unsafe.Pointer(&a))); e != 0 {
		return &fs.PathError{Op: "set the project", Path: dir.Name(), Err: e}
	}
	return nil
}

// On implements edge.
func (k kernel) On(dir *os.File) (bool, error) {
	var here, there unix.Stat_t
	if err := unix.Stat(k.dir, &here); err != nil {
		return false, &fs.PathError{Op: "stat", Path: k.dir, Err: err}
	}
	if err := unix.Fstat(int(dir.Fd()), &there); err != nil {
		return false, &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	return here.Dev == there.Dev, nil
}

// Of implements edge.
func (kernel) Of(dir *os.File) (uint32, error) {
	var a fsxattr
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getXattr, uintptr(unsafe.Pointer(&a))); e != 0 {
		return 0, &fs.PathError{Op: "get the project", Path: dir.Name(), Err: e}
	}
	return a.project, nil
}

// diskQuota is struct if_dqblk of linux/quota.h.
type diskQuota struct {
	hard, soft         uint64 // KiB
	bytes              uint64
	hardFiles, softF   uint64
	inodes             uint64
	bytesTime, inodesT uint64
	valid, _           uint32
}

// Commands of linux/quota.h, for projects.
const (
	getQuota   = 0x800007<<8 | 2
	setQuota   = 0x800008<<8 | 2
	validLimit = 1
	kib        = 1 << 10
)

func (k kernel) control(what string, command uintptr, project uint32, q *diskQuota) error {
	dir, err := os.Open(k.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, dir.Fd(), command, uintptr(project), uintptr(unsafe.Pointer(q)), 0, 0)
	if e != 0 {
		return &fs.PathError{Op: what, Path: k.dir, Err: e}
	}
	return nil
}

// Limit implements edge.
func (k kernel) Limit(project uint32, bytes int64) error {
	q := diskQuota{hard: (uint64(bytes) + kib - 1) / kib, valid: validLimit}
	return k.control("limit a project", setQuota, project, &q)
}

// Use implements edge.
func (k kernel) Use(project uint32) (Usage, error) {
	var q diskQuota
	err := k.control("measure a project", getQuota, project, &q)
	if errors.Is(err, fs.ErrNotExist) { // XFS
		return Usage{}, nil
	}
	return Usage{Bytes: int64(q.bytes), Inodes: int64(q.inodes), Limit: int64(q.hard * kib)}, err
}
