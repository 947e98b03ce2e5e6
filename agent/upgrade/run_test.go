package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// errCut ends a run as a power cut does: nothing after it is done.
var errCut = errors.New("power is lost")

// disk is what a power cut leaves of a machine.
type disk struct{ pkg, store string }

// fake is a machine whose programs and store are names.
type fake struct {
	disk
	kept    string
	unread  bool              // the old coordinator ends with a store that the new one wrote
	running map[string]string // version of each unit that runs
	bad     map[string]error  // what fails, by "deed" or "deed argument"
	times   map[string]int    // how often it does, for those that fail at first only
	cutAt   int               // the deed that power is lost in; 0 is none
	cut     context.CancelFunc
	deeds   []string
}

func (f *fake) deed(ctx context.Context, what, about string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.deeds = append(f.deeds, strings.TrimSpace(what+" "+about))
	if len(f.deeds) == f.cutAt {
		f.cut()
		return errCut
	}
	for _, key := range []string{what, what + " " + about, what + " " + about + " " + f.pkg} {
		if err := f.bad[key]; err != nil {
			if n, limited := f.times[key]; limited {
				if n == 0 {
					continue
				}
				f.times[key]--
			}
			return err
		}
	}
	return nil
}

func (f *fake) Stop(ctx context.Context, unit string) error {
	err := f.deed(ctx, "stop", unit)
	if !errors.Is(err, errCut) {
		delete(f.running, unit)
	}
	return err
}

func (f *fake) Kill(ctx context.Context, unit string) error {
	delete(f.running, unit)
	return f.deed(ctx, "kill", unit)
}

func (f *fake) Start(ctx context.Context, unit string) error {
	if unit == CoordinatorUnit && ctx.Err() == nil {
		if f.store == "" {
			f.store = "a new cluster"
		}
		if f.unread && f.pkg == "v1" && strings.Contains(f.store, "v2") {
			return errors.New("the store cannot be read")
		}
		f.store += "+" + f.pkg // it writes at once, ready or not
	}
	if err := f.deed(ctx, "start", unit); err != nil {
		return err
	}
	f.running[unit] = f.pkg
	return nil
}

func (f *fake) KeepStore(ctx context.Context) error {
	f.kept = "half"
	if err := f.deed(ctx, "keep", ""); err != nil {
		return err
	}
	f.kept = f.store
	return nil
}

func (f *fake) OldStore(ctx context.Context) error {
	if ctx.Err() == nil {
		f.store = "" // moved away
	}
	if err := f.deed(ctx, "old", ""); err != nil {
		return err
	}
	f.store = f.kept
	return nil
}

func (f *fake) Install(ctx context.Context, file string) error {
	if ctx.Err() == nil {
		f.pkg = "half"
	}
	if err := f.deed(ctx, "install", file); err != nil {
		return err
	}
	f.pkg = file
	return nil
}

func (f *fake) Well(ctx context.Context, version string) error {
	if err := f.deed(ctx, "well", version); err != nil {
		return err
	}
	for unit, v := range f.running {
		if v != version {
			return fmt.Errorf("%s is %s, not %s", unit, v, version)
		}
	}
	return nil
}

func (f *fake) Steady(ctx context.Context, unit string) error { return f.deed(ctx, "steady", unit) }

func newFake() *fake {
	return &fake{
		disk: disk{pkg: "v1", store: "s"}, bad: map[string]error{}, times: map[string]int{},
		running: map[string]string{CoordinatorUnit: "v1", AgentUnit: "v1"},
	}
}

func begin(t *testing.T, f *fake, alone bool) *Upgrade {
	t.Helper()
	dir := Dir(t.TempDir())
	r := &Record{
		Phase: Prepared, Boot: "boot 1", From: "v1", To: "v2", New: "v2", Old: "v1", Alone: alone,
		Units: []string{CoordinatorUnit, AgentUnit},
	}
	if err := dir.Save(r); err != nil {
		t.Fatal(err)
	}
	return next(t, f, dir, "boot 1")
}

// next is an upgrade that goes on with the record.
func next(t *testing.T, f *fake, dir Dir, boot string) *Upgrade {
	t.Helper()
	r, err := dir.Load()
	if err != nil {
		t.Fatal(err)
	}
	return &Upgrade{
		Machine: f, Dir: dir, Record: r, Boot: boot, Patience: time.Minute, OldPatience: time.Minute,
		Files: func() {}, Say: func(string, ...any) {},
	}
}

func TestRun(t *testing.T) {
	no := errors.New("no")
	for _, c := range []struct {
		name  string
		alone bool
		bad   map[string]error
		times map[string]int
		phase Phase
		disk  disk
		why   string // part of it
	}{
		{name: "good", alone: true, phase: Done, disk: disk{"v2", "s+v2"}},
		{name: "the old coordinator does not stop", alone: true, bad: map[string]error{"stop " + CoordinatorUnit: no},
			phase: Returned, disk: disk{"v1", "s+v1"}, why: "no"},
		{name: "no room for the store", alone: true, bad: map[string]error{"keep": no}, phase: Returned,
			disk: disk{"v1", "s+v1"}, why: "no"},
		{name: "the package is not installed", alone: true, bad: map[string]error{"install v2": no}, phase: Returned,
			disk: disk{"v1", "s+v1"}, why: "no"},
		{name: "the new coordinator is never ready: what it wrote goes", alone: true,
			bad:   map[string]error{"start " + CoordinatorUnit + " v2": no},
			phase: Returned, disk: disk{"v1", "s+v1"}, why: "no"},
		{name: "one of several keeps its store: it may not forget",
			bad:   map[string]error{"start " + CoordinatorUnit + " v2": no},
			phase: Returned, disk: disk{"v1", "s+v2+v1"}, why: "no"},
		{name: "the new agent does not start: what the new coordinator acknowledged stays", alone: true,
			bad:   map[string]error{"start " + AgentUnit + " v2": no},
			phase: Returned, disk: disk{"v1", "s+v2+v1"}, why: "no"},
		{name: "the node is not well", alone: true, bad: map[string]error{"well v2": no}, phase: Returned,
			disk: disk{"v1", "s+v2+v1"}, why: "no"},
		{name: "the old coordinator cannot go on with what the new one left", alone: true,
			bad:   map[string]error{"well v2": no, "start " + CoordinatorUnit + " v1": errors.New("what is this?")},
			times: map[string]int{"start " + CoordinatorUnit + " v1": 1},
			phase: Returned, disk: disk{"v1", "s+v1"}, why: "no"},
		{name: "a unit ends again", alone: true, bad: map[string]error{"steady " + AgentUnit: no}, phase: Returned,
			disk: disk{"v1", "s+v2+v1"}, why: "no"},
		{name: "no way back", alone: true, phase: Failed,
			bad:  map[string]error{"well v2": no, "install v1": errors.New("full")},
			disk: disk{"half", "s+v2+half"}, why: "no; and the old package cannot be installed: full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			f.bad = c.bad
			if c.times != nil {
				f.times = c.times
			}
			u := begin(t, f, c.alone)
			err := u.Run(t.Context())
			if (err == nil) != (c.phase == Done) {
				t.Errorf("it ends with %v", err)
			}
			r, loadErr := u.Dir.Load()
			if loadErr != nil {
				t.Fatal(loadErr)
			}
			if r.Phase != c.phase || f.disk != c.disk || !strings.Contains(r.Why, c.why) {
				t.Errorf("%s %+v because of %q, not %s %+v because of %q; it did %q", r.Phase, f.disk, r.Why, c.phase,
					c.disk, c.why, f.deeds)
			}
			for _, unit := range r.Units {
				if f.running[unit] != f.pkg {
					t.Errorf("%s runs as %q with the package %s", unit, f.running[unit], f.pkg)
				}
			}
		})
	}
}

// TestPowerCuts: power is lost in each deed, once and then in each deed of the return:
// the machine is the old one or the new one, whole, with a store of one of them.
func TestPowerCuts(t *testing.T) {
	for _, c := range []struct{ alone, unread bool }{{true, false}, {false, false}, {true, true}} {
		for first := 1; first < 40; first++ {
			for second := 0; second < 20; second++ {
				f := newFake()
				if f.unread = c.unread; f.unread {
					f.bad["well v2"] = errors.New("no")
				}
				u := begin(t, f, c.alone)
				if !cutIn(t, u, f, first) {
					if second == 0 && first < 10 {
						t.Fatalf("only %d deeds are done: %q", first-1, f.deeds)
					}
					break
				}
				was := len(f.deeds)
				lost := second > 0 && cutIn(t, next(t, f, u.Dir, "boot 2"), f, second)
				if second > 0 && !lost {
					break // the return has no such deed
				}
				f.deeds, f.cutAt = nil, 0
				last := next(t, f, u.Dir, "boot 3")
				if last.Record.Phase.Over() {
					continue
				}
				err := last.Run(t.Context())
				r := last.Record
				if !errors.Is(err, ErrReturned) || r.Phase != Returned || f.pkg != "v1" {
					t.Fatalf("cut in deeds %d and %d (of %d): %s with the package %s: %v",
						first, second, was, r.Phase, f.pkg, err)
				}
				if !strings.HasPrefix(f.store, "s") {
					t.Fatalf("cut in deeds %d and %d: the store is %q", first, second, f.store)
				}
				if r.Served && r.Store == "old" {
					t.Fatalf("cut in deeds %d and %d: what a ready coordinator acknowledged is lost", first, second)
				}
			}
		}
	}
}

// cutIn runs an upgrade until its nth deed, and tells whether there is one. Units do
// not run after a cut.
func cutIn(t *testing.T, u *Upgrade, f *fake, n int) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.deeds, f.cutAt, f.cut = nil, n, cancel
	if err := u.Run(ctx); err == nil || ctx.Err() == nil {
		return false
	}
	clear(f.running)
	return true
}

// TestAnotherStart: the process that upgrades is killed while it watches, and started
// again at the same boot: it goes back, and does not begin anew.
func TestAnotherStart(t *testing.T) {
	f := newFake()
	u := begin(t, f, true)
	f.bad = map[string]error{"well v2": errors.New("no")}
	if !cutIn(t, u, f, slices.Index([]string{"", "stop", "keep", "install", "start", "stop", "start"}, "start")) {
		t.Fatal("no such deed")
	}
	f.deeds, f.cutAt, f.bad = nil, 0, nil
	if err := next(t, f, u.Dir, "boot 1").Run(t.Context()); !errors.Is(err, ErrReturned) || f.pkg != "v1" {
		t.Errorf("%v, with the package %s", err, f.pkg)
	}
}

// slow is a machine whose old coordinator waits longer than it is waited for, or whose
// node is well once only.
type slow struct {
	*fake
	start bool
	wells int
}

func (s *slow) Start(ctx context.Context, unit string) error {
	if s.start && unit == CoordinatorUnit && s.pkg == "v1" {
		<-ctx.Done()
		return errors.New("systemctl was killed")
	}
	return s.fake.Start(ctx, unit)
}

func (s *slow) Well(ctx context.Context, version string) error {
	if version == "v2" {
		if s.wells++; s.wells > 1 {
			<-ctx.Done()
			return ctx.Err()
		}
	}
	return s.fake.Well(ctx, version)
}

// TestSlow: what comes late is not judged by that. A new version that is not well any more
// after it has settled is gone back from; an old coordinator that waits, for a network or
// for a majority, keeps its store, and the agent is started beside it.
func TestSlow(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			u := begin(t, f, true)
			u.Settle = time.Second
			u.Machine = &slow{fake: f, start: late}
			err := u.Run(t.Context())
			want := Returned
			if late {
				want = Failed
			}
			if r := u.Record; r.Phase != want || !strings.Contains(r.Why, "stay well") || f.pkg != "v1" ||
				r.Store != "kept" || f.running[AgentUnit] != "v1" {
				t.Errorf("late %v: %+v, %+v, %v: %v", late, r, f.disk, f.running, err)
			}
		})
	}
}

// falls has a node that never is well, and a unit that ends while it is waited for.
type falls struct{ *fake }

func (f falls) Well(ctx context.Context, version string) error {
	if version == "v1" {
		return f.fake.Well(ctx, version)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f falls) Steady(context.Context, string) error { return errors.New("it has ended") }

// TestFalls: nobody waits for a node whose agent ends again and again.
func TestFalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		u := begin(t, f, true)
		u.Machine = falls{f}
		began := time.Now()
		err := u.Run(t.Context())
		if !errors.Is(err, ErrReturned) || !strings.Contains(u.Record.Why, "it has ended") ||
			time.Since(began) > 2*steadyEach {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// full has a disk that takes nothing any more once the store is copied.
type full struct {
	*fake
	dir Dir
}

func (f full) KeepStore(ctx context.Context) error {
	return errors.Join(f.fake.KeepStore(ctx), os.RemoveAll(string(f.dir)))
}

// TestFullDisk: where no record can be written the old programs run nevertheless, and
// the end is written down when it can be.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		u := begin(t, f, true)
		u.Machine = full{f, u.Dir}
		go func() {
			time.Sleep(3*saveAgain + time.Second)
			synctest.Wait()
			if f.running[CoordinatorUnit] != "v1" || f.running[AgentUnit] != "v1" {
				t.Errorf("the old programs do not run: %v", f.running)
			}
			if err := os.MkdirAll(string(u.Dir), 0o700); err != nil {
				t.Error(err)
			}
		}()
		began := time.Now()
		err := u.Run(t.Context())
		r, loadErr := u.Dir.Load()
		if !errors.Is(err, ErrReturned) || loadErr != nil || r.Phase != Returned || time.Since(began) < 3*saveAgain {
			t.Errorf("%v, %v, %+v after %s", err, loadErr, r, time.Since(began))
		}
	})
}

// TestInterruptedAtPrepared: what a reboot came before is not begun at another time.
func TestInterruptedAtPrepared(t *testing.T) {
	f := newFake()
	u := begin(t, f, true)
	u.Boot = "boot 2"
	if err := u.Run(t.Context()); !errors.Is(err, ErrReturned) || f.pkg != "v1" || slices.Contains(f.deeds, "keep") {
		t.Errorf("%v; it did %q", err, f.deeds)
	}
}
