package problem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/host"
)

// machine is one that exists in memory.
type machine struct {
	t *testing.T

	mu      sync.Mutex
	history []host.KernelLine
	mounts  map[string]host.Mount
	tasks   map[int]host.Task
	looks   int // at mounts
	asked   int // for tasks
	events  []string

	log       chan host.KernelLine
	remounted chan struct{}
	watching  int // mounts
	set       chan struct{}
	offset    time.Duration // of the wall's clock
	steps     []time.Duration
	noLog     bool
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, mounts: map[string]host.Mount{"/data": {Point: "/", Device: "vda1"}},
		tasks: map[int]host.Task{}}
}

// boot is how long the machine has been up when the bubble's time begins.
const boot = 1000 * time.Hour

var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of synctest

func (m *machine) machine() Machine {
	return Machine{
		KernelLog: func(ctx context.Context, take func(host.KernelLine), caught func()) error {
			if m.noLog {
				return fs.ErrPermission
			}
			for _, l := range m.history {
				take(l)
			}
			caught()
			for {
				select {
				case <-ctx.Done():
					return nil
				case l := <-m.log:
					take(l)
				}
			}
		},
		Mounts: func([]string) (map[string]host.Mount, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.looks++
			return m.mounts, nil
		},
		WatchMounts: func(ctx context.Context) (<-chan struct{}, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.watching++
			context.AfterFunc(ctx, func() {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.watching--
			})
			return m.remounted, nil
		},
		Task: func(id int) (host.Task, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.asked++
			t, ok := m.tasks[id]
			if !ok {
				return t, fs.ErrNotExist
			}
			return t, nil
		},
		Clocks: func() host.Instant {
			m.mu.Lock()
			defer m.mu.Unlock()
			return host.Instant{Wall: time.Now().Add(m.offset), Boot: boot + time.Since(epoch)}
		},
		WatchClock: func(ctx context.Context, set func()) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-m.set:
					set()
				}
			}
		},
		Synchronized: func() bool { return true },
	}
}

// run has a watcher follow the machine in a bubble.
func (m *machine) run(test func(w *Watcher)) {
	synctest.Test(m.t, func(t *testing.T) {
		m.log, m.remounted, m.set = make(chan host.KernelLine), make(chan struct{}, 1), make(chan struct{})
		w := &Watcher{Machine: m.machine(), Paths: []string{"/data"}, Log: slog.New(slog.DiscardHandler),
			Event: func(reason, message string) {
				m.mu.Lock()
				defer m.mu.Unlock()
				m.events = append(m.events, reason+": "+message)
			},
			Changed: func() {},
			Set:     func(step time.Duration) { m.steps = append(m.steps, step) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		synctest.Wait()
		test(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (m *machine) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

func (m *machine) says(text string) {
	m.log <- host.KernelLine{Text: text}
	synctest.Wait()
}

// holds fails unless the condition has the status, with some words in its message.
func (m *machine) holds(w *Watcher, t corev1.NodeConditionType, want corev1.ConditionStatus, words string) {
	m.t.Helper()
	for _, c := range w.Conditions() {
		if c.Type != t {
			continue
		}
		if c.Status != want || !strings.Contains(c.Message, words) || !Mine(c) {
			m.t.Errorf("%s is %s (%s: %s), want %s with %q", t, c.Status, c.Reason, c.Message, want, words)
		}
		return
	}
	if want != corev1.ConditionUnknown {
		m.t.Errorf("%s is not known", t)
	}
}

func (m *machine) told(want ...string) {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.events, want) {
		m.t.Errorf("events %q, want %q", m.events, want)
	}
	m.events = nil
}

const yes, no, unknown = corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown

func TestWellMachineIsLeftAlone(t *testing.T) {
	m := newMachine(t)
	m.run(func(w *Watcher) {
		m.says("device eth0 entered promiscuous mode")
		time.Sleep(24 * time.Hour)
		m.holds(w, KernelDeadlock, no, "")
		m.holds(w, ReadonlyFilesystem, no, "")
		m.holds(w, ClockProblem, unknown, "")
		m.told()
		m.change(func() {
			if m.looks != 1 || m.asked != 0 || m.watching != 0 {
				t.Errorf("%d looks, %d tasks asked, %d watches", m.looks, m.asked, m.watching)
			}
		})
	})
}

func TestHungTasks(t *testing.T) {
	m := newMachine(t)
	waits := func(switches uint64) host.Task {
		return host.Task{Started: boot - time.Hour, Waiting: true, Switches: switches}
	}
	m.run(func(w *Watcher) {
		m.change(func() { m.tasks[7], m.tasks[8] = waits(3), host.Task{Started: boot - time.Hour} })
		m.says("INFO: task dd:8 blocked for more than 120 seconds.") // and went on
		m.says("INFO: task dd:9 blocked for more than 120 seconds.") // and is gone
		m.holds(w, KernelDeadlock, no, "")
		m.told("TaskHung: INFO: task dd:8 blocked for more than 120 seconds.")
		m.says("INFO: task dd:7 blocked for more than 120 seconds.")
		m.holds(w, KernelDeadlock, yes, "task dd:7 blocked")
		m.change(func() { m.tasks[5] = waits(1) })
		time.Sleep(taskEvery / 2)
		m.says("INFO: task sync:5 blocked for more than 120 seconds.")
		m.holds(w, KernelDeadlock, yes, "task sync:5 blocked for more than 120 seconds. (and of 1 more)")
		time.Sleep(time.Hour)
		m.holds(w, KernelDeadlock, yes, "task sync:5")
		m.change(func() { m.tasks[5] = waits(2) }) // it went on, and waits again
		time.Sleep(taskEvery)
		synctest.Wait()
		m.holds(w, KernelDeadlock, yes, "task dd:7 blocked for more than 120 seconds.")
		m.change(func() { delete(m.tasks, 7) })
		time.Sleep(taskEvery)
		synctest.Wait()
		m.holds(w, KernelDeadlock, no, "no task hangs")
		m.change(func() { m.asked = 0 })
		time.Sleep(time.Hour)
		if m.asked != 0 {
			t.Error("tasks are looked at though none hangs")
		}
	})
}

// Lines of before the agent's start show what lasts, and are no events. A number that
// another task has now is not the one that hung.
func TestHistory(t *testing.T) {
	m := newMachine(t)
	m.history = []host.KernelLine{
		{Text: "INFO: task dd:7 blocked for more than 120 seconds.", Age: time.Hour},
		{Text: "INFO: task dd:8 blocked for more than 120 seconds.", Age: time.Hour},
		{Text: "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [x:1]", Age: time.Hour},
		{Text: "Oops: 0000 [#1]", Age: time.Hour},
	}
	m.tasks[7] = host.Task{Started: boot - time.Minute, Waiting: true}
	m.tasks[8] = host.Task{Started: boot - 2*time.Hour, Waiting: true}
	m.run(func(w *Watcher) {
		m.holds(w, KernelDeadlock, yes, "task dd:8 blocked for more than 120 seconds.")
		m.told()
	})
}

func TestLockups(t *testing.T) {
	m := newMachine(t)
	m.run(func(w *Watcher) {
		const text = "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [x:1]"
		m.says(text)
		m.holds(w, KernelDeadlock, yes, "CPU#1 stuck")
		time.Sleep(lockupFor - time.Second)
		m.says(text)
		time.Sleep(lockupFor - time.Second)
		m.holds(w, KernelDeadlock, yes, "CPU#1 stuck")
		time.Sleep(time.Second)
		synctest.Wait()
		m.holds(w, KernelDeadlock, no, "")
		m.told() // the condition's event does
	})
}

func TestReadOnly(t *testing.T) {
	m := newMachine(t)
	m.run(func(w *Watcher) {
		m.holds(w, ReadonlyFilesystem, no, "")
		m.change(func() { m.mounts = map[string]host.Mount{"/data": {Point: "/", Device: "vda1", ReadOnly: true}} })
		m.says("EXT4-fs (vda1): Remounting filesystem read-only")
		time.Sleep(lookAfter)
		synctest.Wait()
		m.holds(w, ReadonlyFilesystem, yes, "/ (vda1) is read-only: the node writes /data there")
		m.told("FilesystemError: EXT4-fs (vda1): Remounting filesystem read-only")
		m.change(func() {
			if m.watching != 1 {
				t.Errorf("mounts are watched by %d", m.watching)
			}
		})
		time.Sleep(time.Minute)
		m.change(func() { m.mounts, m.looks = map[string]host.Mount{"/data": {Point: "/", Device: "vda1"}}, 0 })
		m.remounted <- struct{}{}
		time.Sleep(lookAfter)
		synctest.Wait()
		m.holds(w, ReadonlyFilesystem, no, "")
		time.Sleep(time.Hour)
		m.change(func() {
			if m.looks != 1 || m.watching != 0 {
				t.Errorf("%d looks, %d watches", m.looks, m.watching)
			}
		})
	})
}

// Of a disk that dies one event a minute is told; the mounts are looked at once a second.
func TestManyErrors(t *testing.T) {
	m := newMachine(t)
	m.run(func(w *Watcher) {
		for i := range 130 {
			m.says(fmt.Sprintf("I/O error, dev sda, sector %d", i))
			time.Sleep(eventEvery / 120)
		}
		m.told("IOError: I/O error, dev sda, sector 0",
			"IOError: I/O error, dev sda, sector 120 (119 more of the kind since the event before)")
		m.says("Oops: " + strings.Repeat("x", 1000))
		m.told("KernelOops: Oops: " + strings.Repeat("x", maxShown-len("Oops: ")))
		if m.looks > 70 {
			t.Errorf("%d looks", m.looks)
		}
	})
}

func TestClock(t *testing.T) {
	m := newMachine(t)
	m.run(func(w *Watcher) {
		m.change(func() { m.offset = -time.Hour })
		m.set <- struct{}{}
		synctest.Wait()
		m.told("ClockSet: the clock was set 1h0m0s back")
		if !slices.Equal(m.steps, []time.Duration{-time.Hour}) {
			t.Errorf("told of steps %v", m.steps)
		}
		now := time.Now().Round(0)
		w.Dated(now.Add(time.Hour), now, now)
		m.holds(w, ClockProblem, yes, "behind the coordinator's")
		w.Dated(now, now, now)
		m.holds(w, ClockProblem, no, "")
	})
}

// What cannot be followed is unknown, and the rest goes on.
func TestNoKernelLog(t *testing.T) {
	m := newMachine(t)
	m.noLog = true
	m.mounts = map[string]host.Mount{"/data": {Point: "/", Device: "vda1", Failed: true}}
	m.run(func(w *Watcher) {
		m.holds(w, KernelDeadlock, unknown, "")
		m.holds(w, ReadonlyFilesystem, yes, "lets nothing be written after an error")
	})
}

func TestMine(t *testing.T) {
	for _, c := range []struct {
		t      corev1.NodeConditionType
		reason string
		want   bool
	}{
		{KernelDeadlock, "TaskHung", true},
		{KernelDeadlock, "NoTaskHung", true},
		{KernelDeadlock, "KernelHasNoDeadlock", false}, // node-problem-detector's
		{ReadonlyFilesystem, "TaskHung", false},
		{ReadonlyFilesystem, "FilesystemIsNotReadOnly", false},
		{corev1.NodeReady, "", false},
		{corev1.NodeReady, "KubeletReady", false},
	} {
		if got := Mine(corev1.NodeCondition{Type: c.t, Reason: c.reason}); got != c.want {
			t.Errorf("%s %s: %v", c.t, c.reason, got)
		}
	}
}

var errNone = errors.New("none")

func TestTasksAreBounded(t *testing.T) {
	d := deadlock{readBy: func(id int) (host.Task, error) { return host.Task{Waiting: true}, nil }}
	for i := range 10 * maxTasks {
		d.hang(i, "text", time.Hour, time.Time{})
	}
	if len(d.tasks) != maxTasks {
		t.Errorf("%d tasks", len(d.tasks))
	}
	d.readBy = func(int) (host.Task, error) { return host.Task{}, errNone }
	if d.look(d.due); len(d.tasks) != 0 {
		t.Errorf("%d tasks stay", len(d.tasks))
	}
}
