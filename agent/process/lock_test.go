package process

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain is also the program that holds a directory in these tests: its first
// thread ends when stdin has a line, the rest of it when stdin is closed. So it
// is like a process that was killed and has a thread left in a system call.
func TestMain(m *testing.M) {
	dir := os.Getenv("SHOAL_TEST_HOLD")
	if dir == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the first thread, for TestMain runs in the main goroutine
	if _, err := Lock(dir); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString("held\n")
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}

func init() { runtime.LockOSThread() }

func TestLock(t *testing.T) {
	dir := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "SHOAL_TEST_HOLD="+dir)
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Process.Kill() }()
	out := bufio.NewReader(stdout)
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, err = Lock(dir)
	var other *InUse
	if !errors.As(err, &other) || other.PID != strconv.Itoa(c.Process.Pid) {
		t.Fatalf("held by a living process: %v", err)
	}
	_, _ = io.WriteString(stdin, "\n")
	for !dying(c.Process.Pid) {
		runtime.Gosched()
	}
	got := make(chan error, 1)
	go func() {
		f, err := Lock(dir)
		if err == nil {
			_ = f.Close() // before the next one is taken
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("the last thread of the holder was not waited for: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	_ = stdin.Close()
	if err := <-got; err != nil {
		t.Errorf("held by a process that ends: %v", err)
	}
	_ = c.Wait()
	f, err := Lock(dir)
	if err != nil {
		t.Fatalf("after its end: %v", err)
	}
	defer f.Close()
	if text, err := os.ReadFile(f.Name()); err != nil || string(text) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("the lock names %q, %v", text, err)
	}
}

// TestLockOfChild: whoever was killed while it started a program leaves the lock to that for a
// moment.
func TestLockOfChild(t *testing.T) {
	dir := t.TempDir()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	child, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := child.WriteString(strconv.Itoa(ended.Process.Pid) + "\n"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(child.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(200*time.Millisecond, func() { child.Close() })
	f, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
