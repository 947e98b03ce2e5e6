package job

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

var now = time.Unix(100000, 0)

func newJob(completions, parallelism int32, change ...func(*batchv1.Job)) *batchv1.Job {
	six := int32(6)
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"},
		Spec: batchv1.JobSpec{Completions: &completions, Parallelism: &parallelism, BackoffLimit: &six}}
	j.Status.UncountedTerminatedPods = &batchv1.UncountedTerminatedPods{}
	for _, c := range change {
		c(j)
	}
	return j
}

func withIndexes(j *batchv1.Job) {
	mode := batchv1.IndexedCompletion
	j.Spec.CompletionMode = &mode
}

func pod(name string, phase corev1.PodPhase, index int, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			Finalizers: []string{batchv1.JobTrackingFinalizer}}}
	p.Status.Phase = phase
	if index >= 0 {
		p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: fmt.Sprint(index)}
	}
	if phase == corev1.PodFailed || phase == corev1.PodSucceeded {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{
				ExitCode:   map[corev1.PodPhase]int32{corev1.PodFailed: 42}[phase],
				FinishedAt: metav1.NewTime(now.Add(-time.Second))},
		}}}
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestIndexes(t *testing.T) {
	s := parseIndexes("1,3-5,7,99", 10)
	if s.String() != "1,3-5,7" || s.total() != 5 || !s.has(4) || s.has(6) {
		t.Errorf("parsed %v", s)
	}
	if u := s.union(indexesOf([]int{0, 6, 6})); u.String() != "0,1,3-7" {
		t.Errorf("union %s", u)
	}
	if m := s.missing(3, 10); fmt.Sprint(m) != "[0 2 6]" {
		t.Errorf("missing %v", m)
	}
	if n := s.common(indexesOf([]int{1, 2, 4, 5, 8})); n != 3 {
		t.Errorf("common %d", n)
	}
}

func TestPlan(t *testing.T) {
	running := func(n int) (out []*corev1.Pod) {
		for i := range n {
			out = append(out, pod(fmt.Sprint("r", i), corev1.PodRunning, -1))
		}
		return out
	}
	yes := true
	for _, tt := range []struct {
		name        string
		job         *batchv1.Job
		pods        []*corev1.Pod
		create, del int
		after       time.Duration
	}{
		{"first pods", newJob(5, 2), nil, 2, 0, 0},
		{"no more than completions", newJob(5, 3, func(j *batchv1.Job) { j.Status.Succeeded = 4 }), nil, 1, 0, 0},
		{"too many", newJob(5, 1), running(3), 0, 2, 0},
		{"suspended", newJob(5, 2, func(j *batchv1.Job) { j.Spec.Suspend = &yes }), running(2), 0, 2, 0},
		{"work queue done", newJob(0, 3, func(j *batchv1.Job) { j.Spec.Completions = nil }),
			append(running(1), pod("ok", corev1.PodSucceeded, -1)), 0, 0, 0},
		{"back-off", newJob(1, 1), []*corev1.Pod{pod("f", corev1.PodFailed, -1)}, 0, 0, 9 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := &view{job: tt.job, pods: tt.pods, now: now}
			v.failures = new(streak).follow(v)
			do := v.plan(v.tally())
			if do.create != tt.create || len(do.del) != tt.del || do.after != tt.after {
				t.Errorf("create %d, delete %d, after %v", do.create, len(do.del), do.after)
			}
		})
	}
}

func TestIndexedPlan(t *testing.T) {
	v := &view{job: newJob(4, 3, withIndexes), now: now, pods: []*corev1.Pod{
		pod("ok", corev1.PodSucceeded, 1), pod("run", corev1.PodRunning, 0), pod("again", corev1.PodPending, 0),
	}}
	if do := v.plan(v.tally()); len(do.del) != 1 || do.del[0].Name != "again" {
		t.Errorf("a doubled index: %+v", do)
	}
	v.pods = v.pods[:2]
	if do := v.plan(v.tally()); fmt.Sprint(do.indexes) != "[2 3]" {
		t.Errorf("indexes %v", do.indexes)
	}
}

// TestSurplus: which pods a Job ends when it has too many.
func TestSurplus(t *testing.T) {
	at := func(seconds int) metav1.Time { return metav1.NewTime(now.Add(time.Duration(seconds) * time.Second)) }
	created := func(s int) func(*corev1.Pod) { return func(p *corev1.Pod) { p.CreationTimestamp = at(s) } }
	ready := func(s int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(s)}}
		}
	}
	restarted := func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{RestartCount: 3}} }
	pods := []*corev1.Pod{
		pod("ready-long", corev1.PodRunning, noIndex, ready(-60), created(-10)),
		pod("ready-shortly", corev1.PodRunning, noIndex, ready(-5), created(-90)),
		pod("old", corev1.PodRunning, noIndex, created(-90)),
		pod("restarted", corev1.PodRunning, noIndex, created(-90), restarted),
		pod("young", corev1.PodRunning, noIndex, created(-10)),
		pod("pending", corev1.PodPending, noIndex, created(-90)),
	}
	var got []string
	for _, p := range surplus(newJob(9, 0), pods, len(pods)) {
		got = append(got, p.Name)
	}
	if want := "[pending restarted young old ready-shortly ready-long]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestVerdict(t *testing.T) {
	zero, one := int32(0), int32(1)
	minute := int64(60)
	failed := pod("f", corev1.PodFailed, -1)
	policy := func(action batchv1.PodFailurePolicyAction) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: action,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{
					Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}},
			}}}
		}
	}
	for _, tt := range []struct {
		name, reason string
		kind         batchv1.JobConditionType
		job          *batchv1.Job
		pods         []*corev1.Pod
	}{
		{"goes on", "", "", newJob(1, 1), []*corev1.Pod{failed}},
		{"backoffLimit", "BackoffLimitExceeded", batchv1.JobFailureTarget,
			newJob(1, 1, func(j *batchv1.Job) { j.Spec.BackoffLimit = &zero }), []*corev1.Pod{failed}},
		{"deadline", "DeadlineExceeded", batchv1.JobFailureTarget, newJob(1, 1, func(j *batchv1.Job) {
			j.Spec.ActiveDeadlineSeconds = &minute
			j.Status.StartTime = &metav1.Time{Time: now.Add(-time.Minute)}
		}), nil},
		{"policy fails the Job", "PodFailurePolicy", batchv1.JobFailureTarget,
			newJob(1, 1, policy(batchv1.PodFailurePolicyActionFailJob)), []*corev1.Pod{failed}},
		{"policy ignores", "",
			"", newJob(1, 1, policy(batchv1.PodFailurePolicyActionIgnore),
				func(j *batchv1.Job) { j.Spec.BackoffLimit = &zero }), []*corev1.Pod{failed}},
		{"failed indexes", "FailedIndexes", batchv1.JobFailureTarget,
			newJob(2, 2, withIndexes, func(j *batchv1.Job) { j.Spec.BackoffLimitPerIndex = &zero }),
			[]*corev1.Pod{pod("a", corev1.PodFailed, 0), pod("b", corev1.PodSucceeded, 1)}},
		{"success policy", "SuccessPolicy", batchv1.JobSuccessCriteriaMet, newJob(3, 3, withIndexes, func(j *batchv1.Job) {
			lead := "0,1"
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{
				Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: &lead, SucceededCount: &one}}}
		}), []*corev1.Pod{pod("b", corev1.PodSucceeded, 1)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := &view{job: tt.job, pods: tt.pods, now: now}
			c := v.tally().finished
			if c == nil && tt.reason == "" {
				return
			}
			if c == nil || c.Reason != tt.reason || c.Type != tt.kind {
				t.Errorf("got %+v", c)
			}
		})
	}
}

func TestCountsOnce(t *testing.T) {
	v := &view{job: newJob(2, 2), now: now,
		pods: []*corev1.Pod{pod("a", corev1.PodSucceeded, -1), pod("b", corev1.PodFailed, -1),
			pod("c", corev1.PodRunning, -1)}}
	l := v.note(v.tally())
	u := v.job.Status.UncountedTerminatedPods
	if len(l.release) != 2 || len(u.Succeeded) != 1 || len(u.Failed) != 1 || v.job.Status.Succeeded != 0 {
		t.Fatalf("noted %+v, release %d", u, len(l.release))
	}
	// A crash here: the status is stored, the finalizers are still on.
	if tl := v.tally(); tl.succeeded != 1 || tl.failed != 1 {
		t.Errorf("counted twice: %d, %d", tl.succeeded, tl.failed)
	}
	countReleased(&v.job.Status, map[types.UID]bool{"b": true})
	if v.job.Status.Succeeded != 1 || v.job.Status.Failed != 0 || len(u.Failed) != 1 {
		t.Errorf("settled %+v", v.job.Status)
	}
}

func TestBackoff(t *testing.T) {
	for times, want := range map[int]time.Duration{0: 0, 1: 10 * time.Second, 2: 20 * time.Second,
		4: 80 * time.Second, 20: 10 * time.Minute} {
		if got := backoff(failure{times, now}, now); got != want {
			t.Errorf("%d failures: %v, want %v", times, got, want)
		}
	}
}

// TestFinishedAt: a pod has ended with the last of its containers, sidecars among them.
func TestFinishedAt(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	ended := func(name string, at time.Time) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(at)}}}
	}
	p := pod("p", corev1.PodFailed, noIndex)
	p.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "proxy", RestartPolicy: &always}}
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{ended("init", now.Add(time.Hour)), ended("proxy", now)}
	if at := finishedAt(p); !at.Equal(now) {
		t.Errorf("the sidecar ended last: %v", at)
	}
	p.Status.InitContainerStatuses[1].State = corev1.ContainerState{}
	p.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
	if at := finishedAt(p); !at.Equal(p.CreationTimestamp.Time) {
		t.Errorf("the sidecar has not told: %v", at)
	}
}

// TestFreeStray: whose finalizer is taken off, of pods that no Job of ours counts.
func TestFreeStray(t *testing.T) {
	done := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	}
	other := func(j *batchv1.Job) { name := "example.com/other"; j.Spec.ManagedBy = &name }
	of := func(apiVersion, kind string) func(*corev1.Pod) {
		yes := true
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: apiVersion, Kind: kind, Name: "j", UID: "j", Controller: &yes}}
		}
	}
	nobody := func(*corev1.Pod) {}
	for _, tt := range []struct {
		name  string
		job   *batchv1.Job
		owner func(*corev1.Pod)
		freed bool
	}{
		{"an orphan", nil, nobody, true},
		{"its Job is gone", nil, of("batch/v1", "Job"), true},
		{"its Job has ended", newJob(1, 1, done), of("batch/v1", "Job"), true},
		{"its Job goes on", newJob(1, 1), of("batch/v1", "Job"), false},
		{"its Job has ended and is another controller's", newJob(1, 1, done, other), of("batch/v1", "Job"), false},
		{"a Job of another group", nil, of("example.com/v1", "Job"), false},
		{"something else's", nil, of("apps/v1", "ReplicaSet"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := pod("p", corev1.PodSucceeded, noIndex, tt.owner)
			p.Namespace = "ns"
			client := fake.NewClientset(p)
			if tt.job != nil {
				tt.job.Namespace, tt.job.UID = "ns", "j"
				if err := client.Tracker().Add(tt.job); err != nil {
					t.Fatal(err)
				}
			}
			pods := informers.NewSharedInformerFactory(client, 0).Core().V1().Pods()
			if err := pods.Informer().GetIndexer().Add(p); err != nil {
				t.Fatal(err)
			}
			r := &reconciler{client: client, pods: pods.Lister(), expect: controller.NewExpectations(),
				writes: controller.NewWrites(), freed: map[string]map[types.UID]bool{}}
			if err := r.freeStray(t.Context(), "ns/p"); err != nil {
				t.Fatal(err)
			}
			freed := slices.ContainsFunc(client.Actions(),
				func(a clienttesting.Action) bool { return a.GetVerb() == "patch" })
			if freed != tt.freed {
				t.Errorf("freed is %v", freed)
			}
		})
	}
}

// TestDeleteSome: of pods of which one cannot be deleted, as many are ready then as are active
// at most: the API refuses another status, and nothing would be counted.
func TestDeleteSome(t *testing.T) {
	ready := func(p *corev1.Pod) {
		p.Namespace = "ns"
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	pods := []*corev1.Pod{pod("a", corev1.PodRunning, noIndex, ready), pod("b", corev1.PodRunning, noIndex, ready)}
	client := fake.NewClientset(pods[0], pods[1])
	client.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		return a.(clienttesting.DeleteAction).GetName() == "b", nil, errors.New("refused")
	})
	r := &reconciler{client: client, events: &record.FakeRecorder{}, expect: controller.NewExpectations()}
	v := &view{job: newJob(2, 2), pods: pods, now: now}
	tl := v.tally()
	deleted, err := r.deleteAll(t.Context(), "ns/j", v, tl, pods, false)
	if deleted != 1 || err == nil || tl.ready != 1 || tl.terminating != 1 {
		t.Errorf("deleted %d, %v; ready %d, terminating %d", deleted, err, tl.ready, tl.terminating)
	}
}
