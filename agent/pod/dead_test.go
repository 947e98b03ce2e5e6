package pod

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/record"
)

// GC-17, GC-18: pods as "POD/CONTAINER@SECOND", the second in which the run was made; "!"
// marks one that its pod goes on from.
func TestLimitOfDeadContainersOfNode(t *testing.T) {
	for _, c := range []struct {
		name, runs string
		limit      int
		want       string
	}{
		{name: "no limit", runs: "p/a@2 p/a@1 q/a@3", limit: -1},
		{name: "within", runs: "p/a@2 p/a@1 q/a@3", limit: 3},
		{name: "each keeps the same number", runs: "p/a@9 p/a@8 p/a@7 p/a@6 q/a@2 q/a@1", limit: 4,
			want: "p/a@6 p/a@7"},
		{name: "each keeps one at least, then the oldest go", runs: "p/a@9 p/a@8 q/a@2 q/b@3 r/a@4", limit: 2,
			want: "p/a@8 q/a@2 q/b@3"},
		{name: "none stays", runs: "p/a@9 q/a@2", limit: 0, want: "p/a@9 q/a@2"},
		{name: "what is needed is counted and stays", runs: "p/a@9 q/a@2! r/a@3", limit: 1, want: "p/a@9 r/a@3"},
		{name: "containers of one name are of their pods", runs: "p/a@5 p/a@4 q/a@3 q/a@2", limit: 2, want: "p/a@4 q/a@2"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			pods := map[types.UID][]deadRun{}
			for _, w := range strings.Fields(c.runs) {
				id, needed := strings.CutSuffix(w, "!")
				pod, rest, _ := strings.Cut(id, "/")
				container, second, _ := strings.Cut(rest, "@")
				var s int
				fmt.Sscan(second, &s)
				pods[types.UID(pod)] = append(pods[types.UID(pod)],
					deadRun{container, id, t0.Add(time.Duration(s) * time.Second), needed})
			}
			got := strings.Join(slices.Sorted(maps.Keys(beyond(pods, c.limit))), " ")
			if got != c.want {
				t.Errorf("%q have to go, want %q", got, c.want)
			}
		})
	}
}

// GC-15, GC-16: which runs are counted, and which of them the pod goes on from.
func TestDeadRuns(t *testing.T) {
	always, never, onFailure := corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		see    []string
		record func(in *Input)
		minAge time.Duration
		want   string
		next   int // seconds after t0, 0 for none
	}{
		{name: "running", pod: testPod(always, "a"), see: []string{"a=run"}},
		{name: "before_the_running", pod: testPod(always, "a"), see: []string{"a=run", "a=exit1"}, want: "a"},
		{name: "restarts", pod: testPod(always, "a"), see: []string{"a=exit1", "a=exit1"}, want: "a! a"},
		{name: "over", pod: testPod(onFailure, "a", "b"), see: []string{"a=exit0", "b=run"}, want: "a"},
		{name: "restarts_until_the_pod_ends", pod: testPod(always, "a"), see: []string{"a=exit1"}, want: "a",
			record: func(in *Input) { in.Record.Stopping = &record.Stopping{Since: t0} }},
		{name: "init_before_the_others", pod: testPod(never, "init:i", "a"), see: []string{"i=exit0"}, want: "i!"},
		{name: "init_after", pod: testPod(never, "init:i", "a"), see: []string{"a=run", "i=exit0"}, want: "i"},
		{name: "sidecar", pod: testPod(never, "side:s", "a"), see: []string{"a=run", "s=exit0"}, want: "s!"},
		{name: "deleted", pod: testPod(never, "a"), see: []string{"a=exit0"},
			record: func(in *Input) { in.Pod.DeletionTimestamp = &metav1.Time{Time: t0} }},
		{name: "being_stopped", pod: testPod(never, "a"), see: []string{"a=exit0"},
			record: func(in *Input) { in.Busy = map[string]bool{"a0": true} }},
		{name: "young", pod: testPod(always, "a"), see: []string{"a=run", "a=exit1", "a=exit1", "a=exit1"},
			minAge: 3 * time.Second, want: "a", next: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := Input{Pod: c.pod, Record: &record.Pod{}, Observed: observed(c.pod, c.see...), Now: t0}
			for i := range in.Observed.Containers {
				if i > 0 {
					in.Observed.Containers[i].ID += fmt.Sprint(i)
				}
			}
			if c.record != nil {
				c.record(&in)
			}
			runs, next := deadRuns(in, c.minAge)
			var got []string
			for _, r := range runs {
				w := r.container
				if r.needed {
					w += "!"
				}
				got = append(got, w)
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%q, want %q", s, c.want)
			}
			var at time.Time
			if c.next != 0 {
				at = t0.Add(time.Duration(c.next) * time.Second)
			}
			if !next.Equal(at) {
				t.Errorf("looks again at %s, want %s", next, at)
			}
		})
	}
}

// GC-15..18 with a runtime: logs go with their containers, restart counts and back-off do not.
func TestDeadContainersAreRemoved(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits DeadLimits
		steps  func(t *testing.T, f *fakeCRI, m *Manager)
	}{
		{"two of each", DeadLimits{PerContainer: 2, Node: -1}, func(t *testing.T, f *fakeCRI, m *Manager) {
			m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
			crash(t, f, 4)
			expect(t, f, "a#2=exit1 a#3=exit1 a#4=run")
		}},
		{"none of each", DeadLimits{Node: -1}, func(t *testing.T, f *fakeCRI, m *Manager) {
			m.Update(testPod(corev1.RestartPolicyAlways, "init:i", "a"), SourceAPI)
			expect(t, f, "i#0=run")
			f.end("i", 0)
			expect(t, f, "a#0=run")
			f.end("a", 1)
			expect(t, f, "a#1=run")
			f.end("a", 1)
			expect(t, f, "a#1=exit1") // stays for the pause
			time.Sleep(9 * time.Second)
			expect(t, f, "a#1=exit1")
			time.Sleep(2 * time.Second)
			expect(t, f, "a#2=run")
		}},
		{"none of a pod that is over", DeadLimits{Node: -1}, func(t *testing.T, f *fakeCRI, m *Manager) {
			m.Update(testPod(corev1.RestartPolicyNever, "a", "b"), SourceAPI)
			expect(t, f, "a#0=run b#0=run")
			f.end("a", 3)
			expect(t, f, "b#0=run")
			f.end("b", 0)
			expect(t, f, "")
			time.Sleep(time.Minute)
			expect(t, f, "") // nothing runs again
		}},
		{"not before a minute", DeadLimits{PerContainer: 1, Node: -1, MinAge: time.Minute},
			func(t *testing.T, f *fakeCRI, m *Manager) {
				m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
				crash(t, f, 2)
				expect(t, f, "a#0=exit1 a#1=exit1 a#2=run")
				f.end("a", 1)
				synctest.Wait()
				time.Sleep(50 * time.Second)
				expect(t, f, "a#1=exit1 a#2=exit1 a#3=run") // a#0 and a#1 are old, a#2 is not
			}},
		{"two of the node", DeadLimits{PerContainer: 5, Node: 2}, func(t *testing.T, f *fakeCRI, m *Manager) {
			for _, uid := range []types.UID{"u", "v", "w"} {
				p := testPod(corev1.RestartPolicyNever, string(uid))
				p.UID, p.Name = uid, string(uid)
				m.Update(p, SourceAPI)
				synctest.Wait()
				f.end(string(uid), 0)
				synctest.Wait()
				time.Sleep(time.Second)
			}
			expect(t, f, "v#0=exit0 w#0=exit0")
			m.Remove("w")
			expect(t, f, "v#0=exit0")
		}},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
				m, stop := start(t, dir, f, e)
				defer stop()
				m.Dead = c.limits
				c.steps(t, f, m)
			})
		})
	}
}

// crash ends container a that often, and waits until it runs again.
func crash(t *testing.T, f *fakeCRI, times int) {
	t.Helper()
	synctest.Wait()
	for range times {
		f.end("a", 1)
		synctest.Wait()
		time.Sleep(time.Second)
		synctest.Wait()
		for !strings.Contains(f.String(), "=run") {
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
	}
}

// The log of a removed container goes with it.
func TestLogOfDeadContainer(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Dead = DeadLimits{Node: 0}
		p := testPod(corev1.RestartPolicyNever, "a", "b")
		m.Update(p, SourceAPI)
		synctest.Wait()
		log := filepath.Join(m.Host.LogDir(p), logs.Name("a", 0))
		if err := os.WriteFile(log, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		f.end("a", 1)
		expect(t, f, "b#0=run")
		if _, err := os.Stat(log); !os.IsNotExist(err) {
			t.Errorf("the log is there: %v", err)
		}
	})
}

// fullDisk keeps no records while it is full.
type fullDisk struct {
	*edges
	full *atomic.Bool
}

func (d fullDisk) Put(key string, r *record.Pod) error {
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return d.edges.Put(key, r)
}

// A container is not removed before the record has how it ended: an agent that is killed in
// between would not know.
func TestDeadContainerIsRecordedFirst(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		disk := fullDisk{e, &atomic.Bool{}}
		m.Dead, m.Records = DeadLimits{Node: -1}, disk
		m.Update(testPod(corev1.RestartPolicyNever, "a", "b"), SourceAPI)
		expect(t, f, "a#0=run b#0=run")
		disk.full.Store(true)
		f.end("a", 3)
		expect(t, f, "a#0=exit3 b#0=run")
		disk.full.Store(false)
		time.Sleep(keepAgain)
		expect(t, f, "b#0=run")
		if code := e.records["u"].Get("a").Seen.State.ExitCode; code != 3 {
			t.Errorf("recorded %d", code)
		}
	})
}

// What the containers of an evicted pod wrote goes at once, on a disk that takes no record too;
// how they ended stays known.
func TestEvictedPodLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		disk := fullDisk{e, &atomic.Bool{}}
		m.Dead, m.Records = DeadLimits{PerContainer: 1, Node: -1}, disk
		m.Update(testPod(corev1.RestartPolicyAlways, "a", "b"), SourceAPI)
		expect(t, f, "a#0=run b#0=run")
		disk.full.Store(true)
		m.Evict("u", record.Verdict{Phase: corev1.PodFailed, Reason: "Evicted"}, nil, 1)
		synctest.Wait()
		time.Sleep(5 * time.Second)
		expect(t, f, "")
		disk.full.Store(false)
		time.Sleep(keepAgain)
		synctest.Wait()
		for _, name := range []string{"a", "b"} {
			if e.records["u"].Get(name).Seen == nil {
				t.Errorf("how %s ended is not known", name)
			}
		}
	})
}

// While the disk is short all go that no pod goes on from.
func TestRemoveDead(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Dead = DeadLimits{PerContainer: 5, Node: -1, MinAge: time.Hour}
		for _, uid := range []types.UID{"u", "v", "w"} {
			policy := corev1.RestartPolicyNever
			if uid == "w" {
				policy = corev1.RestartPolicyAlways
			}
			p := testPod(policy, string(uid))
			p.UID, p.Name = uid, string(uid)
			m.Update(p, SourceAPI)
			synctest.Wait()
			if uid != "v" {
				f.end(string(uid), 1)
			}
		}
		expect(t, f, "u#0=exit1 v#0=run w#0=exit1 w#1=run")
		f.end("w", 1)
		expect(t, f, "u#0=exit1 v#0=run w#0=exit1 w#1=exit1") // the last run waits for the next
		if err := m.RemoveDead(t.Context()); err != nil {
			t.Error(err)
		}
		expect(t, f, "v#0=run w#1=exit1")
		if err := m.RemoveDead(t.Context()); err != nil {
			t.Errorf("nothing to do: %v", err)
		}
		m.Update(testPod(corev1.RestartPolicyNever, "x"), SourceAPI)
		expect(t, f, "v#0=run w#1=exit1 x#0=run")
		f.end("x", 0)
		expect(t, f, "v#0=run w#1=exit1 x#0=exit0") // the limits count again
	})
}
