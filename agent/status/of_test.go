package status

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/record"
)

var now = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func facts() Facts {
	return Facts{HostIPs: []string{"192.0.2.1"}, Scheme: "shoal://", QOS: corev1.PodQOSBestEffort, Now: now,
		Restarts: func(p *corev1.Pod, _ *corev1.Container, code int32) bool {
			return p.Spec.RestartPolicy == corev1.RestartPolicyAlways ||
				p.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && code != 0
		}}
}

func running(name string) record.Observation {
	return record.Observation{ID: name + "0", Name: name, State: record.Running, Started: now.Time}
}

func exited(name string, code int32) record.Observation {
	return record.Observation{ID: name + "0", Name: name, State: record.Exited, ExitCode: code,
		Started: now.Time, Finished: now.Time}
}

func condition(s corev1.PodStatus, t corev1.PodConditionType) (corev1.ConditionStatus, string) {
	for _, c := range s.Conditions {
		if c.Type == t {
			return c.Status, c.Reason
		}
	}
	return "", ""
}

func TestOf(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy corev1.RestartPolicy
		init   bool
		see    []record.Observation
		change func(r *record.Pod)
		phase  corev1.PodPhase
		ready  string // reason of Ready, "yes" when true
		state  string // of container a
	}{
		{"nothing", corev1.RestartPolicyAlways, false, nil, nil, corev1.PodPending, "ContainersNotReady", "ContainerCreating"},
		{"init", corev1.RestartPolicyAlways, true, []record.Observation{running("i")}, nil, corev1.PodPending,
			"ContainersNotReady", "PodInitializing"},
		{"runs", corev1.RestartPolicyAlways, false, []record.Observation{running("a")},
			func(r *record.Pod) { *r.Of("a") = record.Container{ID: "a0", Started: true, Ready: true} },
			corev1.PodRunning, "yes", "running"},
		{"runs_unready", corev1.RestartPolicyAlways, false, []record.Observation{running("a")},
			func(r *record.Pod) { *r.Of("a") = record.Container{ID: "a0", Started: true} }, corev1.PodRunning,
			"ContainersNotReady", "running"},
		{"done", corev1.RestartPolicyNever, false, []record.Observation{exited("a", 0)}, nil, corev1.PodSucceeded,
			"PodCompleted", "Completed"},
		{"failed", corev1.RestartPolicyNever, false, []record.Observation{exited("a", 2)}, nil,
			corev1.PodFailed, "PodFailed", "Error"},
		{"probe_failed", corev1.RestartPolicyOnFailure, false, []record.Observation{exited("a", 0)},
			func(r *record.Pod) { r.Of("a").Failed = true }, corev1.PodRunning, "ContainersNotReady", "ContainerCreating"},
		{"probe_failed_for_good", corev1.RestartPolicyNever, false, []record.Observation{exited("a", 0)},
			func(r *record.Pod) { r.Of("a").Failed = true }, corev1.PodSucceeded, "PodCompleted", "Completed"},
		{"deleted_before_it_began", corev1.RestartPolicyAlways, false, nil,
			func(r *record.Pod) { r.Stopping, r.Released = &record.Stopping{}, true }, corev1.PodFailed, "PodFailed",
			"ContainerStatusUnknown"},
		{"deleted_before_init", corev1.RestartPolicyAlways, true, nil,
			func(r *record.Pod) { r.Stopping, r.Released = &record.Stopping{}, true }, corev1.PodFailed, "PodFailed",
			"PodInitializing"},
		{"crash_loop", corev1.RestartPolicyAlways, false, []record.Observation{exited("a", 2)},
			func(r *record.Pod) { r.Of("a").Fault = &record.Verdict{Reason: "CrashLoopBackOff"} }, corev1.PodRunning,
			"ContainersNotReady", "CrashLoopBackOff"},
		{"no_image", corev1.RestartPolicyAlways, false, nil,
			func(r *record.Pod) { r.Of("a").Fault = &record.Verdict{Reason: "ErrImagePull"} }, corev1.PodPending,
			"ContainersNotReady", "ErrImagePull"},
		{"init_failed", corev1.RestartPolicyNever, true, []record.Observation{exited("i", 1)}, nil, corev1.PodFailed,
			"PodFailed", "PodInitializing"},
		{"deadline", corev1.RestartPolicyAlways, false, []record.Observation{running("a")},
			func(r *record.Pod) {
				r.Ended, r.Of("a").ID = &record.Verdict{Reason: "DeadlineExceeded"}, "a0"
			},
			corev1.PodPending, "PodFailed", "running"},
		{"deadline_ended", corev1.RestartPolicyAlways, false, []record.Observation{exited("a", 0)},
			func(r *record.Pod) { r.Ended = &record.Verdict{Reason: "DeadlineExceeded"} },
			corev1.PodFailed, "PodFailed", "Completed"},
		{"back", corev1.RestartPolicyAlways, false, []record.Observation{exited("a", 0)},
			func(r *record.Pod) { r.Stopping, r.Back = &record.Stopping{}, true }, corev1.PodPending, "PodCompleted",
			"Completed"},
		{"preempted_well", corev1.RestartPolicyAlways, false, []record.Observation{exited("a", 0)},
			func(r *record.Pod) {
				r.Stopping, r.Ended = &record.Stopping{}, &record.Verdict{Reason: "Preempting", ByExit: true}
			}, corev1.PodSucceeded, "PodCompleted", "Completed"},
		{"preempted_killed", corev1.RestartPolicyAlways, false, []record.Observation{exited("a", 137)},
			func(r *record.Pod) {
				r.Stopping, r.Ended = &record.Stopping{}, &record.Verdict{Reason: "Preempting", ByExit: true}
			}, corev1.PodFailed, "PodFailed", "Error"},
		{"deleted_well", corev1.RestartPolicyAlways, false, []record.Observation{exited("a", 0)},
			func(r *record.Pod) { r.Stopping = &record.Stopping{} }, corev1.PodSucceeded, "PodCompleted", "Completed"},
		{"lost", corev1.RestartPolicyNever, false, nil, func(r *record.Pod) {
			r.Of("a").Seen = &record.Exit{ID: "x", State: corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
		}, corev1.PodFailed, "PodFailed", "ContainerStatusUnknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &corev1.Pod{}
			p.Spec.RestartPolicy = c.policy
			p.Spec.Containers = []corev1.Container{{Name: "a", Image: "i"}}
			if c.init {
				p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}}
			}
			r := &record.Pod{Admitted: now}
			if c.change != nil {
				c.change(r)
			}
			s := For(p, r, &record.Observed{Containers: c.see}, facts())
			if s.Phase != c.phase {
				t.Errorf("phase %s, want %s", s.Phase, c.phase)
			}
			st, reason := condition(s, corev1.PodReady)
			if st == corev1.ConditionTrue {
				reason = "yes"
			}
			if reason != c.ready {
				t.Errorf("Ready: %s, want %s", reason, c.ready)
			}
			a := s.ContainerStatuses[0].State
			got := "running"
			if a.Waiting != nil {
				got = a.Waiting.Reason
			} else if a.Terminated != nil {
				got = a.Terminated.Reason
			}
			if got != c.state {
				t.Errorf("container: %s, want %s", got, c.state)
			}
		})
	}
}

// A container that the runtime runs, whose start the worker has not yet ended, is
// not shown as running: it would be unready for a moment, for no reason.
func TestStartGoesOn(t *testing.T) {
	p := &corev1.Pod{}
	p.Spec.Containers = []corev1.Container{{Name: "a"}}
	r := &record.Pod{Admitted: now}
	o := &record.Observed{Containers: []record.Observation{running("a")}}
	s := For(p, r, o, facts())
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ContainerCreating" ||
		s.Phase != corev1.PodPending {
		t.Errorf("while the first start goes on: %s, %+v", s.Phase, s.ContainerStatuses[0].State)
	}
	before := exited("a", 1)
	before.ID = "a9"
	o.Containers = append(o.Containers, before)
	*r.Of("a") = record.Container{ID: "a9", Hooked: true}
	if s = For(p, r, o, facts()); s.ContainerStatuses[0].State.Terminated == nil {
		t.Errorf("while a later start goes on: %+v", s.ContainerStatuses[0])
	}
	*r.Of("a") = record.Container{ID: "a0", Started: true, Ready: true}
	if s = For(p, r, o, facts()); s.Phase != corev1.PodRunning || !s.ContainerStatuses[0].Ready {
		t.Errorf("after the start: %s, %+v", s.Phase, s.ContainerStatuses[0])
	}
}

// A container is not shown as running before its postStart hook is done.
func TestHookGoesOn(t *testing.T) {
	p := &corev1.Pod{}
	p.Spec.Containers = []corev1.Container{
		{Name: "a",
			Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 9}}}}}
	r := &record.Pod{Admitted: now}
	o := &record.Observed{Containers: []record.Observation{running("a")}}
	*r.Of("a") = record.Container{ID: "a0"}
	s := For(p, r, o, facts())
	if w := s.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ContainerCreating" ||
		s.Phase != corev1.PodPending {
		t.Errorf("while the hook goes on: %s, %+v", s.Phase, s.ContainerStatuses[0].State)
	}
	before := exited("a", 1)
	before.ID = "a9"
	o.Containers = append(o.Containers, before)
	if s = For(p, r, o, facts()); s.ContainerStatuses[0].State.Terminated == nil ||
		s.ContainerStatuses[0].ContainerID != "shoal://a9" {
		t.Errorf("while the hook of a later run goes on: %+v", s.ContainerStatuses[0])
	}
	*r.Of("a") = record.Container{ID: "a0", Hooked: true, Started: true, Ready: true}
	if s = For(p, r, o, facts()); s.ContainerStatuses[0].State.Running == nil || s.Phase != corev1.PodRunning {
		t.Errorf("after the hook: %s, %+v", s.Phase, s.ContainerStatuses[0].State)
	}
}

func TestRefused(t *testing.T) {
	p := &corev1.Pod{}
	p.Spec.Containers = []corev1.Container{{Name: "a"}}
	s := For(p, &record.Pod{Admitted: now, Ended: &record.Verdict{Reason: "OutOfcpu", Message: "m"}},
		&record.Observed{}, facts())
	if s.Phase != corev1.PodFailed || s.Reason != "OutOfcpu" || s.ContainerStatuses != nil {
		t.Errorf("%+v", s)
	}
}

func TestTransitionTimesAndForeignConditions(t *testing.T) {
	old := metav1.NewTime(now.Add(-time.Hour))
	p := &corev1.Pod{}
	p.Spec.Containers = []corev1.Container{{Name: "a"}}
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: "x/y", Status: corev1.ConditionTrue, LastTransitionTime: old},
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: old},
		{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, LastTransitionTime: old}}
	r := &record.Pod{Admitted: now}
	*r.Of("a") = record.Container{ID: "a0", Started: true, Ready: true}
	s := For(p, r, &record.Observed{Containers: []record.Observation{running("a")}}, facts())
	for _, c := range s.Conditions {
		want := old
		if c.Type == corev1.ContainersReady || c.Type == corev1.PodInitialized || c.Type == corev1.PodScheduled ||
			c.Type == corev1.PodReadyToStartContainers {
			want = now
		}
		if !c.LastTransitionTime.Equal(&want) {
			t.Errorf("%s moved at %s, want %s", c.Type, c.LastTransitionTime, want)
		}
	}
	if st, _ := condition(s, "x/y"); st != corev1.ConditionTrue {
		t.Error("a condition of another is lost")
	}
	p.Status.Conditions[0].Status = corev1.ConditionFalse
	s = For(p, r, &record.Observed{Containers: []record.Observation{running("a")}}, facts())
	if _, reason := condition(s, corev1.PodReady); reason != "ReadinessGatesNotReady" {
		t.Errorf("closed gate: %s", reason)
	}
}

// The status tells what a pod was allocated, and what it has before a resize is done.
func TestResources(t *testing.T) {
	list := func(memory string) *corev1.ResourceRequirements {
		l := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		return &corev1.ResourceRequirements{Requests: l, Limits: l}
	}
	a := record.Container{ID: "a0", Started: true, Ready: true, Actuated: list("1Mi")}
	for _, c := range []struct {
		name      string
		pod, ctr  *corev1.ResourceRequirements
		record    record.Pod
		allocated string
		has       string // requests/limits
	}{
		{name: "nothing asked", ctr: &corev1.ResourceRequirements{}, allocated: "0", has: "0/0"},
		{name: "containers", ctr: list("2Mi"), allocated: "2Mi", has: "2Mi/2Mi"},
		{name: "container resizes", ctr: list("2Mi"), allocated: "2Mi", has: "1Mi/1Mi",
			record: record.Pod{Resize: record.Resize{Actuating: true}, Containers: map[string]*record.Container{"a": &a}}},
		{name: "pod", pod: list("9Mi"), ctr: list("2Mi"), allocated: "9Mi", has: "9Mi/9Mi"},
		{name: "pod resizes", pod: list("9Mi"), ctr: list("1Mi"), allocated: "9Mi", has: "5Mi/5Mi",
			record: record.Pod{Resize: record.Resize{Actuating: true, From: list("5Mi")}}},
		{name: "pod gets its own", pod: list("9Mi"), ctr: list("1Mi"), allocated: "9Mi", has: "1Mi/1Mi",
			record: record.Pod{Resize: record.Resize{Actuating: true}}},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Resources: c.pod,
			Containers: []corev1.Container{{Name: "a", Image: "i", Resources: *c.ctr}}}}
		s := For(p, &c.record, &record.Observed{Containers: []record.Observation{running("a")}}, facts())
		has := s.Resources.Requests.Memory().String() + "/" + s.Resources.Limits.Memory().String()
		if got := s.AllocatedResources.Memory().String(); got != c.allocated || has != c.has {
			t.Errorf("%s: allocated %s, has %s; want %s, %s", c.name, got, has, c.allocated, c.has)
		}
	}
}

// Containers that ask for claims show what is known of their devices; init containers
// do not, as upstream's.
func TestDevicesInStatus(t *testing.T) {
	asks := corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "d"}}}
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i", Resources: asks}},
		Containers:     []corev1.Container{{Name: "a", Resources: asks}, {Name: "b"}},
	}}
	f := facts()
	f.Devices = func(_ *corev1.Pod, c *corev1.Container) []corev1.ResourceStatus {
		return []corev1.ResourceStatus{{Name: corev1.ResourceName("claim:d of " + c.Name)}}
	}
	s := For(p, &record.Pod{}, &record.Observed{}, f)
	if got := s.ContainerStatuses[0].AllocatedResourcesStatus; len(got) != 1 || got[0].Name != "claim:d of a" {
		t.Errorf("shown %v", got)
	}
	init := s.InitContainerStatuses[0].AllocatedResourcesStatus
	if n := len(s.ContainerStatuses[1].AllocatedResourcesStatus) + len(init); n > 0 {
		t.Errorf("%d are shown where nothing is to be", n)
	}
}
