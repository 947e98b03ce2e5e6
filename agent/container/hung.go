package container

import (
	"cmp"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// hungWait is how long a monitor may take to end after its container's first process: it
// writes the rest of the log and the exit code, with the CPU time that the pod leaves it. One
// that somebody stopped, or that its disk keeps, would have the container run for ever.
const hungWait = time.Minute

// watchFirst has the container's first process watched. Of runtimes whose containers are more
// than processes of this machine, the number may mean another thing.
func (m *Manager) watchFirst(c *Container) {
	rt, err := m.runtime(c.Handler)
	if err != nil || !rt.Direct() {
		return
	}
	lives, err := sameProcess(c.PID, c.PIDStart)
	if lives {
		err = m.firsts.add(c.PID, c.ID)
	}
	if !lives && err == nil || errors.Is(err, unix.ESRCH) {
		m.expectEnd(c.ID) // it has ended already
	}
}

// expectEnd gives the monitor of a container whose first process has ended some time to end,
// too.
func (m *Manager) expectEnd(id string) {
	time.AfterFunc(cmp.Or(m.cfg.hungWait, hungWait), func() { m.endHungMonitor(id) })
}

// endHungMonitor kills a monitor that has not told its container's end.
func (m *Manager) endHungMonitor(id string) {
	s, err := m.find(id)
	if err != nil {
		return
	}
	c := m.state(s)
	if c.State != Running {
		return
	}
	if monitor, err := sameProcess(c.Monitor, c.MonitorAt); !monitor || err != nil {
		return
	}
	m.cfg.Log.Warn("a container has ended, and its monitor (conmon) does not tell how: it is killed",
		"container", id, "monitor", c.Monitor)
	if err := signal(c.Monitor, c.MonitorAt, unix.SIGKILL); err != nil {
		m.cfg.Log.Warn("cannot kill a monitor", "container", id, "monitor", c.Monitor, "err", err)
	}
}
