package keeper

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// pod is a process in a directory that looks like its control group.
func pod(t *testing.T) (target Target, ended <-chan struct{}) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := t.TempDir()
	if err := os.Mkdir(filepath.Join(group, "container"), 0o755); err != nil {
		t.Fatal(err)
	}
	procs := filepath.Join(group, "container", "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return Target{Groups: []string{group}}, done
}

func directory(t *testing.T) Directory {
	t.Helper()
	d := Directory{Path: filepath.Join(t.TempDir(), "boot")}
	if err := d.Make(); err != nil {
		t.Fatal(err)
	}
	return d
}

// keep runs a keeper until the test ends.
func keep(t *testing.T, d Directory) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- (&Keeper{Directory: d, Say: func(s string) { t.Log(s) }}).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	waitKept(t, d)
}

func waitKept(t *testing.T, d Directory) {
	t.Helper()
	for kept := false; !kept; time.Sleep(time.Millisecond) {
		var err error
		if kept, err = d.Kept(); err != nil {
			t.Fatal(err)
		}
	}
}

func set(t *testing.T, d Directory, in time.Duration) time.Duration {
	t.Helper()
	at := Clock() + in
	if err := d.SetDeadline(at); err != nil {
		t.Fatal(err)
	}
	return at
}

func TestAPodEndsAtItsDeadlineAndNotBefore(t *testing.T) {
	// On a busy machine the first deadline may come before the last is set.
	for in := 300 * time.Millisecond; !endsAtItsDeadline(t, in); in *= 2 {
		if in > time.Minute {
			t.Fatal("no deadline was set in time")
		}
	}
}

// endsAtItsDeadline puts the deadline of a pod off, which it tells whether it did in time.
func endsAtItsDeadline(t *testing.T, in time.Duration) bool {
	t.Helper()
	d := directory(t)
	target, ended := pod(t)
	first := set(t, d, in)
	if err := d.Put("uid", target); err != nil {
		t.Fatal(err)
	}
	keep(t, d)
	last := set(t, d, in+time.Second)
	if Clock() >= first {
		return false
	}
	<-ended
	if now := Clock(); now < last {
		t.Errorf("it ended %s before its deadline, the first was %s before that", last-now, last-first)
	}
	return true
}

func TestWithoutADeadlineAPodEndsAtOnce(t *testing.T) {
	for name, damage := range map[string]func(Directory) error{
		"none":    func(Directory) error { return nil },
		"damaged": func(d Directory) error { return os.WriteFile(filepath.Join(d.Path, "deadline"), []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			d := directory(t)
			if err := damage(d); err != nil {
				t.Fatal(err)
			}
			target, ended := pod(t)
			if err := d.Put("uid", target); err != nil {
				t.Fatal(err)
			}
			keep(t, d)
			<-ended
		})
	}
}

func TestThereIsOneKeeper(t *testing.T) {
	d := directory(t)
	if kept, err := d.Kept(); err != nil || kept {
		t.Fatalf("kept by nobody: %v, %v", kept, err)
	}
	target, _ := pod(t)
	set(t, d, time.Hour)
	if err := d.Put("uid", target); err != nil {
		t.Fatal(err)
	}
	keep(t, d)
	if err := (&Keeper{Directory: d}).Run(t.Context()); err != nil { // it would stay
		t.Error(err)
	}
}

func TestAKeeperEndsWithItsDirectory(t *testing.T) {
	d := directory(t)
	done := make(chan error, 1)
	go func() { done <- (&Keeper{Directory: d, Say: func(s string) { t.Log(s) }}).Run(t.Context()) }()
	waitKept(t, d)
	if err := os.RemoveAll(d.Path); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheMachineIsResetWhenAPodDoesNotEnd(t *testing.T) {
	d := directory(t)
	group := t.TempDir()
	// The kernel's threads take no signals.
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if zombie(2) {
		t.Skip("there is no kernel thread here")
	}
	if err := d.Put("uid", Target{Groups: []string{group}}); err != nil {
		t.Fatal(err)
	}
	var resets, words atomic.Int32
	k := Keeper{Directory: d, Reset: func() { resets.Add(1) }, Say: func(string) { words.Add(1) }}
	k.look()
	if resets.Load() != 1 || words.Load() != 1 {
		t.Errorf("%d resets, said %d times", resets.Load(), words.Load())
	}
}

// device is a watchdog device that remembers.
type device struct {
	mu     sync.Mutex
	opened int
	wrote  []byte
	closed bool
}

func (d *device) open() (io.WriteCloser, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened, d.wrote, d.closed = d.opened+1, nil, false
	return d, nil
}

func (d *device) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrote = append(d.wrote, b...)
	return len(b), nil
}

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

// disarmed tells whether the device was closed with the letter V as the last: otherwise it
// resets the machine.
func (d *device) disarmed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed && bytes.HasSuffix(d.wrote, []byte("V"))
}

func TestAWatchdogIsWrittenToEachSecond(t *testing.T) {
	for name, deadline := range map[string]time.Duration{"no pods": 0, "pods": time.Hour} {
		d, dog := directory(t), &device{}
		if deadline > 0 {
			target, _ := pod(t)
			set(t, d, deadline)
			if err := d.Put("uid", target); err != nil {
				t.Fatal(err)
			}
		}
		k := &Keeper{Directory: d, OpenWatchdog: dog.open, Say: func(s string) { t.Log(s) }}
		if err := k.arm(); err != nil {
			t.Fatal(err)
		}
		if next, _ := k.look(); next > Clock()+lookAgain || len(dog.wrote) != 1 {
			t.Errorf("%s: written %d times, again in %s", name, len(dog.wrote), next-Clock())
		}
	}
}

func TestAWatchdogIsToldAnOrderlyEndOnly(t *testing.T) {
	for _, tt := range []struct {
		name  string
		put   func(*testing.T, Directory) error
		end   func(Directory, context.CancelFunc) error
		fails bool
	}{
		{"no pods for a while", func(*testing.T, Directory) error { return nil },
			func(Directory, context.CancelFunc) error { return nil }, false},
		{"asked to end, pods stopped", func(t *testing.T, d Directory) error {
			set(t, d, time.Hour)
			target, _ := pod(t)
			return d.Put("uid", target)
		}, func(_ Directory, cancel context.CancelFunc) error { cancel(); return nil }, false},
		{"asked to end, a pod goes on", func(t *testing.T, d Directory) error {
			set(t, d, time.Hour)
			group := t.TempDir()
			if err := os.Mkdir(filepath.Join(group, "cgroup.procs"), 0o700); err != nil { // not readable
				return err
			}
			return d.Put("uid", Target{Groups: []string{group}})
		}, func(_ Directory, cancel context.CancelFunc) error { cancel(); return nil }, true},
		{"directory removed", func(*testing.T, Directory) error { return nil },
			func(d Directory, _ context.CancelFunc) error { return os.RemoveAll(d.Path) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, dog := directory(t), &device{}
			if err := tt.put(t, d); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			k := &Keeper{Directory: d, OpenWatchdog: dog.open, Say: func(s string) { t.Log(s) }}
			k.idle = 200 * time.Millisecond
			go func() { done <- k.Run(ctx) }()
			waitKept(t, d)
			if err := tt.end(d, cancel); err != nil {
				t.Fatal(err)
			}
			if err := <-done; (err != nil) != tt.fails {
				t.Error(err)
			}
			if dog.disarmed() == tt.fails {
				t.Errorf("it was told %q", dog.wrote)
			}
		})
	}
}

func TestAKeeperTooManyLeavesTheWatchdogAlone(t *testing.T) {
	d, dog := directory(t), &device{}
	set(t, d, time.Hour)
	keep(t, d)
	if err := (&Keeper{Directory: d, OpenWatchdog: dog.open}).Run(t.Context()); err != nil || dog.opened != 0 {
		t.Errorf("opened %d times, %v", dog.opened, err)
	}
}

// A server that does not answer costs one thread, however often it is tried.
func TestOneFlushOfADirectoryIsUnderWay(t *testing.T) {
	answer := make(chan struct{})
	var begun atomic.Int32
	f := flushes{running: map[string]chan struct{}{}, sync: func(string) error {
		begun.Add(1)
		<-answer
		return nil
	}}
	for range 2 {
		if f.write("a", []string{"a/m"}) == nil {
			t.Error("it is not written")
		}
	}
	if n := begun.Load(); n != 1 {
		t.Errorf("%d are under way", n)
	}
	close(answer)
	if err := f.write("a", []string{"a/m"}); err != nil || begun.Load() != 2 {
		t.Errorf("%v, %d begun: what was written since then is not in the first", err, begun.Load())
	}
}

// The number of a keeper that was killed may be another process's by now.
func TestANumberThatIsNotTheKeepersGetsNoSignal(t *testing.T) {
	d := directory(t)
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	pid := strconv.Itoa(cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(d.Path, "lock"), []byte(pid), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.signal(cmd.Process.Pid, unix.SIGKILL), d.End()); err != nil {
		t.Error(err)
	}
	time.Sleep(10 * time.Millisecond) // a signal would have been delivered by then
	if zombie(cmd.Process.Pid) {
		t.Error("another process was killed")
	}
}

// TestMain's process would be ended with its own keeper, so that one is another process.
func TestEnd(t *testing.T) {
	d := directory(t)
	if err := d.End(); err != nil {
		t.Errorf("nobody keeps: %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKeepUntilAsked$")
	cmd.Env = append(os.Environ(), keepIn+"="+d.Path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var failed error
	done := make(chan struct{})
	go func() { failed = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	waitKept(t, d)
	if err := d.End(); err != nil {
		t.Error(err)
	}
	if <-done; failed != nil {
		t.Errorf("it was not asked to end: %v", failed)
	}
}

const keepIn = "SHOAL_TEST_KEEP_IN"

func TestKeepUntilAsked(t *testing.T) {
	path := os.Getenv(keepIn)
	if path == "" {
		t.Skip("the other half of TestEnd")
	}
	ctx, stop := signal.NotifyContext(t.Context(), unix.SIGTERM)
	defer stop()
	k := Keeper{Directory: Directory{Path: path}, Say: func(string) {}}
	if err := k.Run(ctx); err != nil {
		t.Error(err)
	}
}

func TestAZombieHasEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for !zombie(cmd.Process.Pid) { // it ends, and nobody has waited
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if zombie(os.Getpid()) {
		t.Error("this test runs")
	}
}

func TestMountsBelow(t *testing.T) {
	list, err := mountsBelow("/proc/..") // no mount point is written so
	if err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
	if list, err = mountsBelow("/sys"); err != nil || len(list) == 0 {
		t.Errorf("%v, %v: control groups are mounted there", list, err)
	}
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("unescaped %q", got)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"groups":["/a"],"volumes":"/b"}`))
	f.Add([]byte(`{"at":1}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := Directory{Path: t.TempDir()}
		if err := d.Make(); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"deadline", "pods/uid"} {
			if err := os.WriteFile(filepath.Join(d.Path, file), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = d.Deadline() // no panic
		_, _ = d.Targets()
	})
}
