package logs

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// watcher hears of names that come to be in directories of logs, inotify(7). What is written
// is no event of it, unlike with package fsnotify, which wakes up for each line.
type watcher struct {
	f *os.File

	mu   sync.Mutex
	dirs map[int32]string
	ids  map[string]int32
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	return &watcher{f: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}, ids: map[string]int32{}}, nil
}

func (w *watcher) close() { w.f.Close() }

// add watches a directory until it is deleted.
func (w *watcher) add(dir *beneath.Dir, path string) error {
	self, err := dir.Root.Open(".")
	if err != nil {
		return err
	}
	defer self.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	raw, err := w.f.SyscallConn()
	if err != nil {
		return err
	}
	var id int
	var failed error
	err = raw.Control(func(fd uintptr) {
		id, failed = unix.InotifyAddWatch(int(fd), fmt.Sprintf("/proc/self/fd/%d", self.Fd()),
			unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
	})
	if err = cmp.Or(err, failed); err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	w.dirs[int32(id)], w.ids[path] = path, int32(id)
	return nil
}

func (w *watcher) has(path string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.ids[path]
	return ok
}

// run tells of names that are new in a directory, or that all are to be looked at, until
// the watcher is closed.
func (w *watcher) run(changed func(dir, name string), all func(dir string)) {
	buf := make([]byte, 16<<10)
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			id, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
			end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
			if end > len(b) {
				return // the kernel gives whole events
			}
			name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:end], []byte{0})
			b = b[end:]
			if mask&unix.IN_Q_OVERFLOW != 0 {
				for _, dir := range w.all() {
					all(dir)
				}
				continue
			}
			if dir := w.told(id, mask); dir != "" {
				changed(dir, string(name))
			}
		}
	}
}

func (w *watcher) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]string, 0, len(w.ids))
	for dir := range w.ids {
		out = append(out, dir)
	}
	slices.Sort(out)
	return out
}

// told is the directory of an event; "" when it is none of a name.
func (w *watcher) told(id int32, mask uint32) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	dir := w.dirs[id]
	if mask&unix.IN_IGNORED != 0 { // it is deleted
		delete(w.dirs, id)
		if w.ids[dir] == id {
			delete(w.ids, dir)
		}
		return ""
	}
	if mask&(unix.IN_CREATE|unix.IN_MOVED_TO) == 0 || mask&unix.IN_ISDIR != 0 {
		return ""
	}
	return dir
}
