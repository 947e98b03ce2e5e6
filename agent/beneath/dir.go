package beneath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Links says which symbolic links a path may lead through.
type Links uint64

const (
	// NoLinks refuses every link.
	NoLinks Links = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	// LinksInside allows links that stay below the directory.
	LinksInside Links = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS
	// LinksOfRoot takes the directory for the root of all links, as a process in
	// an image does.
	LinksOfRoot Links = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
)

// Errors about what was found.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("file too large")
)

// Dir is an opened directory.
type Dir struct {
	// Root makes, renames and removes names. What exists is opened by the
	// methods of Dir, which do not wait for FIFOs as Root's do.
	Root *os.Root
	self *os.File
}

// Open opens a directory whose path only root can change.
func Open(path string) (*Dir, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &Dir{Root: root, self: self}, nil
}

// Close lets go of the directory.
func (d *Dir) Close() error { return errors.Join(d.self.Close(), d.Root.Close()) }

// Chmod changes the directory's own mode.
func (d *Dir) Chmod(mode fs.FileMode) error { return d.self.Chmod(mode) }

// attempts bounds how often a path is tried again: openat2(2) gives up with
// EAGAIN when another process renames directories meanwhile.
const attempts = 64

// openAt opens a name below dir, whatever it is.
func openAt(dir int, name string, flags int, how Links) (int, error) {
	err := error(unix.EAGAIN)
	for i := 0; i < attempts && (err == unix.EAGAIN || err == unix.EINTR); i++ {
		var fd int
		fd, err = unix.Openat2(dir, name, &unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: uint64(how)})
		if err == nil {
			return fd, nil
		}
	}
	return -1, &fs.PathError{Op: "open", Path: name, Err: err}
}

// Hold opens a name by its path alone (O_PATH): nothing is read or written,
// but what is found stays the same file whatever becomes of the name.
func (d *Dir) Hold(name string, links Links) (*os.File, error) {
	fd, err := openAt(int(d.self.Fd()), name, unix.O_PATH, links)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.self.Name(), name)), nil
}

// OpenFile opens a regular file that exists.
func (d *Dir) OpenFile(name string, flags int, links Links) (*os.File, error) {
	held, err := d.Hold(name, links)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	st, err := held.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	}
	fd, err := unix.Open(self(int(held.Fd())), flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), held.Name()), nil
}

// OpenBelow opens a regular file for reading by its path in the file system,
// which begins with dir's; below dir it leads through no links.
func OpenBelow(dir, path string) (*os.File, error) {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return nil, err
	}
	d, err := Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.OpenFile(name, os.O_RDONLY, NoLinks)
}

// Sub opens a directory below for itself: what is named in it leads nowhere else.
func (d *Dir) Sub(name string) (*Dir, error) {
	dir, err := d.OpenDir(name, NoLinks)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return Open(self(int(dir.Fd())))
}

// ReadFile reads a regular file of at most limit bytes.
func (d *Dir) ReadFile(name string, limit int64, links Links) ([]byte, error) {
	f, err := d.OpenFile(name, os.O_RDONLY, links)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, limit)}
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

// self is the path of an open descriptor, for calls that take none.
func self(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// OpenDir opens a directory below this one.
func (d *Dir) OpenDir(name string, links Links) (*os.File, error) {
	fd, err := openAt(int(d.self.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, links)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.self.Name(), name)), nil
}

// maxNames bounds how many names of a directory are listed.
const maxNames = 100_000

// Names lists a directory below this one, in no order.
func (d *Dir) Names(name string) ([]string, error) {
	dir, err := d.OpenDir(name, NoLinks)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxNames)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// MkdirAll makes the directories of a path that are missing, with exactly this
// mode (and the set-group-ID bit that the file system lets them inherit). Links
// that stay inside may be part of the path.
func (d *Dir) MkdirAll(path string, mode fs.FileMode) error {
	parent := "."
	for part := range strings.SplitSeq(filepath.Clean(path), "/") {
		if err := d.mkdir(parent, part, mode); err != nil {
			return err
		}
		parent = filepath.Join(parent, part)
	}
	return nil
}

// modeBits are those that a directory is made with.
const modeBits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

func (d *Dir) mkdir(parent, name string, mode fs.FileMode) error {
	dir, err := d.OpenDir(parent, LinksInside)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = unix.Mkdirat(int(dir.Fd()), name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: filepath.Join(parent, name), Err: err}
	}
	fd, err := openAt(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY, NoLinks)
	if err != nil {
		return err
	}
	made := os.NewFile(uintptr(fd), name)
	defer made.Close()
	st, err := made.Stat()
	if err != nil {
		return err
	}
	return made.Chmod(mode&modeBits | st.Mode()&fs.ModeSetgid)
}
