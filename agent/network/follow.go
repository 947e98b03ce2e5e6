package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/shoal-project/shoal/agent/dirwatch"
	"github.com/shoal-project/shoal/cni/podnet"
)

// Sandboxes is what Follow needs of the runtime.
type Sandboxes interface {
	// Connected lists the sandboxes that a network has, and as it knows them those
	// that are ready.
	Connected() (ids []string, ready []podnet.Sandbox)
	// Outdate has a sandbox's pod make it anew.
	Outdate(id string) error
}

// Timing of Follow.
type timing struct {
	quiet time.Duration // files are looked at when none changed for this long
	// back is how long a third party's configuration is waited for that went: some
	// take it away while they are being upgraded.
	back        time.Duration
	first, last time.Duration // pauses between tries to use what is not ready
	renew       time.Duration // how long the next pod waits for one that is connected anew
}

var usual = timing{
	quiet: 100 * time.Millisecond,
	back:  30 * time.Second,
	first: time.Second,
	last:  30 * time.Second,
	renew: 20 * time.Second,
}

// Follow has the pods connected by the network that there is, until ctx ends: when a
// third party's configuration comes, its plugins are there and say that they are
// ready, the own network goes from the node, and pods that it connected get a new
// sandbox one by one; the same the other way round when the configuration is gone.
// From one third party's to another's pods stay as they are, as with every runtime.
// changed is called when the node should be looked at.
func (m *Manager) Follow(ctx context.Context, sandboxes Sandboxes, changed func()) error {
	return (&follower{Manager: m, sandboxes: sandboxes, changed: changed, timing: usual}).run(ctx)
}

type follower struct {
	*Manager
	sandboxes Sandboxes
	changed   func()
	timing    timing

	watcher *dirwatch.Watcher
	watched string
	name    string // the network at the last look
	told    string // the last complaint
	pause   time.Duration
	gone    time.Time // since when a third party's configuration is away
	tidy    tidying
}

func (f *follower) run(ctx context.Context) error {
	w, err := dirwatch.New(f.log)
	if err != nil {
		return fmt.Errorf("follow network configurations: %w", err)
	}
	defer w.Close()
	f.watcher = w
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			timer.Reset(f.timing.quiet)
		case err := <-w.Errors:
			if !errors.Is(err, dirwatch.ErrLook) {
				f.log.Warn("network configurations are read again", "dir", f.cfg.ConfDir, "err", err)
			}
			timer.Reset(f.timing.quiet)
		case <-timer.C:
			f.watch()
			if again := soonest(f.look(ctx), f.tidyUp(ctx)); again > 0 {
				timer.Reset(again)
			}
		}
	}
}

// watch follows the directory, or what is there of the way to it.
func (f *follower) watch() {
	if f.cfg.ConfDir == "" {
		return
	}
	// What is made between the look for it and the watch of its parent is no event.
	for dir := f.nearest(); ; {
		if f.watched != "" && f.watched != dir {
			_ = f.watcher.Remove(f.watched) // it may be gone
		}
		f.watched = dir
		err := f.watcher.Add(dir) // the same again is no error
		now := f.nearest()
		if now == dir {
			if err != nil {
				f.complain("network configurations are not followed", err)
			}
			return
		}
		dir = now
	}
}

// nearest is the directory of configurations, or the nearest to it that is there.
func (f *follower) nearest() string {
	dir := f.cfg.ConfDir
	for {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

func (f *follower) complain(what string, err error) {
	if text := what + err.Error(); text != f.told {
		f.told = text
		f.log.Warn(what, "dir", f.cfg.ConfDir, "err", err)
	}
}

// look does what is to be done, and returns when to look again; 0: when something
// changes.
func (f *follower) look(ctx context.Context) time.Duration {
	f.third.again()
	list := f.third.current()
	if list == nil && !f.cfg.None {
		if left := f.wait(); left > 0 {
			f.tell()
			return left
		}
	}
	f.tell()
	var err error
	switch {
	case list != nil:
		f.gone = time.Time{}
		f.away.Store(false)
		err = f.toThird(ctx, list)
	case !f.cfg.None:
		err = f.toOwn(ctx)
	}
	if err == nil {
		f.told, f.pause = "", 0
		return 0
	}
	if ctx.Err() != nil {
		return 0
	}
	f.complain("the pod network cannot be changed yet, trying again", err)
	f.pause = min(max(2*f.pause, f.timing.first), f.timing.last)
	return f.pause
}

// wait is how long a configuration that went is still waited for. Nobody waits on a
// node that has no pods of it.
func (f *follower) wait() time.Duration {
	if len(f.of(func(name string) bool { return name != Builtin })) == 0 {
		f.away.Store(false)
		return 0
	}
	if f.gone.IsZero() {
		f.gone = time.Now()
		f.away.Store(true)
	}
	left := f.timing.back - time.Since(f.gone)
	if left <= 0 {
		f.away.Store(false)
	}
	return max(left, 0)
}

// tell has the node looked at when pods are connected by another network than
// before.
func (f *follower) tell() {
	if now := f.Name(); now != f.name {
		f.name = now
		f.changed()
		f.poke()
	}
}

func (f *follower) toThird(ctx context.Context, list *libcni.NetworkConfigList) error {
	old := f.of(func(name string) bool { return name == Builtin })
	if len(old) == 0 && !f.made.Load() {
		return nil
	}
	if err := f.third.usable(ctx, list); err != nil {
		return err
	}
	if f.made.Load() {
		if err := f.takeAway(); err != nil {
			return err
		}
		f.log.Info("the built-in pod network is gone from the node", "network", list.Name, "pods", len(old))
	}
	return f.renewAll(ctx, old)
}

func (f *follower) toOwn(ctx context.Context) error {
	f.gone = time.Time{}
	f.away.Store(false)
	f.tell()
	old := f.of(func(name string) bool { return name != Builtin })
	if len(old) == 0 {
		return nil
	}
	n := f.ownNetwork()
	if n == nil {
		return ErrNotReady
	}
	f.log.Info("the third-party pod network is gone, using the built-in one", "pods", len(old))
	return f.renewAll(ctx, old)
}

// of lists the ready sandboxes by the network that made them.
func (f *follower) of(which func(name string) bool) []podnet.Sandbox {
	var out []podnet.Sandbox
	_, ready := f.sandboxes.Connected()
	for _, s := range ready {
		if name := f.madeBy(s); which(name) {
			out = append(out, s)
		}
	}
	return out
}

// madeBy is the network that a sandbox was made by. Agents of before wrote none down.
func (m *Manager) madeBy(s podnet.Sandbox) string {
	if s.Network != "" {
		return s.Network
	}
	if as, err := m.third.attachments(s.ID); err == nil && len(as) > 0 {
		return as[0].Network
	}
	return Builtin
}

// renewAll has pods connected anew, one after the other, so that what goes wrong
// with the first is seen before the last.
func (f *follower) renewAll(ctx context.Context, list []podnet.Sandbox) error {
	var errs []error
	for _, s := range list {
		if ctx.Err() != nil || f.madeBy(s) == f.Name() {
			break // the rest is for another look
		}
		if err := f.renew(ctx, s); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// renew returns when the pod is connected anew, or does not come.
func (f *follower) renew(ctx context.Context, s podnet.Sandbox) error {
	done := f.expect(s.UID)
	defer f.connected(s.UID)
	if err := f.sandboxes.Outdate(s.ID); err != nil {
		return err
	}
	wait := time.NewTimer(f.timing.renew)
	defer wait.Stop()
	select {
	case <-ctx.Done():
	case <-done:
	case <-wait.C:
		f.log.Warn("a pod is not connected by the new network yet", "pod", s.Namespace+"/"+s.Name)
	}
	return nil
}

// expect returns what is closed when a pod is connected.
func (m *Manager) expect(uid string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting[uid] == nil {
		m.waiting[uid] = make(chan struct{})
	}
	return m.waiting[uid]
}

func (m *Manager) connected(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if done := m.waiting[uid]; done != nil {
		close(done)
		delete(m.waiting, uid)
	}
}
