package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// killWait bounds the killing of one pod, syncWait the writing of what its processes
// left in memory: together less than fence.StopBound.
const (
	killWait = 1500 * time.Millisecond
	syncWait = time.Second
)

// Stop ends every process of the pods, all pods at once, and has what they wrote on
// its disk. An error is that something may still write.
func Stop(targets map[string]Target) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for uid, t := range targets {
		wg.Go(func() {
			err := kill(t.Groups)
			if err == nil {
				err = flushing.below(t.Volumes)
			}
			if err == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, fmt.Errorf("stop pod %s: %w", uid, err))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// StopOverdue stops the pods whose time is over. A deadline that cannot be read is past:
// then unread tells why.
func (d Directory) StopOverdue() (unread, err error) {
	deadline, unread := d.Deadline()
	if unread == nil && Clock() < deadline {
		return nil, nil
	}
	targets, err := d.Targets()
	if err != nil {
		return unread, err
	}
	return unread, Stop(targets)
}

// kill ends the processes in the groups and below them.
func kill(groups []string) error {
	pause := time.Millisecond
	for end := Clock() + killWait; ; pause = min(2*pause, 20*time.Millisecond) {
		left := 0
		for _, g := range groups {
			_ = os.WriteFile(filepath.Join(g, "cgroup.kill"), []byte("1"), 0) // v2 only; the loop is for all
			pids, err := members(g)
			if err != nil {
				return err
			}
			left += len(pids)
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		if Clock() > end {
			return fmt.Errorf("%d processes are left", left)
		}
		time.Sleep(pause)
	}
}

// members are the processes in a group and below it, but for those that have ended and
// wait for their parent to notice.
func members(group string) (pids []int, err error) {
	err = filepath.WalkDir(group, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return ignoreGone(err)
		}
		b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if err != nil {
			return ignoreGone(err)
		}
		for f := range strings.FieldsSeq(string(b)) {
			if pid, _ := strconv.Atoi(f); pid > 0 && !zombie(pid) {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids, err
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

// zombie tells whether a process has ended. One whose other threads still run has not.
func zombie(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	for _, t := range tasks {
		b, err := os.ReadFile(filepath.Join(dir, t.Name(), "stat"))
		if err != nil {
			continue // it has gone meanwhile
		}
		_, rest, _ := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), " ")
		if !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X") {
			return false
		}
	}
	return true
}

// flushes has file systems written, so that the kernel writes nothing of the ended
// processes later. What a disk or server does not answer stays under way, with a thread of
// this process: of a directory there is one at a time.
type flushes struct {
	sync    func(mount string) error
	mu      sync.Mutex
	running map[string]chan struct{} // by directory, closed at the end
}

var flushing = flushes{sync: syncFileSystem, running: map[string]chan struct{}{}}

// below writes all file systems mounted below dir, and waits for syncWait at most.
func (f *flushes) below(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil || len(mounts) == 0 {
		return err
	}
	return f.write(dir, mounts)
}

func (f *flushes) write(dir string, mounts []string) error {
	late := time.After(syncWait)
	failed := fmt.Errorf("file systems below %s are still being written", dir)
	ended := make(chan struct{})
	for {
		before := f.begin(dir, ended)
		if before == nil {
			break
		}
		select { // what was written after that one began is not in it
		case <-before:
		case <-late:
			return failed
		}
	}
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, m := range mounts {
			errs = append(errs, f.sync(m))
		}
		f.mu.Lock()
		delete(f.running, dir)
		f.mu.Unlock()
		close(ended)
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-late:
		return failed
	}
}

// begin takes the place of the one flush of dir, or tells when that one ends.
func (f *flushes) begin(dir string, ended chan struct{}) (before <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before := f.running[dir]; before != nil {
		return before
	}
	f.running[dir] = ended
	return nil
}

func syncFileSystem(dir string) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil // unmounted meanwhile, or a file of another mount
		}
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// mountsBelow lists where something is mounted below dir.
func mountsBelow(dir string) (list []string, err error) {
	if dir == "" {
		return nil, nil
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		if len(fields) > 4 {
			if at := unescape(fields[4]); strings.HasPrefix(at, dir+"/") {
				list = append(list, at)
			}
		}
	}
	return list, nil
}

// unescape undoes mountinfo's octal escapes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
