package btrfs

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of linux/btrfs.h.
const (
	magic = 0x94

	treeSearch     = 3<<30 | 4096<<16 | magic<<8 | 17
	inodeLookup    = 3<<30 | 4096<<16 | magic<<8 | 18
	snapshotCreate = 1<<30 | 4096<<16 | magic<<8 | 23
	volumeCreate   = 1<<30 | 4096<<16 | magic<<8 | 24
	volumeFlags    = 2<<30 | 8<<16 | magic<<8 | 25
	setVolumeFlags = 1<<30 | 8<<16 | magic<<8 | 26
	fsInfo         = 2<<30 | 1024<<16 | magic<<8 | 31
	quotaControl   = 3<<30 | 16<<16 | magic<<8 | 40
	groupAssign    = 1<<30 | 24<<16 | magic<<8 | 41
	groupCreate    = 1<<30 | 16<<16 | magic<<8 | 42
	groupLimit     = 2<<30 | 48<<16 | magic<<8 | 43
	volumeDestroy  = 1<<30 | 4096<<16 | magic<<8 | 63
)

const (
	// firstFree is the number of the first subvolume that somebody made, and of the
	// root directory in each.
	firstFree = 256
	// readOnly and byID are flags of subvolumes and of calls for them.
	readOnly = 1 << 1
	byID     = 1 << 4
)

// volumeArgs is struct btrfs_ioctl_vol_args_v2.
type volumeArgs struct {
	fd      int64
	transid uint64
	flags   uint64
	_       [4]uint64
	name    [4040]byte // or a subvolume's number
}

// named has a name of one directory; longer ones the kernel would cut.
func (a *volumeArgs) named(name string) error {
	if len(name) > unix.NAME_MAX || name == "" {
		return unix.ENAMETOOLONG
	}
	copy(a.name[:], name)
	return nil
}

// call is an ioctl on an open file.
func call(f *os.File, what string, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg))
		if e == unix.EINTR {
			continue
		}
		if e == unix.ENOTCONN {
			return fmt.Errorf("btrfs: %s: quotas are off: %w", what, e)
		}
		if e != 0 {
			return &os.PathError{Op: "btrfs: " + what, Path: f.Name(), Err: e}
		}
		return nil
	}
}
