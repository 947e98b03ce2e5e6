package snapshots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Path is where a coordinator lists its snapshots (GET) and takes one (POST).
const Path = "/shoal/v1/snapshots"

// Store is what snapshots are taken of.
type Store interface {
	Size() int64
	Snapshot(w io.Writer) error
}

// Keeper takes snapshots and keeps them.
type Keeper struct {
	Store Store
	Dir   string
	// Every is the time from one to the next, 0 for none; Keep how many of these stay.
	Every time.Duration
	Keep  int
	// Keys returns what goes beside a snapshot; nil when there is no passphrase.
	Keys func() ([]byte, error)
	// Remote is where the schedule's are copied to; nil: nowhere.
	Remote Remote
	Log    *slog.Logger

	mu sync.Mutex // one at a time
}

// Remote keeps copies of this cluster's snapshots elsewhere.
type Remote interface {
	List(ctx context.Context) ([]Copy, error)
	// Upload returns what the copy is called there.
	Upload(ctx context.Context, s Snapshot) (string, error)
	// Prune deletes those of the schedule that are too many.
	Prune(ctx context.Context, now time.Time) error
}

// Snapshot is one that is kept.
type Snapshot struct {
	// File is the path at the coordinator.
	File string    `json:"file"`
	Time time.Time `json:"time"`
	Size int64     `json:"size"`
	// Keys tells that the cluster's keys are beside it.
	Keys bool `json:"keys"`
	// Copy is what it is called in the bucket that it was copied to when it was asked for.
	Copy string `json:"copy,omitempty"`
}

const (
	scheduled, manual = "scheduled-", "manual-"
	stamp             = "20060102T150405Z"
	database, keys    = ".db", ".keys"
	partial           = ".partial"
	// spare is what a disk keeps free beside a snapshot, for the store itself.
	spare = 256 << 20
	// soon is how long after its start a coordinator without any takes its first.
	soon = 10 * time.Minute
)

// List returns the snapshots in a directory, the oldest first; none of one that is not
// there.
func List(dir string) ([]Snapshot, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var out []Snapshot
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), database)
		if !ok {
			continue
		}
		at, err := time.Parse(stamp, strings.TrimPrefix(strings.TrimPrefix(base, scheduled), manual))
		if err != nil {
			continue // not ours
		}
		info, err := e.Info()
		if err != nil {
			continue // deleted meanwhile
		}
		_, noKeys := os.Stat(filepath.Join(dir, base+keys))
		out = append(out, Snapshot{File: filepath.Join(dir, e.Name()), Time: at, Size: info.Size(), Keys: noKeys == nil})
	}
	slices.SortFunc(out, func(a, b Snapshot) int { return a.Time.Compare(b.Time) })
	return out, nil
}

// Take takes a snapshot that stays until somebody deletes it.
func (k *Keeper) Take(now time.Time) (Snapshot, error) { return k.take(manual, now) }

func (k *Keeper) take(kind string, now time.Time) (s Snapshot, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now = now.UTC().Truncate(time.Second)
	base := filepath.Join(k.Dir, kind+now.Format(stamp))
	s = Snapshot{File: base + database, Time: now}
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return s, fmt.Errorf("take a snapshot: %w", err)
	}
	if err := k.room(); err != nil {
		return s, err
	}
	if k.Keys != nil {
		data, err := k.Keys()
		if err != nil {
			return s, fmt.Errorf("take a snapshot: %w", err)
		}
		if _, err := write(base+keys, func(w io.Writer) error { _, err := w.Write(data); return err }); err != nil {
			return s, err
		}
		s.Keys = true
	}
	if s.Size, err = write(s.File, k.Store.Snapshot); err != nil && s.Keys {
		err = errors.Join(err, os.Remove(base+keys))
	}
	return s, err
}

// room fails where a snapshot would take the space that the store needs.
func (k *Keeper) room() error {
	if err := hasRoom(k.Dir, k.Store.Size()); err != nil {
		return fmt.Errorf("take a snapshot: %w: free some space, or name another directory (snapshotDir)", err)
	}
	return nil
}

func hasRoom(dir string, size int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < size+spare {
		return fmt.Errorf("%s has %d MiB free and needs %d MiB", dir, free>>20, (size+spare)>>20)
	}
	return nil
}

// write makes a file that is there as a whole or not at all.
func write(path string, fill func(io.Writer) error) (size int64, err error) {
	f, err := os.OpenFile(path+partial, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, fmt.Errorf("take a snapshot: %w", err)
	}
	err = fill(f)
	if info, statErr := f.Stat(); statErr == nil {
		size = info.Size()
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path+partial, path)
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("take a snapshot: %w", err), os.Remove(path+partial))
	}
	return size, nil
}

// Run takes snapshots by the schedule until ctx ends, and copies them. What fails is
// told, and tried again: a snapshot at its next time, a copy soon.
func (k *Keeper) Run(ctx context.Context) {
	if k.Every <= 0 {
		return
	}
	begun := time.Now()
	var copying <-chan time.Time
	if k.Remote != nil { // the last one may not have been copied before a restart
		copying = time.After(min(soon, k.Every))
	}
	for {
		list, err := List(k.Dir)
		if err != nil {
			k.Log.Warn("snapshots cannot be listed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-copying:
		case <-time.After(time.Until(k.due(list, begun, time.Now()))):
			if _, err := k.take(scheduled, time.Now()); err != nil {
				k.Log.Warn("no snapshot was taken", "dir", k.Dir, "next", k.Every, "err", err)
				begun = time.Now().Add(k.Every - min(soon, k.Every))
				continue
			}
			k.prune()
		}
		copying = nil
		if err := k.copyLast(ctx); err != nil && ctx.Err() == nil {
			again := min(soon, k.Every)
			k.Log.Warn("the last snapshot was not copied", "again", again, "err", err)
			copying = time.After(again)
		}
	}
}

// copyTime bounds a copy: a service that takes a byte now and then would hold all that
// come after.
const copyTime = 6 * time.Hour

// copyLast copies the newest of the schedule, unless another coordinator has copied one
// of its own not long ago: one of each interval is enough.
func (k *Keeper) copyLast(ctx context.Context) error {
	if k.Remote == nil {
		return nil
	}
	list, err := List(k.Dir)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(s Snapshot) bool { return !isScheduled(s) })
	if len(list) == 0 {
		return nil
	}
	last := list[len(list)-1]
	ctx, cancel := context.WithTimeout(ctx, copyTime)
	defer cancel()
	there, err := k.Remote.List(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(there, func(c Copy) bool {
		return isScheduled(c.Snapshot) && last.Time.Sub(c.Time) < k.Every/2 && !c.Time.After(time.Now())
	}) {
		return nil
	}
	if _, err := k.Remote.Upload(ctx, last); err != nil {
		return err
	}
	if err := k.Remote.Prune(ctx, time.Now()); err != nil && ctx.Err() == nil {
		k.Log.Warn("old copies of snapshots cannot be deleted", "err", err)
	}
	return nil
}

// due is when the next is to be taken: a restart changes nothing about it.
func (k *Keeper) due(list []Snapshot, begun, now time.Time) time.Time {
	earliest := begun.Add(min(soon, k.Every))
	for _, s := range slices.Backward(list) {
		if isScheduled(s) && !s.Time.After(now) { // a clock may have been ahead
			if at := s.Time.Add(k.Every); at.After(earliest) {
				return at
			}
			break
		}
	}
	return earliest
}

func isScheduled(s Snapshot) bool { return strings.HasPrefix(filepath.Base(s.File), scheduled) }

// prune deletes the oldest of those that the schedule made.
func (k *Keeper) prune() {
	list, err := List(k.Dir)
	if err != nil {
		return // told by the next round
	}
	list = slices.DeleteFunc(list, func(s Snapshot) bool { return !isScheduled(s) })
	for i := 0; i < len(list)-k.Keep; i++ {
		_ = os.Remove(strings.TrimSuffix(list[i].File, database) + keys)
		if err := os.Remove(list[i].File); err != nil {
			k.Log.Warn("an old snapshot cannot be deleted", "file", list[i].File, "err", err)
		}
	}
}

// CopyParameter asks for a copy of what is taken.
const CopyParameter = "copy"

func (k *Keeper) takeAndCopy(r *http.Request) (Snapshot, error) {
	wanted := r.URL.Query().Has(CopyParameter)
	if wanted && k.Remote == nil {
		return Snapshot{}, errors.New("there is nowhere to copy it to: set snapshotS3Endpoint and snapshotS3Bucket, and restart the coordinator")
	}
	s, err := k.Take(time.Now())
	if err != nil || !wanted {
		return s, err
	}
	if s.Copy, err = k.Remote.Upload(r.Context(), s); err != nil {
		return s, fmt.Errorf("%s is taken, but: %w", s.File, err)
	}
	return s, nil
}

// ServeHTTP lists and takes snapshots for an administrator.
func (k *Keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	var err error
	switch r.Method {
	case http.MethodGet:
		answer, err = List(k.Dir)
	case http.MethodPost:
		answer, err = k.takeAndCopy(r)
	default:
		http.Error(w, "use GET or POST", http.StatusMethodNotAllowed)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}
