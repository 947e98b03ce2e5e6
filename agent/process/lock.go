package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// InUse is the error of a directory that another process holds.
type InUse struct{ PID string }

func (e *InUse) Error() string { return "in use by process " + e.PID }

// lastBreath bounds how long a killed holder is waited for. A process that
// syncs a file when it is killed ends when the disk is done.
const lastBreath = 30 * time.Second

// childTime bounds how long is waited for a child that a holder was starting when it was
// killed: it has the holder's descriptors until it runs its program.
const childTime = 5 * time.Second

// Lock makes the directory if need be and takes it for this process, until the
// file is closed or the process ends, however it ends. The file "lock" in it
// tells who holds it.
func Lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := take(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0) // only a hint; a full disk takes none
	}
	return f, nil
}

// LockUnwritable is Lock for a directory on a disk that has become read-only, where a process
// held it before.
func LockUnwritable(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := take(f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func take(f *os.File) error {
	waited := false
	var until time.Time
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		text := make([]byte, 16)
		n, _ := f.ReadAt(text, 0)
		holder := &InUse{PID: strings.TrimSpace(string(text[:n]))}
		pid, err := strconv.Atoi(holder.PID)
		switch {
		case err != nil:
			return holder
		case waited || gone(pid):
			if until.IsZero() {
				until = time.Now().Add(childTime)
			}
			if time.Now().After(until) {
				return holder
			}
			time.Sleep(5 * time.Millisecond) // nothing tells of it
		case !dying(pid):
			return holder
		default:
			waited = true
			awaitEnd(pid)
		}
	}
}

func gone(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) }

// dying tells whether the process was killed and has not ended yet.
func dying(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	stat, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return false
	}
	// After the name, which may hold anything: state, 5 numbers, flags; proc_pid_stat(5).
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 7 {
		return false
	}
	const exiting = 0x4 // PF_EXITING
	flags, _ := strconv.ParseUint(string(fields[6]), 10, 64)
	if state := string(fields[0]); state == "Z" || state == "X" || flags&exiting != 0 {
		return true
	}
	status, _ := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(status)) {
		name, mask, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if pending, _ := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); pending&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// awaitEnd returns when the last thread of a process has ended, or after
// lastBreath.
func awaitEnd(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	until := time.Now().Add(lastBreath)
	for left := time.Until(until); left > 0; left = time.Until(until) {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
