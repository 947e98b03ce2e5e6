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
// are moved to the top and removed from there.
func RemoveAll(path string) error {
	parent, err := os.Open(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return (&remover{top: -1}).remove(int(parent.Fd()), filepath.Base(path), 0)
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
