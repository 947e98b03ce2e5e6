package dirwatch

import (
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// ErrLook says that something may have changed and the kernel has not told of it.
var ErrLook = errors.New("the kernel gives no more watches of files")

// again is how often is looked where the kernel does not tell.
const again = 10 * time.Second

// Watcher tells of changes in the directories that were added. Its zero value tells
// nothing.
type Watcher struct {
	// Events are the kernel's. After what Errors tells, events may have been lost: ErrLook,
	// each 10 s, where the kernel watches not all directories.
	Events <-chan fsnotify.Event
	Errors <-chan error

	log    *slog.Logger
	events chan fsnotify.Event
	errs   chan error
	stop   chan struct{}
	ended  chan struct{}
	kernel func() (*fsnotify.Watcher, error)
	pause  time.Duration

	mu     sync.Mutex
	w      *fsnotify.Watcher // nil where the kernel gives none
	lacks  map[string]bool   // directories that it does not watch
	told   bool              // that something lacks
	wanted map[string]bool
	began  chan struct{} // has a token when something lacks
}

// New begins to watch. The log is told once when the kernel gives no more.
func New(log *slog.Logger) (*Watcher, error) { return begin(log, fsnotify.NewWatcher, again) }

func begin(log *slog.Logger, kernel func() (*fsnotify.Watcher, error), pause time.Duration) (*Watcher, error) {
	w := &Watcher{
		log: log, events: make(chan fsnotify.Event), errs: make(chan error), kernel: kernel, pause: pause,
		stop: make(chan struct{}), ended: make(chan struct{}), began: make(chan struct{}, 1),
		lacks: map[string]bool{}, wanted: map[string]bool{},
	}
	w.Events, w.Errors = w.events, w.errs
	if err := w.open(); err != nil && !full(err) {
		return nil, err
	}
	go w.run()
	return w, nil
}

// full tells whether the kernel gives no more: to this user, or to this process.
func full(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENFILE) ||
		errors.Is(err, unix.ENOMEM)
}

// open asks the kernel for a watch. w.mu is held, or nobody else knows w.
func (w *Watcher) open() error {
	inner, err := w.kernel()
	if err != nil {
		w.lack(err)
		return err
	}
	w.w = inner
	return nil
}

// lack has the directories looked at. w.mu is held, or nobody else knows w.
func (w *Watcher) lack(err error) {
	if !w.told && full(err) {
		w.told = true
		w.log.Warn("the kernel gives no more watches of files: what changes is seen within 10 s; raise "+
			"fs.inotify.max_user_instances and max_user_watches, or find the program that uses them up", "err", err)
	}
	select {
	case w.began <- struct{}{}:
	default:
	}
}

// Add has a directory watched, also where it is already. Where the kernel gives no more
// watches that is no error.
func (w *Watcher) Add(dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted[dir] = true
	return w.add(dir)
}

func (w *Watcher) add(dir string) error {
	if w.w == nil {
		return nil
	}
	err := w.w.Add(dir)
	if full(err) {
		w.lacks[dir] = true
		w.lack(err)
		return nil
	}
	delete(w.lacks, dir)
	if err != nil {
		delete(w.wanted, dir)
	}
	return err
}

// Remove has a directory watched no longer.
func (w *Watcher) Remove(dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.wanted, dir)
	delete(w.lacks, dir)
	if w.w == nil {
		return nil
	}
	return w.w.Remove(dir)
}

// Close ends the watch.
func (w *Watcher) Close() error {
	close(w.stop)
	<-w.ended
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w == nil {
		return nil
	}
	return w.w.Close()
}

// run passes on what the kernel tells, and says itself what it does not.
func (w *Watcher) run() {
	defer close(w.ended)
	tick := time.NewTicker(w.pause) // nothing tells when somebody gives a watch back
	defer tick.Stop()
	for {
		events, errs, whole := w.sources()
		if whole {
			tick.Stop()
		}
		select {
		case <-w.stop:
			return
		case <-w.began:
			tick.Reset(w.pause)
		case e := <-events:
			if !send(w, w.events, e) {
				return
			}
		case err := <-errs:
			if !send(w, w.errs, err) {
				return
			}
		case <-tick.C:
			w.retry()
			if !send(w, w.errs, ErrLook) {
				return
			}
		}
	}
}

func send[T any](w *Watcher, to chan<- T, v T) bool {
	select {
	case to <- v:
		return true
	case <-w.stop:
		return false
	}
}

// sources are what the kernel tells, and whether it tells of all.
func (w *Watcher) sources() (events <-chan fsnotify.Event, errs <-chan error, whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w == nil {
		return nil, nil, false
	}
	return w.w.Events, w.w.Errors, len(w.lacks) == 0
}

// retry asks the kernel for what lacks.
func (w *Watcher) retry() {
	w.mu.Lock()
	defer w.mu.Unlock()
	lacks := w.lacks
	if w.w == nil {
		if w.open() != nil {
			return
		}
		lacks = w.wanted
	}
	for dir := range lacks {
		if err := w.add(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.log.Debug("a directory is not watched", "dir", dir, "err", err)
		}
	}
	if len(w.lacks) == 0 && w.told {
		w.told = false
		w.log.Info("the kernel tells of changed files again")
	}
}
