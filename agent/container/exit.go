package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/cgroup"
	"golang.org/x/sys/unix"
)

// watcher tells when processes of containers end, by their pidfds in one epoll: one
// goroutine in all and one descriptor a container, nothing polled.
type watcher struct {
	file  *os.File
	ended func(id string)
	done  chan struct{}
	open  func(pid, flags int) (fd int, err error) // pidfd_open(2), but of a test

	mu  sync.Mutex
	ids map[int32]string // pidfd -> container
}

func newWatcher(ended func(id string)) (*watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch monitors: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that Go's poller takes it
		return nil, fmt.Errorf("watch monitors: %w", err)
	}
	w := &watcher{file: os.NewFile(uintptr(fd), "monitors"), ended: ended,
		done: make(chan struct{}), open: unix.PidfdOpen, ids: map[int32]string{}}
	go w.run()
	return w, nil
}

// add watches a process; it fails with ESRCH if the process has ended.
func (w *watcher) add(pid int, id string) error {
	fd, err := w.open(pid, 0)
	if err != nil {
		return fmt.Errorf("watch monitor %d: %w", pid, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ids[int32(fd)] = id
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := w.control(func(ep int) error { return unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev) }); err != nil {
		delete(w.ids, int32(fd))
		unix.Close(fd)
		return fmt.Errorf("watch monitor %d: %w", pid, err)
	}
	return nil
}

func (w *watcher) control(fn func(ep int) error) error {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func (w *watcher) run() {
	defer close(w.done)
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 64)
	for {
		n := 0
		err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), events, 0)
			return n > 0
		})
		if err != nil {
			return // closed
		}
		for _, e := range events[:n] {
			if id, ok := w.drop(e.Fd); ok {
				go w.ended(id) // killing leftovers may take a moment
			}
		}
	}
}

// drop forgets a process that has ended, and tells whose monitor it was. Its descriptor leaves
// the epoll before it is closed: by closing alone it stays there while a child that is just
// being started has a copy, and its number, which may be another file's by then, comes again.
func (w *watcher) drop(fd int32) (id string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if id, ok = w.ids[fd]; !ok {
		return "", false
	}
	delete(w.ids, fd)
	// It fails where the watch has been closed, which ends what is told of the descriptor too.
	_ = w.control(func(ep int) error { return unix.EpollCtl(ep, unix.EPOLL_CTL_DEL, int(fd), nil) })
	unix.Close(int(fd))
	return id, true
}

// Close ends the watch.
func (w *watcher) Close() error {
	err := w.file.Close()
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.ids {
		unix.Close(int(fd))
	}
	clear(w.ids)
	return err
}

// lookAgain is how often a monitor is looked for that the kernel does not watch.
const lookAgain = time.Second

// follow has the end of a container's monitor recorded; false when it has ended. A monitor
// that the kernel does not watch, for lack of memory or of descriptors, has not ended: it is
// looked for until it is watched.
func (m *Manager) follow(c *Container) bool {
	err := m.watch.add(c.Monitor, c.ID)
	switch {
	case err == nil:
		return true
	case errors.Is(err, unix.ESRCH):
		return false
	}
	m.unwatched.Do(func() {
		m.cfg.Log.Warn("the end of containers is looked for each second where the kernel does not tell",
			"container", c.ID, "err", err)
	})
	id, monitor, at := c.ID, c.Monitor, c.MonitorAt
	go func() {
		for {
			if same, err := sameProcess(monitor, at); !same && err == nil {
				break
			}
			select {
			case <-m.watch.done:
				return
			case <-time.After(lookAgain):
			}
			if m.watch.add(monitor, id) == nil {
				return
			}
		}
		m.recordEnd(id)
	}()
	return true
}

// recordEnd records how a container ended, after its monitor has.
func (m *Manager) recordEnd(id string) {
	s, err := m.find(id)
	if err != nil {
		return // removed
	}
	c := *m.state(s)
	if c.State != Running {
		return
	}
	code, at, err := m.exitFile(id)
	oom := m.oomKills(&c, code)
	switch {
	case err == nil:
		c.ExitCode, c.FinishedAt = code, at
		c.Reason = reason(code, oom)
	default:
		c.ExitCode, c.FinishedAt, c.Reason = exitUnknown, time.Now(), ReasonUnknown
		c.Message = "the container's monitor (conmon) ended without telling its exit code"
	}
	c.State = Exited
	// Without its first process a container is over, also for processes that
	// share another PID namespace or whose monitor was killed.
	if err := m.cfg.Cgroups.Kill(c.Cgroup); err != nil {
		m.cfg.Log.Warn("cannot end a container's left processes", "container", id, "err", err)
	}
	m.freeQuota(&c)
	m.finish(s, c)
}

// freeQuota takes the limit of the CPU from the group of a container that has ended.
// cgroup v1 gives no group less than one below it has, and this one stays until the
// container is removed: its pod could not shrink.
func (m *Manager) freeQuota(c *Container) {
	if m.cfg.Host.CgroupV2 || c.Config.GetLinux().GetResources().GetCpuQuota() <= 0 {
		return
	}
	none := int64(-1)
	if err := m.cfg.Cgroups.Set(c.Cgroup, cgroup.Resources{CPUQuota: &none}); err != nil {
		m.cfg.Log.Debug("an ended container keeps its CPU quota", "container", c.ID, "err", err)
	}
}

// oomKills counts the processes that the kernel killed for lack of memory.
// systemd removes a scope as soon as it is empty, and its count with it; then
// a killed container takes those that its pod's group counted and no other
// container of the pod has taken.
func (m *Manager) oomKills(c *Container, code int32) uint64 {
	n, _ := m.cfg.Cgroups.OOMKills(c.Cgroup)
	if m.cfg.Cgroups.Driver() != cgroup.Systemd {
		return n
	}
	all, podErr := m.cfg.Cgroups.OOMKills(filepath.Dir(c.Cgroup))
	if podErr != nil {
		return n
	}
	if n == 0 && code == exitKilled {
		n = all - min(all, m.takenOOMs(filepath.Dir(c.Cgroup)))
	}
	if n > 0 {
		c.PodOOMs = all
	}
	return n
}

// takenOOMs is the highest count of a pod's group that its containers know.
func (m *Manager) takenOOMs(pod string) uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var most uint64
	for _, s := range m.all {
		if filepath.Dir(s.c.Cgroup) == pod {
			most = max(most, s.c.PodOOMs)
		}
	}
	return most
}

// finish publishes the end of a container once.
func (m *Manager) finish(s *slot, c Container) {
	m.mu.Lock()
	if s.c.State == Exited {
		m.mu.Unlock()
		return
	}
	s.c = &c
	m.mu.Unlock()
	if err := m.records.Put(c.ID, &record{&c}); err != nil {
		m.cfg.Log.Error("cannot record a container's end", "container", c.ID, "err", err)
	}
	close(s.exited)
	m.cfg.OnChange(&c)
}

func reason(code int32, oomKills uint64) string {
	switch {
	case code == 0:
		return ReasonCompleted
	case oomKills > 0: // of any of its processes, as containerd tells it
		return ReasonOOMKilled
	}
	return ReasonError
}

// exitFile reads what conmon wrote: the code, and by the file's time the end.
// It lies in the run directory alone: a copy on the disk (--persist-dir) would
// be written first, and a full disk would take the code with it.
func (m *Manager) exitFile(id string) (int32, time.Time, error) {
	f := filepath.Join(m.exitDir(), id)
	b, err := os.ReadFile(f)
	if err != nil {
		return 0, time.Time{}, err
	}
	info, err := os.Stat(f)
	if err != nil {
		return 0, time.Time{}, err
	}
	code, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 32)
	return int32(code), info.ModTime(), err
}
