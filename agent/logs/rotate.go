package logs

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/beneath"
)

// rotateEvery is how often sizes of logs are looked at: the kernel tells of
// every write, which would cost more.
const rotateEvery = 10 * time.Second

// Written is a log that a container writes now.
type Written struct{ ID, Path string }

// Rotator keeps the logs of running containers below a size.
type Rotator struct {
	// Logs are those that are written now.
	Logs func() []Written
	// Dir is the directory of all logs.
	Dir string
	// Reopen makes the container's monitor open its log anew.
	Reopen   func(ctx context.Context, id string) error
	MaxBytes int64
	MaxFiles int
	Log      *slog.Logger

	busy sync.Map // container IDs
}

// Run rotates until ctx ends. Each log is rotated on its own: a monitor that
// does not answer, as its pod leaves it no CPU time, holds up no other's.
func (r *Rotator) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rotateEvery):
		}
		for _, w := range r.Logs() {
			if _, rotated := r.busy.LoadOrStore(w.ID, true); rotated {
				continue
			}
			running.Go(func() {
				defer r.busy.Delete(w.ID)
				r.rotate(ctx, w)
			})
		}
	}
}

func (r *Rotator) rotate(ctx context.Context, w Written) {
	name, err := filepath.Rel(r.Dir, w.Path)
	if err != nil {
		return
	}
	d, err := beneath.Open(r.Dir)
	if err != nil {
		return
	}
	defer d.Close()
	if size(d, name) < r.MaxBytes {
		return
	}
	r.dropOld(d, name)
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
	}
}

// size is that of a log, -1 of anything else that has its name.
func size(d *beneath.Dir, name string) int64 {
	f, err := d.Hold(name, beneath.NoLinks)
	if err != nil {
		return -1
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return -1
	}
	return st.Size()
}

// dropOld removes the oldest logs, so that another may be added.
func (r *Rotator) dropOld(d *beneath.Dir, name string) {
	names, err := d.Names(filepath.Dir(name))
	if err != nil {
		return
	}
	old := slices.DeleteFunc(names, func(n string) bool { return !isRotated(n, filepath.Base(name)) })
	slices.Sort(old)
	for ; len(old) > max(r.MaxFiles-2, 0); old = old[1:] {
		if err := d.Root.Remove(filepath.Join(filepath.Dir(name), old[0])); err != nil {
			r.Log.Warn("an old container log cannot be removed", "log", old[0], "err", err)
		}
	}
}
