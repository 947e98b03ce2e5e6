package pod

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// testPod makes a pod from words: "init:a", "side:b", and names of containers. With
// "all:" in front, one that ends with 42 restarts all.
func testPod(policy corev1.RestartPolicy, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	p.Spec.RestartPolicy = policy
	always := corev1.ContainerRestartPolicyAlways
	for _, c := range containers {
		c, all := strings.CutPrefix(c, "all:")
		kind, name, ok := strings.Cut(c, ":")
		switch {
		case !ok:
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: kind, Image: "i:1"})
		case kind == "pull":
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "i:2"})
		case kind == "side":
			p.Spec.InitContainers = append(p.Spec.InitContainers,
				corev1.Container{Name: name, Image: "i:1", RestartPolicy: &always})
		default:
			p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: name, Image: "i:1"})
		}
		if !all {
			continue
		}
		last := &p.Spec.Containers
		if ok {
			last = &p.Spec.InitContainers
		}
		ends := &(*last)[len(*last)-1]
		if ends.RestartPolicy == nil {
			never := corev1.ContainerRestartPolicyNever
			ends.RestartPolicy = &never
		}
		ends.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action: corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{
				Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}
	}
	return p
}

// observed makes what the runtime shows from words: "a=run", "a=exit1",
// "a=exit0@10" (ended 10 s after t0), in a ready sandbox s0.
func observed(p *corev1.Pod, words ...string) *record.Observed {
	o := &record.Observed{Sandboxes: []record.Sandbox{{ID: "s0", Ready: true, IPs: []string{"10.0.0.1"}}}}
	for i, w := range words {
		name, state, _ := strings.Cut(w, "=")
		ob := record.Observation{ID: name + "0", Name: name,
			SandboxID: "s0", Created: t0.Add(-time.Duration(i) * time.Second), State: record.Running, Started: t0}
		if c := record.FindContainer(p, name); c != nil {
			ob.Hash = launch.Hash(c)
		}
		if rest, ok := strings.CutPrefix(state, "exit"); ok {
			ob.State = record.Exited
			at := 0
			code, after, timed := strings.Cut(rest, "@")
			fmt.Sscan(code, &ob.ExitCode)
			if timed {
				fmt.Sscan(after, &at)
			}
			ob.Finished = t0.Add(time.Duration(at) * time.Second)
		}
		o.Containers = append(o.Containers, ob)
	}
	return o
}

func words(p Plan) string {
	var out []string
	for _, a := range p.Actions {
		w := a.Kind.String()
		if a.Name != "" {
			w += ":" + a.Name
		}
		switch a.Kind {
		case Start:
			w += fmt.Sprintf("#%d", a.Attempt)
		case Stop:
			w += fmt.Sprintf("/%d", a.Grace)
			if a.Wait {
				w += "+wait"
			}
		case Hold, End:
			w += "(" + a.Verdict.Reason + ")"
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

// A container whose image changed starts again whatever the restart policy
// says of one that ends, and without the pause of one that crashed.
func TestChangedImage(t *testing.T) {
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever,
		corev1.RestartPolicyOnFailure} {
		p := testPod(policy, "a")
		r := &record.Pod{Admitted: metav1.NewTime(t0)}
		*r.Of("a") = record.Container{ID: "a0", Hooked: true, Started: true, Ready: true}
		o := observed(p, "a=run")
		p.Spec.Containers[0].Image = "i:2"
		plan := Decide(Input{Pod: p, Record: r, Observed: o, Now: t0})
		if words(plan) != "stop:a/30" || !plan.Actions[0].Again {
			t.Errorf("%s: running: %s", policy, words(plan))
		}
		r.Of("a").Again = true
		o.Containers[0].State, o.Containers[0].Finished = record.Exited, t0
		if plan = Decide(Input{Pod: p, Record: r, Observed: o, Now: t0}); words(plan) != "start:a#1" {
			t.Errorf("%s: ended: %s", policy, words(plan))
		}
	}
}

// A container that waits because its image crashed, or could not be pulled, starts at once
// when its spec names another one.
func TestChangedImageEndsPause(t *testing.T) {
	p := testPod(corev1.RestartPolicyAlways, "a")
	o := observed(p, "a=exit1")
	p.Spec.Containers[0].Image = "i:2"
	r := &record.Pod{Admitted: metav1.NewTime(t0)}
	*r.Of("a") = record.Container{ID: "a0", Backoff: 5 * time.Minute, BackoffAt: t0}
	plan := Decide(Input{Pod: p, Record: r, Observed: o, Now: t0.Add(time.Second)})
	if words(plan) != "start:a#1" || plan.Actions[0].Backoff != firstBackoff {
		t.Errorf("crashed: %s, %+v", words(plan), plan.Actions)
	}
	for _, v := range []record.Verdict{
		{Reason: "ErrImagePull", Image: "i:1"}, {Reason: "ImagePullBackOff", Image: "i:1"},
		{Reason: "InvalidImageName", Image: "i:1"}, {Reason: "CreateContainerError", Image: "i:1"},
	} {
		*r.Of("a") = record.Container{Fault: &v, Retry: t0.Add(time.Minute), Delay: time.Minute}
		in := Input{Pod: p, Record: r, Observed: observed(p), Now: t0}
		if got := words(Decide(in)); got != "start:a#0" {
			t.Errorf("%s of another image: %q", v.Reason, got)
		}
		v.Image = "i:2"
		if got := words(Decide(in)); strings.Contains(got, "start") {
			t.Errorf("%s of the image: %q", v.Reason, got)
		}
	}
	mounted := &record.Verdict{Reason: "ErrImagePull", Image: "data:1"}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: "data:1"}}}}
	*r.Of("a") = record.Container{Fault: mounted, Retry: t0.Add(time.Minute), Delay: time.Minute}
	if got := words(Decide(Input{Pod: p, Record: r, Observed: observed(p), Now: t0})); got != "" {
		t.Errorf("an image that it mounts: %q", got)
	}
}

// Who debugs a pod whose init containers do not end gets an ephemeral container.
func TestEphemeralBesideInit(t *testing.T) {
	p := testPod(corev1.RestartPolicyAlways, "init:i", "a")
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "e", Image: "i:1"}}}
	for _, tt := range []struct {
		see, busy []string
		want      string
	}{
		{nil, nil, "start:i#0 start:e#0"},
		{[]string{"i=run"}, nil, "start:e#0"},
		{[]string{"i=run"}, []string{"e"}, ""},
		{nil, []string{"e"}, "start:i#0"},
		{nil, []string{"i"}, "start:e#0"}, // its image may be what does not come
		{[]string{"i=run", "e=run"}, nil, ""},
		{[]string{"i=run", "e=exit0"}, nil, ""},
		{[]string{"i=exit0", "e=run"}, nil, "start:a#0"},
	} {
		busy := map[string]bool{}
		for _, b := range tt.busy {
			busy[b] = true
		}
		r := &record.Pod{Admitted: metav1.NewTime(t0)}
		got := words(Decide(Input{Pod: p, Record: r, Observed: observed(p, tt.see...), Busy: busy, Now: t0}))
		if got != tt.want {
			t.Errorf("%v, busy with %v: %q, want %q", tt.see, tt.busy, got, tt.want)
		}
	}
}

// What runs in a sandbox that is no more is ended, with its grace, and runs on in the
// next one, however it ends; a pod that never restarts is over, as upstream.
func TestOutdatedSandbox(t *testing.T) {
	for policy, want := range map[corev1.RestartPolicy]string{
		corev1.RestartPolicyAlways:    "setup",
		corev1.RestartPolicyOnFailure: "setup",
		corev1.RestartPolicyNever:     "release",
	} {
		p := testPod(policy, "a")
		r := &record.Pod{Admitted: metav1.NewTime(t0), SandboxAttempts: 1}
		*r.Of("a") = record.Container{ID: "a0", Hooked: true, Started: true, Ready: true}
		o := observed(p, "a=run")
		o.Sandboxes[0].Ready = false
		plan := Decide(Input{Pod: p, Record: r, Observed: o, Now: t0})
		if words(plan) != "stop:a/30" {
			t.Fatalf("%s: running: %s", policy, words(plan))
		}
		r.Of("a").Again = plan.Actions[0].Again
		o.Containers[0].State, o.Containers[0].Finished = record.Exited, t0
		if plan = Decide(Input{Pod: p, Record: r, Observed: o, Now: t0}); words(plan) != want {
			t.Errorf("%s: ended: %s", policy, words(plan))
		}
	}
}

// POD-1..: the order of a pod's life, restart policies and back-off.
func TestDecide(t *testing.T) {
	always, never, onFailure := corev1.RestartPolicyAlways, corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		see    []string
		none   bool // nothing in the runtime yet
		record func(r *record.Pod)
		at     int      // seconds after t0
		busy   []string // with "waits:" in front: for its turn to be stopped
		want   string
	}{
		{name: "new", pod: testPod(always, "a"), none: true, want: "setup"},
		{name: "first_container", pod: testPod(always, "a", "b"), want: "start:a#0"},
		{name: "one_by_one", pod: testPod(always, "a", "b"), busy: []string{"a"}, want: ""},
		{name: "second_container", pod: testPod(always, "a", "b"), see: []string{"a=run"}, want: "start:b#0"},
		{name: "init_first", pod: testPod(always, "init:i", "a"), want: "start:i#0"},
		{name: "init_runs", pod: testPod(always, "init:i", "a"), see: []string{"i=run"}, want: ""},
		{name: "init_done", pod: testPod(always, "init:i", "a"), see: []string{"i=exit0"}, want: "start:a#0"},
		{name: "init_failed_again", pod: testPod(always, "init:i", "a"), see: []string{"i=exit1"}, want: "start:i#1"},
		{name: "init_failed_for_good", pod: testPod(never, "init:i", "a"), see: []string{"i=exit1"}, want: "release"},
		{name: "sidecar_not_started", pod: testPod(always, "side:s", "a"), see: []string{"s=run"}, want: ""},
		{name: "sidecar_started", pod: testPod(always, "side:s", "a"), see: []string{"s=run"},
			record: func(r *record.Pod) { r.Of("s").Started = true }, want: "start:a#0"},
		{name: "sidecar_restarts_beside", pod: testPod(never, "side:s", "a"), see: []string{"a=run", "s=exit0"}, want: "start:s#1"},
		{name: "first_crash_at_once", pod: testPod(always, "a"), see: []string{"a=exit1"}, want: "start:a#1"},
		{name: "crash_loop", pod: testPod(always, "a"), see: []string{"a=exit1@5"}, at: 6,
			record: func(r *record.Pod) { c := r.Of("a"); c.Backoff, c.BackoffAt = 10*time.Second, t0 }, want: "hold:a(CrashLoopBackOff)"},
		{name: "crash_loop_over", pod: testPod(always, "a"), see: []string{"a=exit1@5"}, at: 15,
			record: func(r *record.Pod) { c := r.Of("a"); c.Backoff, c.BackoffAt = 10*time.Second, t0 }, want: "start:a#1"},
		{name: "crash_loop_clock_set_back", pod: testPod(always, "a"), see: []string{"a=exit1@3600"}, at: 6,
			record: func(r *record.Pod) { c := r.Of("a"); c.Backoff, c.BackoffAt = 10*time.Second, t0 }, want: "start:a#1"},
		{name: "crash_after_long_run", pod: testPod(always, "a"), see: []string{"a=exit1@601"}, at: 601,
			record: func(r *record.Pod) { c := r.Of("a"); c.Backoff, c.BackoffAt = 5*time.Minute, t0 }, want: "start:a#1"},
		{name: "never_done", pod: testPod(never, "a"), see: []string{"a=exit1"}, want: "release"},
		{name: "on_failure_done", pod: testPod(onFailure, "a"), see: []string{"a=exit0"}, want: "release"},
		{name: "on_failure_again", pod: testPod(onFailure, "a"), see: []string{"a=exit3"}, want: "start:a#1"},
		{name: "done_ends_sidecars", pod: testPod(never, "side:s", "a"), see: []string{"a=exit0", "s=run"}, want: "stop:s/30"},
		{name: "released_rests", pod: testPod(never, "a"), see: []string{"a=exit0"},
			record: func(r *record.Pod) { r.Released = true }, want: ""},
		{name: "unhealthy", pod: testPod(always, "a"), see: []string{"a=run"},
			record: func(r *record.Pod) { c := r.Of("a"); c.ID, c.Hooked, c.Unhealthy = "a0", true, "x" }, want: "stop:a/30"},
		{name: "unhealthy_ends_well", pod: testPod(onFailure, "a"), see: []string{"a=exit0"},
			record: func(r *record.Pod) { r.Of("a").Failed = true }, want: "start:a#1"},
		{name: "unhealthy_of_never", pod: testPod(never, "a"), see: []string{"a=exit0"},
			record: func(r *record.Pod) { r.Of("a").Failed = true }, want: "release"},
		{name: "unhealthy_for_good_ends_sidecars", pod: testPod(never, "side:s", "a"), see: []string{"a=run", "s=run"},
			record: func(r *record.Pod) { r.Of("a").Failed = true }, busy: []string{"a0"}, want: "stop:s/30+wait"},
		{name: "unhealthy_for_good_restarts_no_sidecar", pod: testPod(never, "side:s", "a"),
			see:    []string{"a=run", "s=exit1"},
			record: func(r *record.Pod) { r.Of("a").Failed = true }, busy: []string{"a0"}, want: ""},
		{name: "stopping", pod: testPod(always, "side:s", "a", "b"), see: []string{"a=run", "b=run", "s=run"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0, Grace: 7} }, at: 2,
			want: "stop:a/5 stop:b/5 stop:s/5+wait"},
		{name: "stopping_sidecars_last", pod: testPod(always, "side:s", "side:r", "a"),
			see:    []string{"a=exit0", "s=run", "r=run"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0, Grace: 7} },
			want:   "stop:r/7 stop:s/7+wait"},
		{name: "stopping_sidecars_waited", pod: testPod(always, "side:s", "side:r", "a"),
			see: []string{"a=exit0", "s=run", "r=run"}, busy: []string{"waits:r0", "waits:s0"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0, Grace: 7} }, want: "proceed:r"},
		{name: "stopping_sidecars_wait_on", pod: testPod(always, "side:s", "side:r", "a"),
			see: []string{"a=exit0", "s=run", "r=run"}, busy: []string{"r0", "waits:s0"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0, Grace: 7} }, want: ""},
		{name: "stopping_sidecars_without_time", pod: testPod(always, "side:s", "side:r", "a"),
			see:    []string{"a=exit0", "s=run", "r=run"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0, Grace: 7} }, at: 7, want: "stop:r/2 stop:s/2"},
		{name: "stopping_time_is_over", pod: testPod(always, "side:s", "a"),
			see: []string{"a=run", "s=run"}, busy: []string{"a0"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0, Grace: 7} }, at: 7, want: "stop:s/2"},
		{name: "stopping_without_grace", pod: testPod(always, "side:s", "a"), see: []string{"a=run", "s=run"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0} }, want: "stop:a/0 stop:s/0"},
		{name: "stopped_releases", pod: testPod(always, "a"), see: []string{"a=exit0"},
			record: func(r *record.Pod) { r.Stopping = &record.Stopping{Since: t0} }, want: "release"},
		{name: "pull_failed", pod: testPod(always, "a"), at: 1, record: func(r *record.Pod) {
			c := r.Of("a")
			c.Fault, c.Retry, c.Delay = &record.Verdict{Reason: "ErrImagePull"}, t0.Add(10*time.Second), 10*time.Second
		}, want: ""},
		{name: "pull_backs_off", pod: testPod(always, "a"), at: 3, record: func(r *record.Pod) {
			c := r.Of("a")
			c.Fault, c.Retry, c.Delay = &record.Verdict{Reason: "ErrImagePull"}, t0.Add(10*time.Second), 10*time.Second
		}, want: "hold:a(ImagePullBackOff)"},
		{name: "lost_container_of_never", pod: testPod(never, "a"), none: true,
			record: func(r *record.Pod) {
				r.Of("a").Seen = &record.Exit{ID: "a0", State: corev1.ContainerStateTerminated{ExitCode: 137}}
			}, want: "release"},
		{name: "lost_container_of_always", pod: testPod(always, "a"), record: func(r *record.Pod) {
			r.Of("a").Seen = &record.Exit{ID: "a9", Attempt: 4, State: corev1.ContainerStateTerminated{ExitCode: 137}}
		}, want: "start:a#5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &record.Pod{Admitted: metav1.NewTime(t0)}
			if c.record != nil {
				c.record(r)
			}
			o := observed(c.pod, c.see...)
			if c.none {
				o = &record.Observed{}
			}
			busy := map[string]bool{}
			waiting := map[string]bool{}
			for _, b := range c.busy {
				id, waits := strings.CutPrefix(b, "waits:")
				busy[id], waiting[id] = true, waits
			}
			got := words(
				Decide(Input{Pod: c.pod, Record: r, Observed: o, Busy: busy, Waiting: waiting,
					Now: t0.Add(time.Duration(c.at) * time.Second)}))
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Whatever the runtime shows, deciding ends nothing that shall run and is
// repeatable.
func TestDecideLeavesAloneWhatRuns(t *testing.T) {
	p := testPod(corev1.RestartPolicyAlways, "side:s", "init:i", "a", "b")
	o := observed(p, "a=run", "b=run", "i=exit0", "s=run")
	r := &record.Pod{Admitted: metav1.NewTime(t0)}
	Absorb(p, r, o, nil)
	if got := words(Decide(Input{Pod: p, Record: r, Observed: o, Now: t0})); got != "" {
		t.Errorf("a restarted agent would %s", got)
	}
	if !r.Get("a").Ready || !r.Get("s").Started {
		t.Error("readiness is not known without probes")
	}
}

func TestDeadline(t *testing.T) {
	p := testPod(corev1.RestartPolicyAlways, "a")
	limit := int64(5)
	p.Spec.ActiveDeadlineSeconds = &limit
	r := &record.Pod{Admitted: metav1.NewTime(t0)}
	in := Input{Pod: p, Record: r, Observed: observed(p, "a=run"), Now: t0.Add(4 * time.Second)}
	if plan := Decide(in); len(plan.Actions) != 0 || !plan.Wake.Equal(t0.Add(5*time.Second)) {
		t.Errorf("before: %s, wake %s", words(plan), plan.Wake)
	}
	in.Now = t0.Add(5 * time.Second)
	if got := words(Decide(in)); got != "end(DeadlineExceeded)" {
		t.Errorf("after: %s", got)
	}
}

// That a probe failed is known when the container has ended.
func TestFailedProbe(t *testing.T) {
	p := testPod(corev1.RestartPolicyOnFailure, "a")
	r := &record.Pod{Admitted: metav1.NewTime(t0)}
	c := r.Of("a")
	c.ID, c.Hooked, c.Unhealthy = "a0", true, "Container a failed liveness probe"
	plan := Decide(Input{Pod: p, Record: r, Observed: observed(p, "a=run"), Now: t0})
	if words(plan) != "stop:a/30" || !plan.Actions[0].Failed {
		t.Errorf("%+v", plan.Actions)
	}
}

// What a pod asks for of a newer node is refused, unless the node declares it.
func TestFeatures(t *testing.T) {
	want := []string{"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
		"RestartAllContainersOnContainerExits"}
	if got := DeclaredFeatures(); !slices.Equal(got, want) {
		t.Errorf("declared %v, want %v", got, want)
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
		RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}}}}}
	if v := Admit(p, nil, nil, nil); v != nil {
		t.Errorf("restarts all: %v", v)
	}
	p.Spec.HostNetwork, p.Spec.HostUsers = true, ptr.To(false)
	v := Admit(p, nil, nil, nil)
	if v == nil || v.Reason != "PodFeatureUnsupported" || v.Message !=
		"Pod requires node features that are not available: UserNamespacesHostNetworkSupport" {
		t.Errorf("the host's network in a user namespace: %v", v)
	}
}

// A node under pressure takes the system's pods; short of memory alone, those too that ask
// for some or tolerate the lack.
func TestPressed(t *testing.T) {
	best := testPod(corev1.RestartPolicyAlways, "a")
	burstable, tolerant, critical := best.DeepCopy(), best.DeepCopy(), best.DeepCopy()
	burstable.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("1Mi")}
	tolerant.Spec.Tolerations = []corev1.Toleration{
		{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
	critical.Spec.Priority = ptr.To[int32](launch.CriticalPriority)
	short := func(list ...corev1.NodeConditionType) map[corev1.NodeConditionType]bool {
		out := map[corev1.NodeConditionType]bool{}
		for _, c := range list {
			out[c] = true
		}
		return out
	}
	memory, disk := short(corev1.NodeMemoryPressure), short(corev1.NodeDiskPressure)
	both := short(corev1.NodeMemoryPressure, corev1.NodeDiskPressure)
	for _, tt := range []struct {
		pod        *corev1.Pod
		conditions map[corev1.NodeConditionType]bool
		want       string
	}{
		{best, nil, ""}, {best, memory, "[MemoryPressure]"}, {best, disk, "[DiskPressure]"},
		{burstable, memory, ""}, {burstable, disk, "[DiskPressure]"}, {burstable, both, "[DiskPressure MemoryPressure]"},
		{tolerant, memory, ""}, {tolerant, disk, "[DiskPressure]"}, {critical, both, ""},
	} {
		v := pressed(tt.pod, tt.conditions)
		if (v == nil) != (tt.want == "") || v != nil && (v.Reason != "Evicted" ||
			v.Message != "The node had condition: "+tt.want+". ") {
			t.Errorf("%v: %v, want %q", tt.conditions, v, tt.want)
		}
	}
}

func TestAdmit(t *testing.T) {
	p := testPod(corev1.RestartPolicyAlways, "a")
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80, Protocol: corev1.ProtocolTCP}}
	q := p.DeepCopy()
	q.UID = "v"
	if v := Admit(p, []*corev1.Pod{q}, nil, nil); v == nil || v.Reason != "NodePorts" {
		t.Errorf("host port conflict: %v", v)
	}
	// Init containers have ended when others come, but sidecars.
	q.Spec.InitContainers, q.Spec.Containers[0].Ports = []corev1.Container{q.Spec.Containers[0]}, nil
	q.Spec.InitContainers[0].Name = "init"
	if v := Admit(p, []*corev1.Pod{q}, nil, nil); v != nil {
		t.Errorf("host port of an init container: %v", v)
	}
	q.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	if v := Admit(p, []*corev1.Pod{q}, nil, nil); v == nil || v.Reason != "NodePorts" {
		t.Errorf("host port of a sidecar: %v", v)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}}}
	r := testPod(corev1.RestartPolicyAlways, "a")
	r.Spec.NodeSelector = map[string]string{"disk": "hdd"}
	if v := Admit(r, nil, node, nil); v == nil || v.Reason != "NodeAffinity" {
		t.Errorf("node selector: %v", v)
	}
	r.Spec.NodeSelector["disk"] = "ssd"
	if v := Admit(r, nil, node, nil); v != nil {
		t.Errorf("fitting pod is refused: %v", v)
	}
	strict := r.DeepCopy()
	strict.Spec.SecurityContext = &corev1.PodSecurityContext{
		SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicyStrict)}
	if v := Admit(strict, nil, node, nil); v == nil || v.Reason != "SupplementalGroupsPolicyNotSupported" {
		t.Errorf("a runtime that adds the image's groups: %v", v)
	}
	able := node.DeepCopy()
	able.Status.Features = &corev1.NodeFeatures{SupplementalGroupsPolicy: ptr.To(true)}
	if v := Admit(strict, nil, able, nil); v != nil {
		t.Errorf("a runtime that can leave them out: %v", v)
	}
	repels := node.DeepCopy()
	repels.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	if v := Admit(r, nil, repels, nil); v != nil {
		t.Errorf("a taint for the scheduler alone: %v", v)
	}
	repels.Spec.Taints = append(repels.Spec.Taints, corev1.Taint{Key: "gone", Effect: corev1.TaintEffectNoExecute})
	if v := Admit(r, nil, repels, nil); v == nil || v.Reason != "TaintToleration" ||
		v.Message != "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate" {
		t.Errorf("a taint that pods are evicted for: %v", v)
	}
	tolerant := r.DeepCopy()
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: "gone", Operator: corev1.TolerationOpExists}}
	if v := Admit(tolerant, nil, repels, nil); v != nil {
		t.Errorf("a pod that tolerates the taint: %v", v)
	}
	list := func(cpu, foo string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			"example.com/foo": resource.MustParse(foo), corev1.ResourcePods: resource.MustParse("9")}
	}
	r.Spec.Containers[0].Resources.Requests = list("1", "3")
	r.Spec.Containers[0].Resources.Requests[corev1.ResourcePods] = resource.MustParse("0")
	node.Status.Allocatable = list("8", "2")
	own := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourcePods: resource.MustParse("9")}
	claimed := r.DeepCopy()
	claimed.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: r.Spec.Containers[0].Name, ResourceName: "example.com/foo", RequestName: "r"}}}
	if v := Admit(claimed, []*corev1.Pod{claimed}, node, own); v != nil {
		t.Errorf("devices by a claim are not counted, and the pod is refused: %v", v)
	}
	if v := Admit(r, nil, node, own); v == nil || v.Reason != "OutOfexample.com/foo" {
		t.Errorf("extended resource: %v", v)
	}
	node.Status.Allocatable = list("8", "3")
	if v := Admit(r, nil, node, own); v != nil {
		t.Errorf("fitting pod is refused: %v", v)
	}
	r.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/of-the-cluster": resource.MustParse("1")}
	if v := Admit(r, nil, node, own); v != nil {
		t.Errorf("a resource that the scheduler alone counts: %v", v)
	}
	r.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"hugepages-4Mi": resource.MustParse("4Mi")}
	if v := Admit(r, nil, node, own); v == nil || v.Reason != "OutOfhugepages-4Mi" || v.Message != "Node didn't have "+
		"enough resource: hugepages-4Mi, requested: 4194304, used: 0, capacity: 0" {
		t.Errorf("huge pages of a size that the node has not: %v", v)
	}
}

// TestRecordsOfALaterClock: an agent that starts with the clock set back waits no longer than
// the pauses were to be.
func TestRecordsOfALaterClock(t *testing.T) {
	later := t0.Add(time.Hour)
	r := &record.Pod{
		Retry:    later,
		Delay:    time.Second,
		Resize:   record.Resize{Retry: later, Delay: 2 * time.Second},
		Stopping: &record.Stopping{Since: later, Grace: 30},
		Containers: map[string]*record.Container{
			"a": {Retry: later, Delay: 3 * time.Second, BackoffAt: later},
			"b": {Retry: t0.Add(time.Second), Delay: 4 * time.Second, BackoffAt: t0.Add(-time.Hour)},
		},
	}
	steady(r, t0)
	a, b := r.Containers["a"], r.Containers["b"]
	var got []time.Duration
	for _, at := range []time.Time{r.Retry, r.Resize.Retry, r.Stopping.Since, a.Retry, a.BackoffAt, b.Retry, b.BackoffAt} {
		got = append(got, at.Sub(t0))
	}
	want := []time.Duration{time.Second, 2 * time.Second, 0, 3 * time.Second, 0, time.Second, -time.Hour}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
