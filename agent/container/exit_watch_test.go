package container

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A child that is being started has a copy of each descriptor for a moment. When a monitor ends
// then, no file is closed that has got the number of its descriptor since.
func TestWatcherClosesOnlyItsOwn(t *testing.T) {
	var told atomic.Int32
	ended := make(chan string, 16)
	w, err := newWatcher(func(id string) {
		if told.Add(1) <= int32(cap(ended)) {
			ended <- id
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.add(cmd.Process.Pid, "a"); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	var copied int
	for fd := range w.ids {
		if copied, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 100); err != nil {
			t.Error(err)
		}
	}
	w.mu.Unlock()
	defer unix.Close(copied)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	select {
	case id := <-ended:
		if id != "a" {
			t.Errorf("%q has ended", id)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody tells of the end")
	}
	// These get the numbers that are free, that of the monitor among them.
	for range 16 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		time.Sleep(time.Millisecond)
		if _, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil {
			t.Errorf("somebody closed file %d: %v", f.Fd(), err)
		}
	}
	if n := told.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// TestMonitorIsNotWatched: a monitor that the kernel does not watch has not ended.
func TestMonitorIsNotWatched(t *testing.T) {
	ended := make(chan string, 1)
	w, err := newWatcher(func(id string) { ended <- id })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var asked atomic.Int32
	w.open = func(pid, flags int) (int, error) {
		if asked.Add(1) < 3 {
			return -1, unix.EMFILE
		}
		return unix.PidfdOpen(pid, flags)
	}
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at, err := startTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	m := &Manager{watch: w, cfg: Config{Log: slog.New(slog.DiscardHandler)}}
	c := &Container{ID: "a", Monitor: cmd.Process.Pid, MonitorAt: at}
	if !m.follow(c) {
		t.Error("a monitor that lives has ended")
	}
	for deadline := time.Now().Add(20 * time.Second); asked.Load() < 3 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Error("nobody tells of the end")
	}
	if m.follow(c) {
		t.Error("a monitor that has ended is followed")
	}
}

// TestNoDescriptors: a process of which nothing can be read has not ended, and who is to stop
// it hears that it was not told.
func TestNoDescriptors(t *testing.T) {
	at, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Dup(0) // the lowest that is free
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(next)
	low := limit
	low.Cur = uint64(next + 1) // one more, for the pidfd
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	told := signal(os.Getpid(), at, 0)
	held, _ := unix.Dup(0)
	same, asked := sameProcess(os.Getpid(), at)
	unix.Close(held)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(told, unix.EMFILE) {
		t.Errorf("a signal that was not sent: %v", told)
	}
	if same || !errors.Is(asked, unix.EMFILE) {
		t.Errorf("the process is the same: %v, %v", same, asked)
	}
	if same, err := sameProcess(os.Getpid(), at); !same || err != nil {
		t.Errorf("the process is the same: %v, %v", same, err)
	}
}
