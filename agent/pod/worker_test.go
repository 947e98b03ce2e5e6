package pod

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/probe"
	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/volume"
)

// edges is everything around the manager but the runtime.
type edges struct {
	mu       sync.Mutex
	events   []string
	records  map[string]*record.Pod
	finished []string
	reports  int
}

func (e *edges) Event(_ *corev1.Pod, c, _, reason, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, strings.Trim(c+":"+reason, ":"))
}

func (e *edges) Put(key string, r *record.Pod) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := *r
	kept.Containers = map[string]*record.Container{}
	for n, c := range r.Containers {
		cc := *c
		kept.Containers[n] = &cc
	}
	e.records[key] = &kept
	return nil
}

func (e *edges) Delete(key string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.records, key)
	return nil
}

func (e *edges) Set(types.UID, []probe.Target) {}
func (e *edges) Report(p *corev1.Pod, _ *record.Pod, _ *record.Observed) corev1.PodStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reports++
	return p.Status
}
func (e *edges) Finish(_ context.Context, p *corev1.Pod) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.finished = append(e.finished, p.Name)
	return nil
}
func (e *edges) Forget(types.UID)                                    {}
func (e *edges) Again(context.Context, *corev1.Pod) error            { return nil }
func (e *edges) Path(*corev1.Pod, string) (string, error)            { return "", nil }
func (e *edges) Relabel(*corev1.Pod, string) bool                    { return false }
func (e *edges) Group(*corev1.Pod, string) (int64, bool)             { return 0, false }
func (e *edges) SubPath(*corev1.Pod, volume.SubPath) (string, error) { return "", nil }
func (e *edges) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return nil, io.EOF
}
func (e *edges) Secret(context.Context, string, string) (*corev1.Secret, error) { return nil, io.EOF }

// count is how often an event was told.
func (e *edges) count(event string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, ev := range e.events {
		if ev == event {
			n++
		}
	}
	return n
}

func noServices(context.Context) ([]*corev1.Service, bool) { return nil, true }

// start runs a manager on a runtime until stop is called: an agent's life.
func start(t *testing.T, dir string, f *fakeCRI, e *edges) (m *Manager, stop func()) {
	t.Helper()
	return startWith(t, dir, f, e, e)
}

func expect(t *testing.T, f *fakeCRI, want string) {
	t.Helper()
	synctest.Wait()
	if got := f.String(); got != want {
		t.Errorf("runtime has %q, want %q", got, want)
	}
}

// TestRestartAfterTheClockWasSetBack: the newest run of a container is the one with the
// highest number. By their times the run of before would be it until the clock comes there
// again, and the container would be started again and again beside itself.
func TestRestartAfterTheClockWasSetBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		f.clock = time.Hour
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
		expect(t, f, "a#0=run")
		f.clock = 0
		f.end("a", 1)
		expect(t, f, "a#0=exit1 a#1=run")
		time.Sleep(10 * time.Minute)
		expect(t, f, "a#0=exit1 a#1=run")
		f.end("a", 1)
		time.Sleep(time.Minute)
		expect(t, f, "a#0=exit1 a#1=exit1 a#2=run")
	})
}

// TestEventsOfOwnSteps checks that a worker does not look at its pod for what its own job has
// done and goes on from: the job's end has it look. What else happens has it look at once.
func TestEventsOfOwnSteps(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
		expect(t, f, "a#0=run")
		sandbox := slices.Collect(maps.Values(f.sandboxes))[0]
		status := &criv1.PodSandboxStatus{Id: sandbox.Id, Metadata: sandbox.Metadata}
		for _, c := range []struct {
			kind      criv1.ContainerEventType
			container string
			looks     bool
		}{
			{criv1.ContainerEventType_CONTAINER_CREATED_EVENT, "c1", false},
			{criv1.ContainerEventType_CONTAINER_STARTED_EVENT, sandbox.Id, false},
			{criv1.ContainerEventType_CONTAINER_STARTED_EVENT, "c1", true},
			{criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, "c1", true},
			{criv1.ContainerEventType_CONTAINER_DELETED_EVENT, "c1", true},
			{criv1.ContainerEventType_CONTAINER_STOPPED_EVENT, sandbox.Id, true},
			{criv1.ContainerEventType_CONTAINER_DELETED_EVENT, sandbox.Id, true},
		} {
			before := e.reports
			f.events <- &criv1.ContainerEventResponse{ContainerId: c.container, ContainerEventType: c.kind,
				PodSandboxStatus: status}
			synctest.Wait()
			if looked := e.reports > before; looked != c.looks {
				t.Errorf("%v of %s: looked is %v, want %v", c.kind, c.container, looked, c.looks)
			}
		}
	})
}

func TestLifeOfAPod(t *testing.T) { // POD-1: init containers, restart, deletion
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "init:i", "a", "b")
		m.Update(p, SourceAPI)
		expect(t, f, "i#0=run")
		f.end("i", 0)
		expect(t, f, "a#0=run b#0=run i#0=exit0")
		f.end("a", 1)
		expect(t, f, "a#0=exit1 a#1=run b#0=run i#0=exit0")
		f.end("a", 1)
		expect(t, f, "a#1=exit1 b#0=run i#0=exit0")
		time.Sleep(9 * time.Second)
		expect(t, f, "a#1=exit1 b#0=run i#0=exit0")
		time.Sleep(2 * time.Second)
		expect(t, f, "a#1=exit1 a#2=run b#0=run i#0=exit0")

		f.stubborn = true
		q := p.DeepCopy()
		now, grace := metav1.Now(), int64(5)
		q.DeletionTimestamp, q.DeletionGracePeriodSeconds = &now, &grace
		m.Update(q, SourceAPI)
		time.Sleep(4 * time.Second)
		expect(t, f, "a#1=exit1 a#2=run b#0=run i#0=exit0")
		time.Sleep(2 * time.Second)
		expect(t, f, "") // killed, API object deleted, all removed
		if len(e.finished) != 1 || len(e.records) != 0 {
			t.Errorf("finished %v, records %d", e.finished, len(e.records))
		}
	})
}

// untold is a reporter whose API takes no status of a pod.
type untold struct{ *edges }

func (untold) Finish(ctx context.Context, _ *corev1.Pod) error {
	<-ctx.Done()
	return ctx.Err()
}

// A pod whose end cannot be told stays until its source does not have it any more. Its name
// may be another's then, whose status the API would not let this node write for ever.
func TestEndCannotBeTold(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := startWith(t, dir, f, e, untold{e})
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		m.Update(p, SourceAPI)
		expect(t, f, "a#0=run")
		q := p.DeepCopy()
		now := metav1.Now()
		q.DeletionTimestamp, q.DeletionGracePeriodSeconds = &now, new(int64(1))
		m.Update(q, SourceAPI)
		time.Sleep(time.Hour)
		synctest.Wait()
		if len(e.records) != 1 {
			t.Fatalf("%d records while the API has the pod", len(e.records))
		}
		m.Remove(p.UID)
		time.Sleep(time.Minute)
		expect(t, f, "")
		if len(e.records) != 0 {
			t.Errorf("%d records of a pod that nobody has", len(e.records))
		}
	})
}

// A container that goes on to fail waits for the longest pause each time: two of them are no
// long run without a failure, after which the pauses begin anew.
func TestBackoffStaysAtItsCap(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
		expect(t, f, "a#0=run")
		var pauses []int
		fail := func(after time.Duration) {
			time.Sleep(after)
			f.end("a", 1)
			ended := time.Now()
			for synctest.Wait(); !strings.Contains(f.String(), "=run"); synctest.Wait() {
				time.Sleep(time.Second)
			}
			pauses = append(pauses, int(time.Since(ended).Seconds()))
		}
		for range 11 {
			fail(5 * time.Second)
		}
		fail(10*time.Minute + time.Second) // from when it began to start
		if want := []int{0, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300, 0}; !slices.Equal(pauses, want) {
			t.Errorf("paused for %v seconds, want %v", pauses, want)
		}
	})
}

// running is what a reporter makes of a pod with a container that has started.
type running struct{ *edges }

func (r running) Report(p *corev1.Pod, rec *record.Pod, o *record.Observed) corev1.PodStatus {
	status := r.edges.Report(p, rec, o)
	if o.Running() {
		status.Phase = corev1.PodRunning
	}
	return status
}

// The kubelet API shows the status that the node tells of a pod of a manifest; of
// others, what the API has, which is all that is known of a pod that terminates.
func TestTold(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		f.stubborn = true
		m, stop := startWith(t, dir, f, e, running{e})
		defer stop()
		manifest, ours := testPod(corev1.RestartPolicyAlways, "a"), testPod(corev1.RestartPolicyAlways, "b")
		ours.Name, ours.UID = "ours", "ours"
		m.Update(manifest, SourceFile)
		m.Update(ours, SourceAPI)
		expect(t, f, "a#0=run b#0=run")
		phases := func() string {
			synctest.Wait()
			var out []string
			for _, p := range m.Told() {
				out = append(out, p.Name+"="+string(p.Status.Phase))
			}
			slices.Sort(out)
			return strings.Join(out, " ")
		}
		if got := phases(); got != "ours= p=Running" {
			t.Errorf("at first: %s", got)
		}
		grace, now := int64(30), metav1.Now()
		ours = ours.DeepCopy()
		ours.DeletionTimestamp, ours.DeletionGracePeriodSeconds = &now, &grace
		ours.Status.Phase = corev1.PodRunning
		m.Update(ours, SourceAPI)
		if got := phases(); got != "ours=Running p=Running" {
			t.Errorf("while one terminates: %s", got)
		}
	})
}

// spans keeps what began below what, and how much of it has not ended.
type spans struct {
	mu   sync.Mutex
	all  map[string]bool
	open int
}

type spanKey struct{}

func (s *spans) begin(ctx context.Context, name string) (context.Context, func()) {
	if above, ok := ctx.Value(spanKey{}).(string); ok {
		name = above + "/" + name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = true
	s.open++
	return context.WithValue(ctx, spanKey{}, name), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}
}

func (s *spans) Pass(ctx context.Context, p *corev1.Pod, operation string) (context.Context, func()) {
	return s.begin(ctx, p.Name+"."+operation)
}

func (s *spans) Job(ctx context.Context, kind, container string) (context.Context, func()) {
	return s.begin(ctx, kind+"."+container)
}

// Jobs are told of as part of the look at the pod that they follow from (TRC-7).
func TestPassesAreTraced(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		s := &spans{all: map[string]bool{}}
		m.Spans = s
		p := testPod(corev1.RestartPolicyAlways, "a")
		m.Update(p, SourceAPI)
		expect(t, f, "a#0=run")
		q := p.DeepCopy()
		now := metav1.Now()
		q.DeletionTimestamp, q.DeletionGracePeriodSeconds = &now, new(int64(1))
		m.Update(q, SourceAPI)
		expect(t, f, "")
		stop()
		for _, want := range []string{".create/setup.", ".sync/start.a", ".kill/stop.a", ".kill/finish."} {
			if !s.all[p.Name+want] {
				t.Errorf("no %s%s in %v", p.Name, want, slices.Sorted(maps.Keys(s.all)))
			}
		}
		if s.open != 0 {
			t.Errorf("%d did not end", s.open)
		}
	})
}

// TestPassesAreMeasured: how long a pod took to run is counted once.
func TestPassesAreMeasured(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Reporter = running{e}
		m.Passes = metrics.NewDurations("passes", "", []float64{1000}, "operation")
		m.Starts = metrics.NewDurations("starts", "", []float64{1000})
		p := testPod(corev1.RestartPolicyAlways, "init:i", "a")
		m.Update(p, SourceAPI)
		expect(t, f, "i#0=run")
		time.Sleep(3 * time.Second)
		f.end("i", 0)
		expect(t, f, "a#0=run i#0=exit0")
		f.end("a", 1)
		expect(t, f, "a#0=exit1 a#1=run i#0=exit0")
		q := p.DeepCopy()
		now := metav1.Now()
		q.DeletionTimestamp, q.DeletionGracePeriodSeconds = &now, new(int64(1))
		m.Update(q, SourceAPI)
		expect(t, f, "")
		var out strings.Builder
		page := metrics.NewPage(&out)
		m.Passes.Show(page)
		m.Starts.Show(page)
		if err := page.Flush(); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`passes_count{operation="create"} 1`, "starts_count 1"} {
			if !strings.Contains(out.String(), want+"\n") {
				t.Errorf("no %s in\n%s", want, out.String())
			}
		}
		for _, want := range []string{`passes_count{operation="sync"} `, `passes_count{operation="kill"} `} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no %s in\n%s", want, out.String())
			}
		}
	})
}

func TestForceDeleteHastens(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		f.stubborn = true
		p := testPod(corev1.RestartPolicyAlways, "a")
		m.Update(p, SourceAPI)
		expect(t, f, "a#0=run")
		now := metav1.Now()
		for _, grace := range []int64{600, 0} {
			q := p.DeepCopy()
			q.DeletionTimestamp, q.DeletionGracePeriodSeconds = &now, &grace
			m.Update(q, SourceAPI)
			time.Sleep(time.Second)
		}
		m.Remove(p.UID)
		expect(t, f, "")
	})
}

// What ends while nobody follows the runtime's events is seen once they are
// followed again, however late it ends.
func TestEventsInterrupted(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		f.breaks = make(chan error)
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
		expect(t, f, "a#0=run")
		f.connecting = func() {
			time.Sleep(time.Second)
			f.end("a", 3)
			<-f.events
		}
		f.breaks <- io.ErrUnexpectedEOF
		time.Sleep(3 * time.Second)
		expect(t, f, "a#0=exit3 a#1=run")
	})
}

// A restarted agent goes on with what runs, and knows what ended meanwhile.
func TestAgentRestart(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		p := testPod(corev1.RestartPolicyNever, "a", "b")
		m.Update(p, SourceAPI)
		expect(t, f, "a#0=run b#0=run")
		stop()
		f.end("a", 4)
		m, stop = start(t, dir, f, e)
		defer stop()
		m.Update(p, SourceAPI)
		m.Prune(SourceAPI, map[types.UID]bool{p.UID: true})
		expect(t, f, "a#0=exit4 b#0=run")
		if r := e.records["u"].Get("b"); !r.Ready {
			t.Error("readiness was lost")
		}
		if s := e.records["u"].Get("a").Seen; s == nil || s.State.ExitCode != 4 {
			t.Errorf("the exit that nobody watched: %+v", s)
		}
		m.Prune(SourceAPI, nil) // deleted while away
		expect(t, f, "")
	})
}

// Nothing that runs is ended before its source was heard.
func TestUnknownIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
		expect(t, f, "a#0=run")
		stop()
		e.records = map[string]*record.Pod{} // the checkpoint is lost
		m, stop = start(t, dir, f, e)
		defer stop()
		time.Sleep(time.Hour)
		expect(t, f, "a#0=run")
		m.Update(testPod(corev1.RestartPolicyAlways, "a"), SourceAPI)
		expect(t, f, "a#0=run")
	})
}

func TestImagePullBackoff(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		p.Spec.Containers[0].Image = "far/away:1"
		m.Update(p, SourceAPI)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		// the pull, ErrImagePull, ImagePullBackOff
		if e.count("a:Pulling") != 1 || e.count("a:BackOff") != 1 || e.count("a:Failed") != 3 {
			t.Errorf("events: %v", e.events)
		}
		f.mu.Lock()
		f.pullable["far/away:1"] = true
		f.mu.Unlock()
		time.Sleep(6 * time.Second)
		expect(t, f, "a#0=run")
	})
}

// TestAnotherImage: a pod whose image cannot be pulled, or whose container crashes, starts at once
// when it gets another image, and the next pauses begin short.
func TestAnotherImage(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		use := func(image string) {
			p := testPod(corev1.RestartPolicyAlways, "a")
			p.Spec.Containers[0].Image = image
			m.Update(p, SourceAPI)
			synctest.Wait()
		}
		delay := func() time.Duration {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.records["u"].Get("a").Delay
		}
		use("far/away:1")
		time.Sleep(200 * time.Second)
		if synctest.Wait(); delay() < time.Minute {
			t.Errorf("pause after pulls that fail: %v", delay())
		}
		use("far/away:2")
		if delay() != firstBackoff {
			t.Errorf("first pause of another image: %v", delay())
		}
		use("i:1")
		expect(t, f, "a#0=run")
		f.end("a", 1)
		time.Sleep(time.Second)
		f.end("a", 1)
		time.Sleep(time.Second)
		expect(t, f, "a#1=exit1")
		f.mu.Lock()
		f.images["i:2"] = true
		f.mu.Unlock()
		use("i:2")
		expect(t, f, "a#1=exit1 a#2=run")
	})
}

// TestImageComes: who waits for an image does not wait for the end of the pause once it is
// there, by an import for example.
func TestImageComes(t *testing.T) {
	for policy, shown := range map[corev1.PullPolicy]string{
		corev1.PullIfNotPresent: "ImagePullBackOff", corev1.PullNever: "ErrImageNeverPull",
	} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
			m, stop := start(t, dir, f, e)
			defer stop()
			p := testPod(corev1.RestartPolicyAlways, "a")
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "far/away:1", policy
			m.Update(p, SourceAPI)
			time.Sleep(200 * time.Second)
			synctest.Wait()
			e.mu.Lock()
			r := e.records[string(p.UID)]
			e.mu.Unlock()
			if r == nil || r.Get("a").Fault == nil || r.Get("a").Fault.Reason != shown {
				t.Fatalf("%s: the record is %+v", policy, r)
			}
			f.mu.Lock()
			f.images["far/away:1"] = true
			f.mu.Unlock()
			m.RetryImages()
			synctest.Wait()
			expect(t, f, "a#0=run")
		})
	}
}

// TestImageComesDuringPull: an image that an import brings while a pull of it is tried is used
// once the pull has failed, without the pause after failures.
func TestImageComesDuringPull(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		f.slow["pull"] = time.Minute
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "far/away:1", corev1.PullIfNotPresent
		m.Update(p, SourceAPI)
		time.Sleep(30 * time.Second)
		f.mu.Lock()
		f.images["far/away:1"] = true
		f.mu.Unlock()
		m.RetryImages()
		time.Sleep(31 * time.Second)
		synctest.Wait()
		expect(t, f, "a#0=run")
		if e.count("a:BackOff") != 0 {
			t.Errorf("events: %v", e.events)
		}
	})
}

// A pod whose processes are all gone (a reboot) starts again in a new sandbox.
func TestSandboxLost(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		m.Update(testPod(corev1.RestartPolicyAlways, "init:i", "a"), SourceAPI)
		synctest.Wait()
		f.end("i", 0)
		expect(t, f, "a#0=run i#0=exit0")
		stop()
		f.mu.Lock()
		for id := range f.containers {
			delete(f.containers, id)
		}
		for id := range f.sandboxes {
			delete(f.sandboxes, id)
		}
		f.mu.Unlock()
		m, stop = start(t, dir, f, e)
		defer stop()
		time.Sleep(time.Minute)
		expect(t, f, "") // waits for the API or the word that it is away
		m.Unhold()
		expect(t, f, "i#1=run")
		f.end("i", 0)
		expect(t, f, "a#1=run i#1=exit0")
	})
}

// A manifest that is moved away and back restarts its pod, whenever it comes back.
func TestManifestMovedAwayAndBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer func() { stop() }()
		p := testPod(corev1.RestartPolicyNever, "a")
		m.Update(p, SourceFile)
		expect(t, f, "a#0=run")
		sandboxes := func() string {
			f.mu.Lock()
			defer f.mu.Unlock()
			return strings.Join(slices.Sorted(maps.Keys(f.sandboxes)), " ")
		}
		first := sandboxes()

		f.stubborn = true
		m.Prune(SourceFile, nil)
		time.Sleep(10 * time.Second)
		m.Update(p, SourceFile)
		expect(t, f, "a#0=run") // it still ends
		time.Sleep(21 * time.Second)
		expect(t, f, "a#0=run")
		second := sandboxes()
		if second == first {
			t.Error("back while it ended: the same pod runs on")
		}

		f.stubborn = false
		f.removing = func() {
			f.removing = nil
			m.Update(p, SourceFile)
		}
		m.Prune(SourceFile, nil)
		expect(t, f, "a#0=run")
		third := sandboxes()
		if third == second {
			t.Error("back while its last was removed: the same pod runs on")
		}

		f.stubborn = true
		m.Prune(SourceFile, nil)
		time.Sleep(time.Second)
		stop()
		m, stop = start(t, dir, f, e)
		time.Sleep(time.Minute)
		expect(t, f, "a#0=exit137") // ended, and nobody has said yet that it is wanted
		m.Update(p, SourceFile)
		expect(t, f, "a#0=run")
		if len(e.finished) != 0 {
			t.Errorf("%q deleted in the API", e.finished)
		}
	})
}

// A manifest that is back at once makes its pod anew, whose containers' runs count on.
func TestManifestWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		m.Update(p, SourceFile)
		expect(t, f, "a#0=run")
		m.Prune(SourceFile, nil)
		m.Update(p, SourceFile) // nobody has looked at the pod between
		time.Sleep(time.Minute)
		expect(t, f, "a#1=run")
		m.Prune(SourceFile, nil)
		time.Sleep(time.Minute)
		m.Update(p, SourceFile) // nothing of it was left
		expect(t, f, "a#0=run")
	})
}

// The node lost all it knew of pods of manifests: one whose mirror tells that it is
// over does not run again, unless its manifest is taken away and comes back.
func TestManifestOverInMirror(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		var heard atomic.Bool
		m.Mirror = func(p *corev1.Pod) (*corev1.Pod, bool) {
			mirror := p.DeepCopy()
			mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: string(p.UID)}
			switch p.Name {
			case "over":
				mirror.Status.Phase = corev1.PodSucceeded
			case "none":
				mirror = nil
			case "other":
				mirror.Status.Phase = corev1.PodFailed
				mirror.Annotations[corev1.MirrorPodAnnotationKey] = "another manifest"
			}
			return mirror, heard.Load()
		}
		make := func(name string, policy corev1.RestartPolicy) *corev1.Pod {
			p := testPod(policy, name)
			p.Name, p.UID = name, types.UID(name)
			m.Update(p, SourceFile)
			return p
		}
		over := make("over", corev1.RestartPolicyNever)
		make("none", corev1.RestartPolicyNever)
		make("other", corev1.RestartPolicyOnFailure)
		make("runs", corev1.RestartPolicyNever)
		make("always", corev1.RestartPolicyAlways)
		expect(t, f, "always#0=run")
		heard.Store(true)
		m.PokeAll()
		expect(t, f, "always#0=run none#0=run other#0=run runs#0=run")
		m.Remove(over.UID)
		synctest.Wait()
		m.Update(over, SourceFile)
		expect(t, f, "always#0=run none#0=run other#0=run over#0=run runs#0=run")
	})
}

// A machine that is off ends a pod of a manifest until it is on again, which is a restart. A pod of the
// API is made anew by its owner.
func TestManifestAfterShutdown(t *testing.T) {
	for source, want := range map[string]string{SourceFile: "a#1=run", SourceAPI: "a#0=exit0"} {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
			m, stop := start(t, dir, f, e)
			p := testPod(corev1.RestartPolicyAlways, "a")
			m.Update(p, source)
			expect(t, f, "a#0=run")
			m.Evict(p.UID, record.Verdict{Phase: corev1.PodFailed, Reason: "Terminated"},
				&record.Verdict{Reason: corev1.PodReasonTerminationByKubelet}, 1)
			expect(t, f, "a#0=exit0")
			m.Update(p, source)
			expect(t, f, "a#0=exit0") // the machine is about to go
			stop()
			m, stop = start(t, dir, f, e)
			defer func() { stop() }()
			m.Update(p, source)
			expect(t, f, want)
		})
	}
}

// A pod that ends is told when nobody sends to it any more, after half of its grace period
// at the latest, and each container the moment that its hook has ended, too. A container that
// is stopped to start again waits for nothing, and neither does one without grace.
func TestWithdraw(t *testing.T) {
	const stay, done = "a#0=run", ""
	for name, c := range map[string]struct {
		bound, takes time.Duration
		grace        int64
		gone         time.Duration // when it is told
	}{
		"soon":             {bound: 5 * time.Second, takes: time.Second, grace: 30, gone: time.Second},
		"nobody lets go":   {bound: 5 * time.Second, takes: time.Hour, grace: 30, gone: 5 * time.Second},
		"a short time":     {bound: 5 * time.Second, takes: time.Hour, grace: 4, gone: 2 * time.Second},
		"killed":           {bound: 5 * time.Second, takes: time.Hour, grace: 0},
		"it is turned off": {takes: time.Hour, grace: 30},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
				m, stop := start(t, dir, f, e)
				defer stop()
				m.WithdrawTime = func(*corev1.Pod) time.Duration { return c.bound }
				m.Withdraw = func(ctx context.Context, _ *corev1.Pod, sandbox string) {
					if sandbox == "" {
						t.Error("no sandbox was told")
					}
					select {
					case <-ctx.Done():
					case <-time.After(c.takes):
					}
				}
				p := testPod(corev1.RestartPolicyAlways, "a")
				m.Update(p, SourceAPI)
				expect(t, f, stay)
				q := p.DeepCopy()
				now := metav1.Now()
				q.DeletionTimestamp, q.DeletionGracePeriodSeconds = &now, &c.grace
				m.Update(q, SourceAPI)
				if c.gone > 0 {
					time.Sleep(c.gone - time.Millisecond)
					expect(t, f, stay)
					time.Sleep(2 * time.Millisecond)
				}
				synctest.Wait()
				if got := f.String(); got != done && !strings.HasPrefix(got, "a#0=exit") {
					t.Errorf("runtime has %q, though nothing holds it", got)
				}
			})
		})
	}
}
