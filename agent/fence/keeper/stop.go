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
				err = flush(t.Volumes)
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

// flush has the file systems below dir written, so that the kernel writes nothing of the
// ended processes later.
func flush(dir string) error {
	mounts, err := mountsBelow(dir)
	if err != nil || len(mounts) == 0 {
		return err
	}
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, m := range mounts {
			errs = append(errs, syncFileSystem(m))
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(syncWait):
		return fmt.Errorf("file systems below %s are still being written", dir)
	}
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
