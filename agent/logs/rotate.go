package logs

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/beneath"
)

// rotateEvery is how often sizes of logs are looked at, for there are monitors that write on
// for ever: the kernel tells of every write, which would cost more.
const rotateEvery = 10 * time.Second

// rarely is how many looks apart logs are looked at of which the kernel tells: only what
// somebody else did to their directory is found then.
const rarely = 6

// Written is a log that a container writes now.
type Written struct {
	ID, Path string
	// Bounded: its monitor begins it anew by itself (AnnotationMax).
	Bounded bool
}

// Rotator keeps the logs of running containers below a size.
type Rotator struct {
	// Logs are those that are written now.
	Logs func() []Written
	// Dir is the directory of all logs.
	Dir string
	// Reopen makes a container's monitor that does not bound its log open it anew.
	Reopen func(ctx context.Context, id string) error
	// Bounded: there are monitors that begin logs anew by themselves.
	Bounded bool
	// Rotated, if set, hears that a log was begun anew.
	Rotated  func()
	MaxBytes int64
	MaxFiles int
	Log      *slog.Logger

	busy sync.Map // container IDs
	// lacking are the paths of logs that have no file to be begun anew with.
	lacking sync.Map

	start sync.Once
	watch *watcher // nil when the kernel gives none
}

// Run rotates until ctx ends. Each log whose monitor has to be asked is rotated on its own:
// a monitor that does not answer, as its pod leaves it no CPU time, holds up no other's.
func (r *Rotator) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	if w := r.watcher(); w != nil {
		defer w.close()
		running.Go(func() { w.run(r.settle, r.settleAll) })
	}
	for look := 0; ; look++ {
		list := r.Logs()
		r.forget(list)
		for _, w := range list {
			if w.Bounded {
				r.follow(filepath.Dir(w.Path)) // known, but after the agent's start
				if look%rarely != 0 && r.told(w.Path) && isFile(w.Path) {
					continue
				}
			}
			if _, rotated := r.busy.LoadOrStore(w.ID, true); rotated {
				continue
			}
			running.Go(func() {
				defer r.busy.Delete(w.ID)
				r.rotate(ctx, w)
			})
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rotateEvery):
		}
	}
}

// forget drops what is known of logs that nobody writes any more.
func (r *Rotator) forget(written []Written) {
	r.lacking.Range(func(path, _ any) bool {
		if !slices.ContainsFunc(written, func(w Written) bool { return w.Path == path }) {
			r.lacking.Delete(path)
		}
		return true
	})
}

// told tells whether the kernel tells of a log when there is something to do.
func (r *Rotator) told(path string) bool {
	_, lacks := r.lacking.Load(path)
	w := r.watcher()
	return !lacks && w != nil && w.has(filepath.Dir(path))
}

// Watch hears of logs that are begun anew in a directory, which is there already: to be
// called before anything is written there.
func (r *Rotator) Watch(dir string) {
	if w := r.watcher(); w != nil {
		r.add(w, dir)
		r.settleAll(dir)
	}
}

func (r *Rotator) watcher() *watcher {
	r.start.Do(func() {
		if !r.Bounded {
			return
		}
		w, err := newWatcher()
		if err != nil {
			r.Log.Warn("the kernel does not tell of logs that are begun anew: they are looked at each 10 s", "err", err)
			return
		}
		r.watch = w
	})
	return r.watch
}

func (r *Rotator) add(w *watcher, dir string) {
	d, err := r.open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	if err := w.add(d, dir); err != nil {
		r.Log.Debug("logs of a directory are looked at each 10 s", "dir", dir, "err", err)
	}
}

// follow has a directory watched, if it is not, and looks at what came before.
func (r *Rotator) follow(dir string) {
	w := r.watcher()
	if w != nil && w.has(dir) {
		return
	}
	if w != nil {
		r.add(w, dir)
	}
	r.settleAll(dir)
}

// open opens a directory of logs for itself.
func (r *Rotator) open(dir string) (*beneath.Dir, error) {
	name, err := filepath.Rel(r.Dir, dir)
	if err != nil {
		return nil, err
	}
	d, err := beneath.Open(r.Dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Sub(name)
}

// settleAll looks at all logs of a directory.
func (r *Rotator) settleAll(dir string) {
	d, err := r.open(dir)
	if err != nil {
		return
	}
	names, err := d.Names(".")
	d.Close()
	if err != nil {
		return
	}
	for _, name := range names {
		r.settle(dir, name)
	}
}

// settle gives a log that its monitor has begun anew a name for what it was until then: the
// monitor has put another file in its place, so that only the second name still stands
// for it. Where the monitor was faster than this, what it wrote between is lost.
func (r *Rotator) settle(dir, name string) {
	if attemptOf(name) < 0 {
		return
	}
	d, err := r.open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	now := regular(d, name)
	if now == nil {
		return
	}
	held := heldName(name)
	if was := regular(d, held); was != nil {
		if os.SameFile(was, now) {
			return
		}
		r.dropOld(d, name)
		if err := d.Root.Rename(held, rotatedName(name, time.Now())); err != nil {
			r.Log.Warn("a container log cannot be kept", "log", filepath.Join(dir, name), "err", err)
			return
		}
		if r.Rotated != nil {
			r.Rotated()
		}
	} else if err := d.Root.Remove(held); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // not ours, and in the way
	}
	r.prepare(d, filepath.Join(dir, name))
	if err := d.Root.Link(name, held); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Log.Debug("a container log is lost when it is begun anew", "log", filepath.Join(dir, name), "err", err)
	}
}

// prepare has the file there by which the monitor begins a log anew: a full disk refuses to
// make one, which would be the monitor's end, but lets it be opened and renamed. Where there
// is no room for it the oldest log becomes it, which the monitor empties.
func (r *Rotator) prepare(d *beneath.Dir, path string) {
	name := filepath.Base(path)
	next := nextName(name)
	try := func() error {
		f, err := d.Root.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			f.Close()
		}
		return err
	}
	if err := try(); err == nil || errors.Is(err, fs.ErrExist) {
		r.lacking.Delete(path)
		return
	}
	r.lacking.Store(path, true) // tried again with the next look
	if old := rotated(d, name); len(old) > 0 {
		_ = d.Root.Rename(old[0], next)
	} else if d.Root.Remove(heldName(name)) == nil { // which takes room, too, on some file systems
		_ = try()
	}
}

// regular is the state of a regular file, nil of anything else.
func regular(d *beneath.Dir, name string) fs.FileInfo {
	f, err := d.Hold(name, beneath.NoLinks)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	return st
}

// rotate renames a log that has become too large, and has its monitor begin another.
func (r *Rotator) rotate(ctx context.Context, w Written) {
	d, err := r.open(filepath.Dir(w.Path))
	if errors.Is(err, fs.ErrNotExist) {
		r.reopen(ctx, w)
		return
	}
	if err != nil {
		return
	}
	defer d.Close()
	name := filepath.Base(w.Path)
	st := regular(d, name)
	if st == nil {
		r.restore(ctx, d, w)
		return
	}
	if w.Bounded {
		r.prepare(d, w.Path) // there may be room again
	}
	// A bounded one is no larger, unless its file system bounds it.
	if st.Size() <= r.MaxBytes {
		return
	}
	r.dropOld(d, name)
	if w.Bounded { // its second name is of no use
		if err := d.Root.Remove(heldName(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	aside := rotatedName(name, time.Now())
	if err := d.Root.Rename(name, aside); err != nil {
		r.Log.Warn("a container log cannot be rotated", "log", w.Path, "err", err)
		return
	}
	if err := r.Reopen(ctx, w.ID); err != nil {
		// It goes on into the old file: give it its name back.
		r.Log.Warn("a container log cannot be reopened", "log", w.Path, "err", err)
		if err := d.Root.Rename(aside, name); err != nil {
			r.Log.Warn("a container log has lost its name", "log", aside, "err", err)
		}
	} else if r.Rotated != nil {
		r.Rotated()
	}
}

// dropOld removes the oldest logs, so that another may be added.
func (r *Rotator) dropOld(d *beneath.Dir, name string) {
	for old := rotated(d, name); len(old) > max(r.MaxFiles-2, 0); old = old[1:] {
		if err := d.Root.Remove(old[0]); err != nil {
			r.Log.Warn("an old container log cannot be removed", "log", old[0], "err", err)
		}
	}
}

// rotated are what a log was before, the oldest first.
func rotated(d *beneath.Dir, name string) []string {
	names, err := d.Names(".")
	if err != nil {
		return nil
	}
	old := slices.DeleteFunc(names, func(n string) bool { return !isRotated(n, name) })
	slices.Sort(old)
	return old
}
