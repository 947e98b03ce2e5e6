package evict

import (
	"context"
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

// load is what happens in each second of some.
type load struct {
	seconds int
	waits   float64 // the part of the time in which all tasks wait for memory
	// Pages that the machine takes for itself and for limits of groups, and that come back.
	machine, groups, restored uint64
}

// passes a second of l.
func (l load) passes(w *Waits) {
	w.Full += time.Duration(l.waits * float64(time.Second))
	w.Reclaim.All += l.machine + l.groups
	w.Reclaim.Machine += l.machine
	w.Reclaim.Restored += l.restored
}

func thrashes(seconds int, waits float64) load {
	return load{seconds: seconds, waits: waits, machine: 5000, restored: 4000}
}

var little = Signal{Available: 200, Capacity: 1000}

func rests(seconds int) load { return load{seconds: seconds} }

// A machine that thrashes for a period is short of memory, and no other is. Looks are a
// second apart.
func TestStallStep(t *testing.T) {
	bursts := slices.Repeat([]load{thrashes(10, 1), rests(20)}, 20)
	for name, tt := range map[string]struct {
		loads []load
		want  int // the second in which it is short first; -1: never
	}{
		"for a period":                 {[]load{thrashes(60, 0.7)}, 30},
		"after a rest":                 {[]load{rests(60), thrashes(60, 0.7)}, 60 + 26},
		"all the time":                 {[]load{rests(60), thrashes(60, 1)}, 60 + 19},
		"in bursts":                    {bursts, -1},
		"half of the time":             {[]load{thrashes(600, 0.5)}, -1},
		"no more":                      {[]load{rests(10), thrashes(19, 1), rests(60)}, -1},
		"a group at its limit":         {[]load{{600, 1, 0, 5000, 5000}}, -1},
		"and others read files":        {[]load{{600, 1, 50000, 5000, 5000}}, -1},
		"and others take a little":     {[]load{{600, 1, 50000, 5000, 7000}}, -1},
		"a group is slowed down":       {[]load{{600, 1, 50000, 0, 30}}, -1},
		"taken by nobody":              {[]load{{600, 1, 0, 0, 5000}}, -1},
		"the machine more than groups": {[]load{{60, 0.9, 5000, 1000, 5000}}, 30},
		"a slow disk":                  {[]load{{60, 0.9, 300, 0, 100}}, 30},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			s := Stall{Share: 0.6, Period: 30 * time.Second}
			threshold := s.Threshold()
			now, w := time.Unix(1000, 0), Waits{Full: time.Hour, Reclaim: host.Reclaim{All: 1 << 40}}
			s.Step(now, w, little)
			got, second := -1, 0
			for _, l := range tt.loads {
				for range l.seconds {
					second++
					l.passes(&w)
					signal, ok := s.Step(now.Add(time.Duration(second)*time.Second), w, little)
					if ok && threshold.met(signal, false) && got < 0 {
						got = second
					}
				}
			}
			if got != tt.want {
				t.Errorf("short in second %d, want %d", got, tt.want)
			}
			if len(s.looks) > 31 {
				t.Errorf("%d looks are kept", len(s.looks))
			}
		})
	}
}

// What cannot be begins a new period, and a look that comes late is no stall.
func TestStallJumps(t *testing.T) {
	busy := thrashes(1, 1)
	for name, jump := range map[string]func(now *time.Time, w *Waits, s *Stall){
		"suspend":     func(now *time.Time, _ *Waits, _ *Stall) { *now = now.Add(time.Hour) },
		"clock-back":  func(now *time.Time, _ *Waits, _ *Stall) { *now = now.Add(-time.Hour) },
		"waits-back":  func(_ *time.Time, w *Waits, _ *Stall) { w.Full = 0 },
		"waits-ahead": func(_ *time.Time, w *Waits, _ *Stall) { w.Full += time.Hour },
		"restart":     func(_ *time.Time, _ *Waits, s *Stall) { s.Restart() },
	} {
		t.Run(name, func(t *testing.T) {
			s := Stall{Share: 0.6, Period: 30 * time.Second}
			threshold := s.Threshold()
			now, w := time.Unix(10000, 0), Waits{Full: time.Minute}
			look := func() bool {
				signal, ok := s.Step(now, w, little)
				return ok && threshold.met(signal, false)
			}
			look()
			for range 29 {
				now = now.Add(time.Second)
				busy.passes(&w)
				if look() {
					t.Fatal("short before the period's end")
				}
			}
			jump(&now, &w, &s)
			if look() {
				t.Fatal("short by a jump")
			}
			seconds := 0
			for {
				seconds++
				now = now.Add(time.Second)
				busy.passes(&w)
				if look() {
					break
				}
				if seconds > 60 {
					t.Fatal("never short again")
				}
			}
			if seconds < 19 || seconds > 30 {
				t.Errorf("short again after %d s", seconds)
			}
		})
	}
}

// Looks of which the kernel does not tell at the right time, ten seconds apart, do as well.
func TestStallWithoutTriggers(t *testing.T) {
	s := Stall{Share: 0.6, Period: 30 * time.Second}
	threshold := s.Threshold()
	now, w := time.Unix(1000, 0), Waits{}
	s.Step(now, w, little)
	for second := 1; second <= 40; second++ {
		thrashes(1, 0.7).passes(&w)
		if second%10 != 0 {
			continue
		}
		signal, ok := s.Step(now.Add(time.Duration(second)*time.Second), w, little)
		if met := ok && threshold.met(signal, false); met != (second >= 30) {
			t.Errorf("second %d: short %v", second, met)
		}
	}
	var off Stall
	if _, ok := off.Step(now, w, little); ok || off.looks != nil {
		t.Error("one that is off looks")
	}
}

// thrashing is a node whose memory is taken and read again, with pods that end in five
// seconds. It keeps what happens, and when.
type thrashing struct {
	Node
	stalled chan struct{}
	begin   time.Time

	mu        sync.Mutex // the clock that wakes Run orders nothing
	done      []string
	pods      []*corev1.Pod
	going     map[string]time.Time
	available int64 // of 1000
	waits     Waits
}

func newThrashing(t *testing.T, pods []*corev1.Pod) *thrashing {
	t.Helper()
	stall := Stall{Share: 0.6, Period: 30 * time.Second}
	thresholds, err := Settings{Hard: map[string]string{MemoryAvailable: "100"}, Stall: stall}.Thresholds()
	if err != nil {
		t.Fatal(err)
	}
	m := &thrashing{stalled: make(chan struct{}, 1), begin: time.Now(), pods: pods,
		going: map[string]time.Time{}, available: little.Available}
	m.Node = Node{
		Plan:  Plan{Thresholds: thresholds, Transition: 5 * time.Minute},
		Stall: stall,
		Waits: func() (Waits, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.waits, nil
		},
		Signals: func() map[string]Signal {
			m.mu.Lock()
			defer m.mu.Unlock()
			return map[string]Signal{MemoryAvailable: {Available: m.available, Capacity: 1000}}
		},
		Pods: func() []*corev1.Pod {
			m.mu.Lock()
			defer m.mu.Unlock()
			return slices.Clone(m.pods)
		},
		Use: func(context.Context, bool) (func(*corev1.Pod) (PodUse, bool), error) {
			return func(*corev1.Pod) (PodUse, bool) { return PodUse{Memory: 1 << 20}, true }, nil
		},
		Evict: func(p *corev1.Pod, c Cause, grace time.Duration) {
			m.tell("evict " + p.Name + " in " + grace.String() + ": " + c.Message)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.going[p.Name] = time.Now().Add(5 * time.Second)
		},
		Gone: func(p *corev1.Pod) bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			if time.Now().Before(m.going[p.Name]) {
				return false
			}
			m.pods = slices.DeleteFunc(m.pods, func(q *corev1.Pod) bool { return p == q })
			return true
		},
		Tell:    func(reason, message string) { m.tell(reason + ": " + message) },
		Changed: func() { m.tell("changed") },
		Period:  10 * time.Second,
		Stalled: m.stalled,
		Log:     slog.New(slog.DiscardHandler),
	}
	return m
}

func (m *thrashing) tell(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = append(m.done, time.Since(m.begin).String()+" "+what)
}

func (m *thrashing) left(available int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.available = available
}

// goOn lets time pass under a load. The kernel tells of waits as it is asked to.
func (m *thrashing) goOn(l load) {
	for range l.seconds {
		time.Sleep(time.Second)
		m.mu.Lock()
		l.passes(&m.waits)
		m.mu.Unlock()
		if l.waits > 0.15 {
			select {
			case m.stalled <- struct{}{}:
			default:
			}
		}
		synctest.Wait()
	}
}

// check compares what has happened since it was called last.
func (m *thrashing) check(t *testing.T, want ...string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !slices.Equal(m.done, want) {
		t.Errorf("it happened\n%s\nnot\n%s", strings.Join(m.done, "\n"), strings.Join(want, "\n"))
	}
	m.done = nil
}

// scenario runs a node until play returns.
func scenario(t *testing.T, pods []*corev1.Pod, play func(m *thrashing)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newThrashing(t, pods)
		ctx, cancel := context.WithCancel(t.Context())
		go m.Run(ctx)
		synctest.Wait()
		play(m)
		cancel()
		synctest.Wait()
	})
}

const (
	tries  = " EvictionThresholdMet: Attempting to reclaim memory"
	waited = "The node was low on resource: memory. Tasks waited for memory 90% of 30s, threshold: 60%. "
)

// One pod after the other ends while the machine thrashes, after a period anew each time,
// and none when it no longer does; the condition lasts. Pods of the system stay.
func TestStallEvicts(t *testing.T) {
	pods := []*corev1.Pod{named("system", criticalPriority), named("b", 1), named("a", 0)}
	scenario(t, pods, func(m *thrashing) {
		m.goOn(thrashes(29, 0.9))
		m.check(t, "0s changed")
		m.goOn(thrashes(11, 0.9))
		m.check(t, "30s changed", "30s"+tries, "30s evict a in 1s: "+waited)
		if !m.Conditions()[corev1.NodeMemoryPressure] {
			t.Error("no pressure")
		}
		m.goOn(thrashes(30, 0.9))
		m.check(t, "1m5s"+tries, "1m5s evict b in 1s: "+waited)
		m.goOn(rests(290))
		m.check(t)
		m.goOn(rests(20))
		m.check(t, "6m10s changed")
		m.goOn(thrashes(100, 0.9)) // only the system's is left, which is found out once a period
		m.check(t, "6m41s changed", "6m41s"+tries, "7m12s"+tries, "7m43s"+tries)
	})
}

// Whoever waits because it is at its own limit ends no pod, itself neither, though all
// tasks of the machine are waiting; bursts end none.
func TestStallOfOthers(t *testing.T) {
	scenario(t, []*corev1.Pod{named("a", 0)}, func(m *thrashing) {
		m.goOn(load{seconds: 600, waits: 1, groups: 5000, restored: 5000})
		m.goOn(load{seconds: 600, waits: 1, machine: 50000, groups: 5000, restored: 5000})
		for range 20 {
			m.goOn(thrashes(10, 1))
			m.goOn(rests(20))
		}
		m.left(300) // as a database takes and reads again what is larger than memory
		m.goOn(thrashes(600, 1))
		m.check(t, "0s changed")
	})
}

// A threshold of what is left goes first; one pod ends for both, and for the stall the
// period begins when it is gone.
func TestStallAndThreshold(t *testing.T) {
	scenario(t, []*corev1.Pod{named("b", 1), named("a", 0)}, func(m *thrashing) {
		m.goOn(thrashes(29, 0.9))
		m.left(50)
		m.goOn(thrashes(2, 0.9))
		m.left(little.Available)
		m.check(t, "0s changed", "30s changed", "30s"+tries, "30s evict a in 1s: "+
			"The node was low on resource: memory. Threshold quantity: 100, available: 50. ")
		m.goOn(thrashes(33, 0.9))
		m.check(t)
		m.goOn(thrashes(2, 0.9))
		m.check(t, "1m5s"+tries, "1m5s evict b in 1s: "+waited)
	})
}
