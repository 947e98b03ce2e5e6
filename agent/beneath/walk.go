package beneath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxDepth is how many directories a walk goes down: it holds a descriptor for
// each, and a process may make a tree deeper than any path can name.
const maxDepth = 512

// ErrTooDeep is told of a tree that is deeper than a walk goes.
var ErrTooDeep = fmt.Errorf("the tree is deeper than %d directories", maxDepth)

// Entry is one file that a walk found, held by a descriptor of its path.
type Entry struct {
	Path string // below the walked directory, "." for itself
	Stat unix.Stat_t
	fd   int
}

// IsDir tells whether the entry is a directory.
func (e *Entry) IsDir() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsLink tells whether the entry is a symbolic link.
func (e *Entry) IsLink() bool { return e.Stat.Mode&unix.S_IFMT == unix.S_IFLNK }

// Chown changes the owner of exactly this file, a link's own too; -1 keeps one.
func (e *Entry) Chown(uid, gid int) error {
	if err := unix.Fchownat(e.fd, "", uid, gid, unix.AT_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "chown", Path: e.Path, Err: err}
	}
	return unix.Fstat(e.fd, &e.Stat) // the kernel drops set-user-ID bits
}

// Chmod changes the mode bits of exactly this file; a link has none.
func (e *Entry) Chmod(bits uint32) error {
	if e.IsLink() {
		return &fs.PathError{Op: "chmod", Path: e.Path, Err: unix.EOPNOTSUPP}
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, self(e.fd), bits&0o7777, 0); err != nil {
		return &fs.PathError{Op: "chmod", Path: e.Path, Err: err}
	}
	return unix.Fstat(e.fd, &e.Stat)
}

// Open opens a regular file for reading.
func (e *Entry) Open() (*os.File, error) {
	if e.Stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &fs.PathError{Op: "open", Path: e.Path, Err: ErrNotRegular}
	}
	fd, err := unix.Open(self(e.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: e.Path, Err: err}
	}
	return os.NewFile(uintptr(fd), e.Path), nil
}

// Readlink reads where exactly this link leads.
func (e *Entry) Readlink() (string, error) {
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(e.fd, "", b)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: e.Path, Err: err}
	}
	return string(b[:n]), nil
}

// Xattrs reads the extended attributes of exactly this file; none where the file system
// knows none. A list or a value of more than limit bytes is an error.
func (e *Entry) Xattrs(limit int) (map[string]string, error) {
	b := make([]byte, limit)
	n, err := unix.Listxattr(self(e.fd), b)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "listxattr", Path: e.Path, Err: err}
	}
	out := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimRight(string(b[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		n, err := unix.Getxattr(self(e.fd), name, b)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "getxattr " + name, Path: e.Path, Err: err}
		}
		out[name] = string(b[:n])
	}
	return out, nil
}

// Setxattr sets an extended attribute of exactly this file.
func (e *Entry) Setxattr(name string, value []byte) error {
	if err := unix.Setxattr(self(e.fd), name, value, 0); err != nil {
		return &fs.PathError{Op: "setxattr " + name, Path: e.Path, Err: err}
	}
	return nil
}

// All calls fn for a file, or for a directory and everything below it as Walk does: for
// the directory itself last. Only root may be able to change the directories that the
// path leads through.
func All(path string, fn func(*Entry) error) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	e := &Entry{Path: ".", fd: fd}
	if err := unix.Fstat(fd, &e.Stat); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if !e.IsDir() {
		return fn(e)
	}
	sub, err := openAt(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, NoLinks)
	if err != nil {
		return err
	}
	return errors.Join(walk(os.NewFile(uintptr(sub), "."), 1, fn), fn(e))
}

// Self is the directory's own entry. It is valid until the directory is closed.
func (d *Dir) Self() (*Entry, error) {
	e := &Entry{Path: ".", fd: int(d.self.Fd())}
	return e, unix.Fstat(e.fd, &e.Stat)
}

// Walk calls fn for everything below a directory (by its path in this one), for
// a directory before its content. What vanishes meanwhile and what is mounted
// there is left out. An entry is valid during its call alone.
func (d *Dir) Walk(name string, fn func(*Entry) error) error {
	fd, err := openAt(int(d.self.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, NoLinks)
	if err != nil {
		return err
	}
	return walk(os.NewFile(uintptr(fd), "."), 1, fn)
}

// walk visits what lies in dir, and closes it.
func walk(dir *os.File, depth int, fn func(*Entry) error) error {
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := visit(dir, name, depth, fn); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// batch is how many names of a directory are read at once.
const batch = 512

func visit(dir *os.File, name string, depth int, fn func(*Entry) error) error {
	fd, err := openAt(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW, NoLinks|unix.RESOLVE_NO_XDEV)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EXDEV) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	e := &Entry{Path: filepath.Join(dir.Name(), name), fd: fd}
	if err := unix.Fstat(fd, &e.Stat); err != nil {
		return &fs.PathError{Op: "stat", Path: e.Path, Err: err}
	}
	if err := fn(e); err != nil || !e.IsDir() {
		return err
	}
	if depth == maxDepth {
		return ErrTooDeep
	}
	sub, err := openAt(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, NoLinks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return walk(os.NewFile(uintptr(sub), e.Path), depth+1, fn)
}

// maxLinked is how many files with several links are told apart: whoever fills
// the tree decides how many there are, and each takes memory.
const maxLinked = 1 << 18

// Usage is what the files of a tree take on the disk, the directory itself
// included; a file with several links counts once. Beyond maxLinked such files
// each of their links counts its part.
func Usage(ctx context.Context, path string) (bytes, inodes int64, err error) {
	d, err := Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer d.Close()
	return d.usage(ctx, maxLinked)
}

// UsageBelow is Usage of a directory by its path in the file system, which begins with
// dir's; below dir it leads through no links.
func UsageBelow(ctx context.Context, dir, path string) (bytes, inodes int64, err error) {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return 0, 0, err
	}
	d, err := Open(dir)
	if err != nil {
		return 0, 0, err
	}
	defer d.Close()
	sub, err := d.Sub(name)
	if err != nil {
		return 0, 0, err
	}
	defer sub.Close()
	return sub.usage(ctx, maxLinked)
}

func (d *Dir) usage(ctx context.Context, apart int) (bytes, inodes int64, err error) {
	type inode struct{ dev, ino uint64 }
	linked := map[inode]bool{}
	add := func(e *Entry) error {
		if e.Stat.Nlink > 1 && !e.IsDir() {
			id := inode{e.Stat.Dev, e.Stat.Ino}
			if linked[id] {
				return ctx.Err()
			}
			if len(linked) >= apart {
				inodes++
				bytes += e.Stat.Blocks * 512 / int64(e.Stat.Nlink)
				return ctx.Err()
			}
			linked[id] = true
		}
		inodes++
		bytes += e.Stat.Blocks * 512
		return ctx.Err()
	}
	own, err := d.Self()
	if err == nil {
		err = errors.Join(add(own), d.Walk(".", add))
	}
	return bytes, inodes, err
}
