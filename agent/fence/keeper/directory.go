package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Directory is what agent and keeper share; another boot has another one:
//
//	deadline     when the hold ends, by Clock
//	voters       who may prolong it (the agent's alone)
//	pods/UID     what to stop then
//	lock         held by the keeper as long as it lives
type Directory struct{ Path string }

// Target is what there is to stop of a pod.
type Target struct {
	// Groups are directories of control groups: every process of the pod is in one of
	// them or below.
	Groups []string `json:"groups"`
	// Volumes is the directory below which the pod's volumes are mounted.
	Volumes string `json:"volumes,omitempty"`
}

type deadlineFile struct {
	At time.Duration `json:"at"`
}

// limit bounds what is read of a file here.
const limit = 64 << 10

func (d Directory) pods() string { return filepath.Join(d.Path, "pods") }

// Make makes the directory.
func (d Directory) Make() error { return os.MkdirAll(d.pods(), 0o700) }

// Deadline is when the hold ends; 0 when there was none yet.
func (d Directory) Deadline() (time.Duration, error) {
	var f deadlineFile
	err := read(filepath.Join(d.Path, "deadline"), &f)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	return f.At, err
}

// SetDeadline is complete when it returns, or has not happened.
func (d Directory) SetDeadline(at time.Duration) error {
	return write(filepath.Join(d.Path, "deadline"), deadlineFile{at})
}

// Voters are the lists of other nodes that SetVoters wrote last.
func (d Directory) Voters() (lists [][]string, err error) {
	err = read(filepath.Join(d.Path, "voters"), &lists)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return lists, err
}

// SetVoters is complete when it returns, or has not happened.
func (d Directory) SetVoters(lists [][]string) error {
	return write(filepath.Join(d.Path, "voters"), lists)
}

// Put registers a pod.
func (d Directory) Put(uid string, t Target) error {
	if uid == "" || strings.ContainsAny(uid, "/.") {
		return fmt.Errorf("register pod %q: no UID", uid)
	}
	return write(filepath.Join(d.pods(), uid), t)
}

// Drop forgets a pod.
func (d Directory) Drop(uid string) error {
	err := os.Remove(filepath.Join(d.pods(), uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Targets are the registered pods, by UID.
func (d Directory) Targets() (map[string]Target, error) {
	list, err := os.ReadDir(d.pods())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[string]Target{}
	for _, e := range list {
		if strings.HasSuffix(e.Name(), ".new") {
			continue // of a write that was cut short: it has not happened
		}
		var t Target
		if err := read(filepath.Join(d.pods(), e.Name()), &t); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, err
		}
		out[e.Name()] = t
	}
	return out, nil
}

// lock takes the keeper's place; false: it is taken.
func (d Directory) lock() (*os.File, bool, error) {
	f, err := d.open()
	if err != nil {
		return nil, false, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, false, f.Close()
	}
	if err != nil {
		return nil, false, withClosed(f, err)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid()))); err != nil {
		return nil, false, withClosed(f, err)
	}
	return f, true, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// endWait is how long a keeper may take to end by itself: it stops its pods.
const endWait = killWait + syncWait

// End ends the keeper, if there is one: its pods have ended. It is asked to, so that it
// closes its watchdog, and made to after endWait.
func (d Directory) End() error {
	began, asked := Clock(), 0
	for ; ; time.Sleep(time.Millisecond) {
		kept, err := d.Kept()
		if err != nil || !kept {
			return err
		}
		late := Clock() - began
		if late > endWait+killWait {
			return fmt.Errorf("the keeper of %s does not end", d.Path)
		}
		pid := d.keeper()
		if pid <= 1 || pid == os.Getpid() || pid == asked && late < endWait {
			continue
		}
		signal := unix.SIGTERM
		if late >= endWait {
			signal = unix.SIGKILL
		}
		if err := d.signal(pid, signal); err != nil {
			return err
		}
		asked = pid
	}
}

// keeper is the number of the process that says that it keeps, 0: it has not said so.
func (d Directory) keeper() int {
	b, err := os.ReadFile(filepath.Join(d.Path, "lock"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(string(b))
	return pid
}

// signal sends to the keeper, and to no process that has its number after it: what still
// keeps with the number after the process was opened is that process, or came later.
func (d Directory) signal(pid int, s unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	if kept, err := d.Kept(); err != nil || !kept || d.keeper() != pid {
		return err
	}
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	return nil
}

func (d Directory) open() (*os.File, error) {
	return os.OpenFile(filepath.Join(d.Path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
}

// Kept tells whether a keeper lives. It only asks: taking the place for a moment would
// turn away a keeper that comes.
func (d Directory) Kept() (bool, error) {
	f, err := d.open()
	if err != nil {
		return false, err
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, err
	}
	return l.Type != unix.F_UNLCK, nil
}

func read(file string, into any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, limit)
	n, err := f.Read(b)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if err := json.Unmarshal(b[:n], into); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	return nil
}

func write(file string, what any) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
