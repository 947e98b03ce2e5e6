package core

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A Service of both families is valid with what it is given, and when it gives
// the second address back.
func TestDualStackServiceIsValid(t *testing.T) {
	require, single := corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack
	s := &corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIP:      "10.0.0.2",
		ClusterIPs:     []string{"10.0.0.2", "fd00::2"},
		IPFamilies:     []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		IPFamilyPolicy: &require,
		Ports:          []corev1.ServicePort{{Port: 1}},
	}}
	defaultService(s)
	if errs := validateService(s, nil); len(errs) > 0 {
		t.Error(errs)
	}
	next := s.DeepCopy()
	next.Spec.ClusterIPs, next.Spec.IPFamilies = next.Spec.ClusterIPs[:1], next.Spec.IPFamilies[:1]
	if errs := validateServiceUpdate(next, s); len(errs) == 0 {
		t.Error("the second address goes without the policy")
	}
	next.Spec.IPFamilyPolicy = &single
	if errs := validateServiceUpdate(next, s); len(errs) > 0 {
		t.Error(errs)
	}
}

func ended(code int32, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}}
}

func waiting(reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func running() corev1.ContainerStatus {
	return corev1.ContainerStatus{Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func TestPodRow(t *testing.T) {
	now := metav1.Now()
	always := corev1.ContainerRestartPolicyAlways
	yes := true
	restarted := running()
	restarted.RestartCount = 3
	restarted.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
		FinishedAt: metav1.NewTime(time.Now().Add(-5*time.Minute - time.Second))}
	sidecar := running()
	sidecar.Name, sidecar.Started = "side", &yes
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		want   string // ready, status, restarts
	}{
		{"pending", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, "0/2 Pending 0"},
		{"gated", func(p *corev1.Pod) { createPod(p) }, "0/2 SchedulingGated 0"},
		{"running", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{running(), restarted}
		}, "2/2 Running 3 (5m1s ago)"},
		{"crash", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{waiting("CrashLoopBackOff"), running()}
		}, "1/2 CrashLoopBackOff 0"},
		{"completed", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended(0, "Completed"), ended(0, "Completed")}
		}, "0/2 Completed 0"},
		{"half", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended(0, "Completed"), running()}
		}, "1/2 NotReady 0"},
		{"exit code", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended(3, ""), running()}
		}, "1/2 ExitCode:3 0"},
		{"failed and completed", func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{ended(0, "Completed"), ended(1, "Error")}
		}, "0/2 Error 0"},
		{"init", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}, {Name: "j"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{ended(0, "Completed"), waiting("PodInitializing")}
		}, "0/2 Init:1/2 0"},
		{"init error", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{ended(1, "Error")}
		}, "0/2 Init:Error 0"},
		{"sidecar", func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{sidecar}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{running(), running()}
		}, "3/3 Running 0"},
		{"terminating", func(p *corev1.Pod) { p.DeletionTimestamp = &now }, "0/2 Terminating 0"},
		{"lost", func(p *corev1.Pod) { p.DeletionTimestamp, p.Status.Reason = &now, "NodeLost" }, "0/2 Unknown 0"},
		{"evicted", func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }, "0/2 Evicted 0"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 2)},
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		if c.name == "gated" {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a"}}
		}
		c.change(p)
		row := podRow(p)
		if got := fmt.Sprintf("%v %v %v", row[1], row[2], row[3]); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestGracePod(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name        string
		node        string
		phase       corev1.PodPhase
		spec, asked *int64
		want        int64
	}{
		{"spec", "n", corev1.PodRunning, seconds(40), nil, 40},
		{"asked", "n", corev1.PodRunning, seconds(40), seconds(3), 3},
		{"negative", "n", corev1.PodRunning, seconds(-5), nil, 1},
		{"unscheduled", "", corev1.PodPending, seconds(40), seconds(3), 0},
		{"ended", "n", corev1.PodSucceeded, seconds(40), nil, 0},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: c.node, TerminationGracePeriodSeconds: c.spec},
			Status: corev1.PodStatus{Phase: c.phase}}
		o := &metav1.DeleteOptions{GracePeriodSeconds: c.asked}
		if !gracePod(context.Background(), p, o) || *o.GracePeriodSeconds != c.want {
			t.Errorf("%s: %d, want %d", c.name, *o.GracePeriodSeconds, c.want)
		}
	}
}

func TestNoResurrection(t *testing.T) {
	onFailure := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []corev1.Container{{Name: ""}}}
	never := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: ""}}}
	always := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: ""}}}
	for _, c := range []struct {
		name string
		spec corev1.PodSpec
		code int32
		ok   bool
	}{
		{"always", always, 0, true}, {"on failure, failed", onFailure, 1, true},
		{"on failure, done", onFailure, 0, false}, {"never", never, 1, false},
	} {
		errs := noResurrection(&c.spec, []corev1.ContainerStatus{running()},
			[]corev1.ContainerStatus{ended(c.code, "")}, field.NewPath("s"))
		if (len(errs) == 0) != c.ok {
			t.Errorf("%s: %v", c.name, errs)
		}
	}
}

func TestDisrupt(t *testing.T) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b", Generation: 2}}
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: 1}
	if err := disrupt(b, "p", time.Now()); err == nil {
		t.Error("a budget that is not yet seen allows a disruption")
	}
	b.Status.ObservedGeneration = 2
	if err := disrupt(b, "p", time.Now()); err != nil || b.Status.DisruptionsAllowed != 0 ||
		len(b.Status.Conditions) != 1 {
		t.Errorf("%v %+v", err, b.Status)
	}
	if err := disrupt(b, "q", time.Now()); err == nil || len(b.Status.DisruptedPods) != 1 {
		t.Errorf("%v %+v", err, b.Status)
	}
}

func TestFormatSubsets(t *testing.T) {
	address := func(n int) (out []corev1.EndpointAddress) {
		for i := range n {
			out = append(out, corev1.EndpointAddress{IP: fmt.Sprintf("10.0.0.%d", i+1)})
		}
		return out
	}
	port := []corev1.EndpointPort{{Port: 80}}
	for _, c := range []struct {
		subsets []corev1.EndpointSubset
		want    string
	}{
		{nil, "<none>"},
		{[]corev1.EndpointSubset{{Addresses: address(2), Ports: port}}, "10.0.0.1:80,10.0.0.2:80"},
		{[]corev1.EndpointSubset{{Addresses: address(5), Ports: port}}, "10.0.0.1:80,10.0.0.2:80,10.0.0.3:80 + 2 more..."},
		{[]corev1.EndpointSubset{{Addresses: address(1)}}, "10.0.0.1"},
	} {
		if got := formatSubsets(c.subsets); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
