package logs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/beneath"
)

// Kept has the logs of pods that are gone stay for a while, and bounds what all logs take.
type Kept struct {
	// Dir is the directory of all logs.
	Dir string
	// MaxAge is how long logs stay after their pod is gone, 0: not at all.
	MaxAge time.Duration
	// MaxBytes is how much all logs may take together, 0: any. Those that are written now
	// are never removed: they are bounded each for itself.
	MaxBytes int64
	// Lives tells whether there is a pod of that UID.
	Lives func(uid string) bool
	// Delete deletes a directory with all that is in it.
	Delete func(path string) error
	// Wake, of one token, has the logs looked at soon.
	Wake chan struct{}
	Log  *slog.Logger

	told bool
}

const (
	// keptAfter is how long after the agent's start logs are looked at first: which pods
	// there are is known by then.
	keptAfter = time.Minute
	// keptGather is how long ends of pods and rotations gather at least, keptCostly how many
	// times as long as it took to look at them.
	keptGather = time.Second
	keptCostly = 20
	// keptTogether is the part of MaxAge, of a minute at most, that logs may stay longer.
	keptTogether = 20
)

// Keep is called when a pod is gone, with the directory of its logs.
func (k *Kept) Keep(dir string) error {
	if k.MaxAge <= 0 {
		return k.Delete(dir)
	}
	name, err := filepath.Rel(k.Dir, dir)
	if err != nil {
		return err
	}
	if err := touch(k.Dir, name); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, k.Delete(dir))
	}
	k.Poke()
	return nil
}

// touch has a directory tell since when its pod is gone.
func touch(dir, name string) error {
	d, err := beneath.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	f, err := d.OpenDir(name, beneath.NoLinks)
	if err != nil {
		return err
	}
	defer f.Close()
	now := unix.NsecToTimeval(time.Now().UnixNano())
	return os.NewSyscallError("futimes", unix.Futimes(int(f.Fd()), []unix.Timeval{now, now}))
}

// Poke has the logs looked at soon.
func (k *Kept) Poke() {
	select {
	case k.Wake <- struct{}{}:
	default:
	}
}

// Run removes logs when it is time for it, until ctx ends. Nothing is looked at while no
// pod is gone and no log is rotated.
func (k *Kept) Run(ctx context.Context) error {
	if !sleep(ctx, keptAfter) {
		return nil
	}
	for {
		begun := time.Now()
		next := k.look(ctx, begun)
		if !sleep(ctx, max(keptGather, keptCostly*time.Since(begun))) || !k.wait(ctx, next) {
			return nil
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// wait returns when logs are to be looked at, or false when ctx ends.
func (k *Kept) wait(ctx context.Context, next time.Duration) bool {
	due := time.Now().Add(next)
	for {
		timer := time.NewTimer(time.Until(due))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
			return true
		case <-k.Wake:
			timer.Stop()
			if k.MaxBytes > 0 {
				return true
			}
			if d := time.Now().Add(k.MaxAge); d.Before(due) {
				due = d
			}
		}
	}
}

// never is how long nothing is looked at when nothing is kept.
const never = 24 * time.Hour

// look removes what is too old or too much, and returns how long there is nothing to do.
func (k *Kept) look(ctx context.Context, now time.Time) time.Duration {
	next := never
	gone := slices.DeleteFunc(k.gone(), func(g file) bool {
		age := now.Sub(g.at)
		if age < k.MaxAge {
			// Those that are due at nearly the same time go together.
			next = min(next, max(k.MaxAge-age, min(k.MaxAge/keptTogether, time.Minute)))
			return false
		}
		k.delete(g.name)
		return true
	})
	if k.MaxBytes > 0 {
		k.bound(ctx, gone)
	}
	return next
}

func (k *Kept) delete(name string) {
	if err := k.Delete(filepath.Join(k.Dir, name)); err != nil {
		k.Log.Warn("logs of a pod that is gone cannot be removed", "dir", name, "err", err)
	}
}

// DeleteAll removes the logs of all pods that are gone: the disk is full.
func (k *Kept) DeleteAll() error {
	var errs []error
	for _, g := range k.gone() {
		errs = append(errs, k.Delete(filepath.Join(k.Dir, g.name)))
	}
	return errors.Join(errs...)
}

// file is what may be removed.
type file struct {
	name  string // below the directory of all logs
	bytes int64
	at    time.Time
}

// podOf is the UID in the name of a pod's directory.
func podOf(name string) (uid string, ok bool) {
	parts := strings.Split(name, "_")
	return parts[len(parts)-1], len(parts) == 3 && !slices.Contains(parts, "")
}

// gone are directories of pods that are gone, and since when.
func (k *Kept) gone() []file {
	d, err := beneath.Open(k.Dir)
	if err != nil {
		return nil // there is none yet
	}
	defer d.Close()
	names, err := d.Names(".")
	if err != nil {
		return nil
	}
	var out []file
	for _, name := range names {
		uid, ok := podOf(name)
		if !ok || k.Lives(uid) {
			continue
		}
		if st := stat(d, name); st != nil && st.IsDir() {
			out = append(out, file{name: name, at: st.ModTime()})
		}
	}
	return out
}

func stat(d *beneath.Dir, name string) fs.FileInfo {
	f, err := d.Hold(name, beneath.NoLinks)
	if err != nil {
		return nil
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil
	}
	return st
}

// bound removes logs until all take no more than they may: of pods that are gone first,
// then what is rotated or of an earlier run, of each the oldest first.
func (k *Kept) bound(ctx context.Context, gone []file) {
	d, err := beneath.Open(k.Dir)
	if err != nil {
		return
	}
	defer d.Close()
	total := int64(0)
	for i := range gone {
		gone[i].bytes, _, _ = beneath.UsageBelow(ctx, k.Dir, filepath.Join(k.Dir, gone[i].name))
		total += gone[i].bytes
	}
	old, bytes := k.old(d, gone)
	total += bytes
	byAge := func(a, b file) int { return a.at.Compare(b.at) }
	slices.SortFunc(gone, byAge)
	slices.SortFunc(old, byAge)
	for ; total > k.MaxBytes && len(gone) > 0; gone = gone[1:] {
		k.delete(gone[0].name)
		total -= gone[0].bytes
	}
	for ; total > k.MaxBytes && len(old) > 0; old = old[1:] {
		if err := remove(d, old[0].name); err == nil {
			total -= old[0].bytes
		}
	}
	if over := total > k.MaxBytes; over != k.told {
		if k.told = over; over {
			k.Log.Warn("the logs that containers write now take more than all may together", "bytes", total,
				"podLogsMaxSize", k.MaxBytes)
		}
	}
}

func remove(d *beneath.Dir, name string) error {
	sub, err := d.Sub(filepath.Dir(name))
	if err != nil {
		return err
	}
	defer sub.Close()
	return sub.Root.Remove(filepath.Base(name))
}

// old are the logs of living pods that are not written any more, and what all logs of
// theirs take.
func (k *Kept) old(d *beneath.Dir, gone []file) (out []file, total int64) {
	names, err := d.Names(".")
	if err != nil {
		return nil, 0
	}
	for _, pod := range names {
		if _, ok := podOf(pod); !ok || slices.ContainsFunc(gone, func(g file) bool { return g.name == pod }) {
			continue
		}
		containers, err := d.Names(pod)
		if err != nil {
			continue
		}
		for _, c := range containers {
			files, bytes := oldOf(d, filepath.Join(pod, c))
			out, total = append(out, files...), total+bytes
		}
	}
	return out, total
}

// oldOf is old for one container. Files that are not logs count, and stay.
func oldOf(d *beneath.Dir, dir string) (out []file, total int64) {
	sub, err := d.Sub(dir)
	if err != nil {
		return nil, 0
	}
	defer sub.Close()
	names, err := sub.Names(".")
	if err != nil {
		return nil, 0
	}
	newest := ""
	if r := runs(names); len(r) > 0 {
		newest = r[0]
	}
	for _, n := range names {
		st := regular(sub, n)
		if st == nil || strings.HasPrefix(n, ".") { // the second name of a log
			continue
		}
		bytes := int64(0)
		if raw, ok := st.Sys().(*syscall.Stat_t); ok {
			bytes = raw.Blocks * 512
		}
		total += bytes
		log, _, _ := strings.Cut(n, ".log")
		if log += ".log"; n != newest && n != nextName(log) && attemptOf(log) >= 0 {
			out = append(out, file{name: filepath.Join(dir, n), bytes: bytes, at: st.ModTime()})
		}
	}
	return out, total
}

// runs are the logs of a container, that of the newest run first.
func runs(names []string) []string {
	out := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return attemptOf(n) < 0 })
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(attemptOf(b), attemptOf(a)) })
	return out
}

// Find returns the log of a pod that is gone, of its last run or the one before.
func (k *Kept) Find(namespace, pod, uid, container string, previous bool) (File, bool) {
	for _, name := range []string{namespace, pod, uid, container} {
		if name == "" || strings.ContainsAny(name, "/_") || strings.HasPrefix(name, ".") {
			return File{}, false
		}
	}
	d, err := beneath.Open(k.Dir)
	if err != nil {
		return File{}, false
	}
	defer d.Close()
	dir := PodDir(k.Dir, namespace, pod, uid)
	names, err := d.Names(filepath.Join(filepath.Base(dir), container))
	if err != nil {
		return File{}, false
	}
	list := runs(names)
	if previous && len(list) > 0 {
		list = list[1:]
	}
	if len(list) == 0 {
		return File{}, false
	}
	return File{Dir: k.Dir, Path: filepath.Join(dir, container, list[0])}, true
}
