package beneath

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrMounted is told of a tree in which something is mounted.
var ErrMounted = errors.New("something is mounted there")

// RemoveAll removes a file or a whole tree; what is not there is no error. It
// neither follows links nor enters mounts. Trees may be deeper than paths are
// long and than the agent may have open files: directories that lie too deep
// are moved to the top and removed from there. What was made immutable (chattr +i, +a)
// goes, too.
func RemoveAll(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := (&remover{top: -1}).remove(int(parent.Fd()), filepath.Base(path), 0); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// RemoveAll removes what a name of the directory stands for.
func (d *Dir) RemoveAll(name string) error {
	if name != filepath.Base(name) || name == ".." {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrInvalid}
	}
	return (&remover{top: -1}).remove(int(d.self.Fd()), name, 0)
}

// remover removes one tree.
type remover struct{ top int } // the tree's own directory

func (r *remover) remove(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if errors.Is(err, unix.EPERM) && release(dir, name, depth > 0) {
		err = unix.Unlinkat(dir, name, 0)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &fs.PathError{Op: "unlink", Path: name, Err: err}
	}
	if depth == maxDepth {
		err := unix.Renameat(dir, name, r.top, "..deep-"+rand.Text())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "rename", Path: name, Err: err}
		}
		return nil
	}
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, NoLinks|unix.RESOLVE_NO_XDEV)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("remove %s: %w", name, ErrMounted)
	case errors.Is(err, unix.ENOTDIR):
		return &fs.PathError{Op: "unlink", Path: name, Err: unix.EPERM}
	case err != nil:
		return err
	}
	if depth == 0 {
		r.top = fd
	}
	if err := r.empty(os.NewFile(uintptr(fd), name), depth); err != nil {
		return err
	}
	if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "rmdir", Path: name, Err: err}
	}
	return nil
}

// empty removes what lies in dir, and closes it. It begins again after each
// batch, as a directory that changes is not read reliably on.
func (r *remover) empty(dir *os.File, depth int) error {
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(batch)
		if len(names) == 0 {
			if err == nil || errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var failed []error
		for _, name := range names {
			if err := r.remove(int(dir.Fd()), name, depth+1); err != nil && len(failed) < maxErrors {
				failed = append(failed, err)
			}
		}
		if len(failed) > 0 {
			return errors.Join(failed...)
		}
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
	}
}

// The attributes of files and directories that nobody can remove, in linux/fs.h: those of
// "chattr +i" and "chattr +a".
const fixed = 0x10 | 0x20

// release takes such attributes from what a name stands for, and from its directory if that
// is of the tree; it tells whether there were any. A file that has other names, which may lie
// elsewhere, keeps them.
func release(dir int, name string, within bool) bool {
	freed := within && unfix(dir)
	held, err := openAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW, NoLinks|unix.RESOLVE_NO_XDEV)
	if err != nil {
		return freed
	}
	defer unix.Close(held)
	var st unix.Stat_t
	if err := unix.Fstat(held, &st); err != nil {
		return freed
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && (kind != unix.S_IFREG || st.Nlink > 1) {
		return freed // a device is not opened
	}
	fd, err := unix.Open(self(held), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return freed
	}
	defer unix.Close(fd)
	return unfix(fd) || freed
}

// unfix takes the attributes from an open file, and tells whether it had any.
func unfix(fd int) bool {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&fixed == 0 {
		return false
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags&^fixed) == nil
}

// maxErrors is how many errors of one directory are told.
const maxErrors = 8

// Detach unmounts what is mounted at path (mountinfo's: absolute and without
// links), also when it is busy. A path that was changed into one with links is
// refused, one where nothing is mounted is no error.
func Detach(path string) error {
	fd, err := openAt(unix.AT_FDCWD, path, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_MAGICLINKS)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Unmount(self(fd), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}
