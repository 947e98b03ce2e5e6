package btrfstest

import (
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stray makes a subvolume as who wants to get round a limit does: it is in the groups
// that are named, which needs no rights, and not in that of what it lies in.
func Stray(path string, groups ...uint64) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	inherit := make([]uint64, 9) // struct btrfs_qgroup_inherit
	for _, g := range groups {
		if g != 0 {
			inherit[1]++
			inherit = append(inherit, g)
		}
	}
	const create, named = 1<<30 | 4096<<16 | 0x94<<8 | 24, 1 << 2
	a := struct {
		fd                   int64
		transid, flags, size uint64
		inherit              *uint64
		_                    [2]uint64
		name                 [4040]byte
	}{flags: named, size: uint64(8 * len(inherit)), inherit: &inherit[0]}
	copy(a.name[:], filepath.Base(path))
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), create, uintptr(unsafe.Pointer(&a))); e != 0 {
		return &os.PathError{Op: "make a subvolume", Path: path, Err: e}
	}
	return nil
}
