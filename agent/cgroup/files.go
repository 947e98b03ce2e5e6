package cgroup

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/containerd/cgroups/v3/cgroup1"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/host"
)

// files reads the files of one group in one hierarchy, which every measurement of every pod
// does a dozen times: beneath the group's opened directory, into a text that others use again,
// and without the Go runtime's poller, which os.Open asks. The library makes a goroutine for
// each controller and reads all files of it.
type files struct {
	dir  int // a descriptor
	text *[]byte
}

// texts hold what most files do.
var texts = sync.Pool{New: func() any {
	text := make([]byte, 0, 8<<10)
	return &text
}}

// inside opens the directory of a group; close must follow.
func inside(dir string) (*files, error) {
	fd, err := uninterrupted(func() (int, error) {
		return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &files{fd, texts.Get().(*[]byte)}, nil
}

func (f *files) close() {
	unix.Close(f.dir)
	texts.Put(f.text)
}

// contents is a file's text until the next one is read, nil if it cannot be read.
func (f *files) contents(name string) []byte {
	text, err := f.read(name)
	if err != nil {
		return nil
	}
	return text
}

func (f *files) read(name string) ([]byte, error) {
	fd, err := uninterrupted(func() (int, error) { return unix.Openat(f.dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	text := (*f.text)[:0]
	for {
		if len(text) == cap(text) {
			text = append(text, 0)[:len(text)]
		}
		n, err := uninterrupted(func() (int, error) { return unix.Read(fd, text[len(text):cap(text)]) })
		switch {
		case err != nil:
			return nil, err
		case n == 0:
			*f.text = text
			return text, nil
		}
		text = text[:len(text)+n]
	}
}

// uninterrupted calls again what a signal interrupted.
func uninterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// number is a file's only value, 0 if it is none, as "max".
func (f *files) number(name string) uint64 { return number(f.contents(name)) }

// number is what a text begins with, 0 for another text.
func number(text []byte) (n uint64) {
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}

// value is one that is wanted of a file of "key value" lines, times its unit.
type value struct {
	key  string
	to   *uint64
	unit uint64
}

// values reads those of a file that are there; others stay as they are.
func (f *files) values(name string, wanted ...value) {
	for line := range bytes.Lines(f.contents(name)) {
		key, text, _ := bytes.Cut(line, []byte(" "))
		for _, w := range wanted {
			if string(key) == w.key {
				*w.to = number(text) * w.unit
			}
		}
	}
}

// stall is that of cpu, memory or io; nil where the kernel does not tell.
func (f *files) stall(resource string) *host.Pressure {
	text := f.contents(resource + ".pressure")
	if text == nil {
		return nil
	}
	p := host.ParsePressure(text)
	return &p
}

// dir1 is the directory of a group in one hierarchy of v1, "" without the hierarchy.
func (r *Root) dir1(path string, name cgroup1.Name) string {
	for _, s := range r.v1 {
		if s.Name() == name {
			return s.(hierarchy).Path(clean(path))
		}
	}
	return ""
}

// dir2 is the directory of a group of cgroup2, "" without that.
func (r *Root) dir2(path string) string {
	if r.unified == "" {
		return ""
	}
	return filepath.Join(r.unified, path)
}
