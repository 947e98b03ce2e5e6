package btrfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNone tells that something is no subvolume.
var ErrNone = errors.New("no subvolume of btrfs")

// On tells whether a path is on btrfs.
func On(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return uint32(st.Type) == unix.BTRFS_SUPER_MAGIC, nil
}

// Create makes a subvolume at a path.
func Create(path string) error {
	return within(path, func(dir *os.File, name string) error {
		var a volumeArgs
		if err := a.named(name); err != nil {
			return err
		}
		return call(dir, "make a subvolume", volumeCreate, unsafe.Pointer(&a))
	})
}

// Snapshot makes a subvolume at a path with what another has now, and without the
// subvolumes that lie in it. It shares all blocks.
func Snapshot(of *os.File, path string, fixed bool) error {
	return within(path, func(dir *os.File, name string) error {
		a := volumeArgs{fd: int64(of.Fd())}
		if fixed {
			a.flags = readOnly
		}
		if err := a.named(name); err != nil {
			return err
		}
		return call(dir, "make a snapshot", snapshotCreate, unsafe.Pointer(&a))
	})
}

func within(path string, do func(dir *os.File, name string) error) error {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return do(dir, filepath.Base(path))
}

// Open opens a subvolume, not what a link at its path leads to. ErrNone where there is
// something else, fs.ErrNotExist where there is nothing.
func Open(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s: %w", path, ErrNone)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var st unix.Statfs_t
	var is unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &st), unix.Fstat(fd, &is)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if uint32(st.Type) != unix.BTRFS_SUPER_MAGIC || is.Ino != firstFree {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrNone), f.Close())
	}
	return f, nil
}

// ID is the number of the subvolume that an open file is in.
func ID(f *os.File) (uint64, error) {
	var a struct {
		tree, object uint64
		_            [4080]byte
	}
	a.object = firstFree
	err := call(f, "look up a subvolume", inodeLookup, unsafe.Pointer(&a))
	return a.tree, err
}

// Writable lets a subvolume be written to, which its owner may have forbidden.
func Writable(f *os.File) error {
	var flags uint64
	if err := call(f, "read flags", volumeFlags, unsafe.Pointer(&flags)); err != nil || flags&readOnly == 0 {
		return err
	}
	flags &^= readOnly
	return call(f, "set flags", setVolumeFlags, unsafe.Pointer(&flags))
}

// openID opens a subvolume by its number: f is any file of the file system.
func openID(f *os.File, id uint64) (*os.File, error) {
	// struct btrfs_fid of the kernel: inode, subvolume, generation (0 for any).
	const withoutParent = 0x4d
	handle := make([]byte, 20)
	binary.LittleEndian.PutUint64(handle, firstFree)
	binary.LittleEndian.PutUint64(handle[8:], id)
	fd, err := unix.OpenByHandleAt(int(f.Fd()), unix.NewFileHandle(withoutParent, handle),
		unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, &fs.PathError{Op: "btrfs: open a subvolume", Path: fmt.Sprint(f.Name(), " ", id), Err: err}
	}
	return os.NewFile(uintptr(fd), fmt.Sprint("subvolume ", id)), nil
}

// Delete deletes a subvolume with all that lies in it, and its group; nothing there is
// no error. It may be repeated after it was interrupted.
func Delete(path string) error {
	f, err := Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	id, err := ID(f)
	if err != nil {
		return err
	}
	if err := deleteAll(dir, id); err != nil {
		return err
	}
	if simple, err := Simple(dir); err != nil || !simple {
		return err
	}
	return Sweep(dir)
}

// deleteAll deletes subvolumes, those that lie in others first.
func deleteAll(f *os.File, id uint64) error {
	for stack := []uint64{id}; len(stack) > 0; {
		top := stack[len(stack)-1]
		children, err := search(f, rootTree, top, rootRef, 0)
		if err != nil {
			return err
		}
		if len(children) > 0 {
			if err := writable(f, top); err != nil {
				return err
			}
			if len(stack) > maxNested {
				return ErrTooMany
			}
			stack = append(stack, children[0])
			continue
		}
		err = destroy(f, top)
		if errors.Is(err, unix.EDQUOT) {
			if err = lift(f, stack...); err == nil {
				err = destroy(f, top)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		stack = stack[:len(stack)-1]
	}
	return nil
}

// writable is Writable by number: nothing can be deleted out of one that is read-only.
func writable(f *os.File, id uint64) error {
	volume, err := openID(f, id)
	if err != nil {
		return err
	}
	return errors.Join(Writable(volume), volume.Close())
}

func destroy(f *os.File, id uint64) error {
	a := volumeArgs{flags: byID}
	binary.NativeEndian.PutUint64(a.name[:], id)
	return call(f, fmt.Sprint("delete subvolume ", id), volumeDestroy, unsafe.Pointer(&a))
}
