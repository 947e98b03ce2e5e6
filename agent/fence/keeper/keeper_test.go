package keeper

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

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
	d := directory(t)
	target, ended := pod(t)
	first := set(t, d, 300*time.Millisecond)
	if err := d.Put("uid", target); err != nil {
		t.Fatal(err)
	}
	keep(t, d)
	last := set(t, d, time.Second) // in time
	<-ended
	if now := Clock(); now < last {
		t.Errorf("it ended %s before its deadline, the first was %s before that", last-now, last-first)
	}
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

// TestMain's process would be ended with its own keeper, so that one is another process.
func TestEnd(t *testing.T) {
	d := directory(t)
	if err := d.End(); err != nil {
		t.Errorf("nobody keeps: %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKeepUntilKilled$")
	cmd.Env = append(os.Environ(), keepIn+"="+d.Path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	waitKept(t, d)
	if err := d.End(); err != nil {
		t.Error(err)
	}
	<-done
}

const keepIn = "SHOAL_TEST_KEEP_IN"

func TestKeepUntilKilled(t *testing.T) {
	path := os.Getenv(keepIn)
	if path == "" {
		t.Skip("the other half of TestEnd")
	}
	k := Keeper{Directory: Directory{Path: path}, Say: func(string) {}}
	t.Error(k.Run(t.Context()))
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
