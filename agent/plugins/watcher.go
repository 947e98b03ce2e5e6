package plugins

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/shoal-project/shoal/agent/dirwatch"
)

// Plugin is what a program says of itself when it registers.
type Plugin struct {
	// Type is that of its interface, as CSIPlugin; Name is its own.
	Type, Name string
	// Endpoint is the socket at which it serves.
	Endpoint string
	// Versions are those of its interface that it supports.
	Versions []string
}

// Handler takes the plugins of one type. Its methods are called for one plugin of
// a name at a time.
type Handler interface {
	// Register takes a plugin, also one whose name is taken already. The plugin
	// is told the error, and it is tried again.
	Register(ctx context.Context, p Plugin) error
	// Deregister is called when the socket of a registered plugin is gone. It
	// must not take long.
	Deregister(p Plugin)
}

// Watcher follows the directory where plugins register.
type Watcher struct {
	// Dir is plugins_registry in the kubelet's root directory.
	Dir string
	// Handlers are by the plugins' type.
	Handlers map[string]Handler
	Log      *slog.Logger

	pace pace // of a test; zero is the kubelet's

	sockets map[string]*socket
	// made counts how often a socket of a name was made: a new one may have the
	// inode of the old.
	made map[string]int

	mu      sync.Mutex
	names   map[string]chan struct{} // who has a name puts a token into its channel
	changed chan struct{}            // closed when a plugin went
}

// pace is how long things may take.
type pace struct {
	// call is for one request; first and last bound the pause after a failure.
	call, first, last time.Duration
}

// usual is the kubelet's pace.
var usual = pace{call: 10 * time.Second, first: 500 * time.Millisecond, last: 2*time.Minute + 2*time.Second}

// identity tells a socket from one that is made in its place.
type identity struct {
	device, inode uint64
	made          int
}

// errGone ends the goroutine of a socket that is gone; the end of the agent has
// another cause.
var errGone = errors.New("the socket is gone")

// Run follows the directory until ctx ends. It returns when no handler is at work
// any more.
func (w *Watcher) Run(ctx context.Context) error {
	if w.pace == (pace{}) {
		w.pace = usual
	}
	w.sockets, w.made = map[string]*socket{}, map[string]int{}
	w.names, w.changed = map[string]chan struct{}{}, make(chan struct{})
	events, err := dirwatch.New(w.Log)
	if err != nil {
		return fmt.Errorf("follow %s: %w", w.Dir, err)
	}
	defer events.Close()
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		found, err := w.look(events)
		if err != nil {
			return fmt.Errorf("follow %s: %w", w.Dir, err)
		}
		w.follow(ctx, &running, found)
		if !w.hear(ctx, events) {
			return nil
		}
	}
}

// hear waits until something appeared or went; false at the end of ctx.
func (w *Watcher) hear(ctx context.Context, events *dirwatch.Watcher) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case e := <-events.Events:
			if e.Has(fsnotify.Create) {
				w.made[e.Name]++
			}
			if e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				return true
			}
		case err := <-events.Errors:
			// Events were lost: what is there tells.
			w.Log.Debug("the plugins' directory is read again", "dir", w.Dir, "err", err)
			return true
		}
	}
}

// look finds the sockets, and watches the directories that they may appear in:
// each before it is read, so that none appears between.
func (w *Watcher) look(events *dirwatch.Watcher) (map[string]identity, error) {
	if err := os.MkdirAll(w.Dir, 0o750); err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(w.Dir) // root's own links: the directory may lie on another disk
	if err != nil {
		return nil, err
	}
	found := map[string]identity{}
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == root:
			return err
		case err != nil:
			return nil // it went meanwhile, and there is an event of that
		case path != root && strings.HasPrefix(e.Name(), "."):
			if e.IsDir() {
				return fs.SkipDir
			}
		case e.IsDir():
			if err := events.Add(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		case e.Type() == fs.ModeSocket:
			if info, err := e.Info(); err == nil {
				st := info.Sys().(*syscall.Stat_t)
				found[path] = identity{device: uint64(st.Dev), inode: st.Ino, made: w.made[path]}
			}
		}
		return nil
	})
	return found, err
}

// follow begins with the sockets that are new and ends those that are gone.
func (w *Watcher) follow(ctx context.Context, running *sync.WaitGroup, found map[string]identity) {
	for path, s := range w.sockets {
		if id, there := found[path]; !there || id != s.identity {
			s.end(errGone)
		}
		if _, there := found[path]; !there {
			delete(w.sockets, path)
			delete(w.made, path)
		}
	}
	for path, id := range found {
		before := w.sockets[path]
		if before != nil && before.identity == id {
			continue
		}
		s := &socket{Watcher: w, path: path, identity: id, ended: make(chan struct{})}
		var own context.Context
		own, s.end = context.WithCancelCause(ctx)
		w.sockets[path] = s
		running.Go(func() {
			defer s.end(nil)
			defer close(s.ended)
			if before != nil {
				<-before.ended
			}
			s.run(own)
		})
	}
}

// take has a name for itself until the func is called; nil when ctx ended.
func (w *Watcher) take(ctx context.Context, name string) (done func()) {
	w.mu.Lock()
	c := w.names[name]
	if c == nil {
		c = make(chan struct{}, 1)
		w.names[name] = c
	}
	w.mu.Unlock()
	select {
	case c <- struct{}{}:
		return func() { <-c }
	case <-ctx.Done():
		return nil
	}
}

// went has those who wait try again.
func (w *Watcher) went() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// change is closed when the next plugin goes.
func (w *Watcher) change() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}
