package node

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/problem"
)

func TestBuildKeepsExtendedResources(t *testing.T) {
	in := Input{Name: "n", MaxPods: 10,
		Facts: host.Facts{CPUs: 2, MemoryBytes: 1 << 30, HugePages: map[string]int64{"2Mi": 0}}}
	n := Build(nil, in)
	n.Status.Capacity["example.com/foo"] = resource.MustParse("5")
	n.Status.Capacity["hugepages-32Mi"] = resource.MustParse("64Mi") // a size that the kernel has no more
	n.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("99")
	n = Build(n, in)
	for name, want := range map[corev1.ResourceName]string{"example.com/foo": "5", corev1.ResourceCPU: "2",
		corev1.ResourcePods: "10", "hugepages-2Mi": "0"} {
		if c, a := n.Status.Capacity[name], n.Status.Allocatable[name]; c.String() != want || a.String() != want {
			t.Errorf("%s: capacity %s, allocatable %s, want %s", name, &c, &a, want)
		}
	}
	if _, ok := n.Status.Capacity["hugepages-32Mi"]; ok {
		t.Error("a page size that is gone stays")
	}
	delete(n.Status.Capacity, "example.com/foo")
	if n = Build(n, in); len(n.Status.Allocatable) != len(n.Status.Capacity) {
		t.Errorf("removed by its owner, still allocatable: %v", n.Status.Allocatable)
	}
}

// A full node that starts anew is not given pods before it has looked at its disk.
// The devices of plugins are the node's own: what the API has of them does not count.
func TestBuildCountsDevices(t *testing.T) {
	list := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"vendor.example/dev": resource.MustParse(n)}
	}
	in := Input{Name: "n", Devices: list("3"), HealthyDevices: list("2")}
	n := Build(nil, in)
	for _, want := range [][2]string{{"3", "2"}, {"3", "0"}, {"0", "0"}} {
		in.Devices, in.HealthyDevices = list(want[0]), list(want[1])
		n = Build(n, in)
		capacity, allocatable := n.Status.Capacity["vendor.example/dev"], n.Status.Allocatable["vendor.example/dev"]
		if got := [2]string{capacity.String(), allocatable.String()}; got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	in.Devices, in.HealthyDevices = nil, nil // another agent, which does not know them
	if q := Build(n, in).Status.Capacity["vendor.example/dev"]; !q.IsZero() {
		t.Errorf("%s come back", q.String())
	}
}

func TestBuildKeepsPressureUntilItIsMeasured(t *testing.T) {
	in := Input{Name: "n", Pressure: map[corev1.NodeConditionType]bool{corev1.NodeDiskPressure: true}}
	n := Build(nil, in)
	for _, step := range []struct {
		what     string
		pressure map[corev1.NodeConditionType]bool
		want     corev1.ConditionStatus
	}{
		{"not looked yet", nil, corev1.ConditionTrue},
		{"looked, and all is well", map[corev1.NodeConditionType]bool{}, corev1.ConditionFalse},
		{"not looked yet", nil, corev1.ConditionFalse},
	} {
		in.Pressure = step.pressure
		n = Build(n, in)
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeDiskPressure && c.Status != step.want {
				t.Errorf("%s: %s, want %s", step.what, c.Status, step.want)
			}
			if c.Type == corev1.NodeMemoryPressure && c.Status != corev1.ConditionFalse {
				t.Errorf("%s: memory pressure %s", step.what, c.Status)
			}
		}
	}
}

// A problem of the machine is shown from the first time that it holds; what somebody
// else writes stays theirs.
func TestBuildShowsProblems(t *testing.T) {
	deadlock := func(s corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: problem.KernelDeadlock, Status: s, Reason: reason}
	}
	hung, well := deadlock(corev1.ConditionTrue, "TaskHung"), deadlock(corev1.ConditionFalse, "NoTaskHung")
	theirs := deadlock(corev1.ConditionFalse, "KernelHasNoDeadlock")
	in := Input{Name: "n"}
	n := Build(nil, in)
	for _, step := range []struct {
		what   string
		now    []corev1.NodeCondition
		minute int
		want   string // reason, and the minute of the last change
	}{
		{"not known", nil, 1, " 0"},
		{"well", []corev1.NodeCondition{well}, 2, " 0"},
		{"ill", []corev1.NodeCondition{hung}, 3, "TaskHung 3"},
		{"not known, after a restart", nil, 4, "TaskHung 3"},
		{"ill", []corev1.NodeCondition{hung}, 5, "TaskHung 3"},
		{"well again", []corev1.NodeCondition{well}, 6, "NoTaskHung 6"},
		{"well", []corev1.NodeCondition{well}, 7, "NoTaskHung 6"},
	} {
		in.Problems, in.Now = step.now, metav1.Unix(int64(60*step.minute), 0)
		n = Build(n, in)
		if got := problemOf(n); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
	n.Status.Conditions = []corev1.NodeCondition{theirs}
	in.Problems = []corev1.NodeCondition{hung}
	if n = Build(n, in); problemOf(n) != "KernelHasNoDeadlock 0" {
		t.Errorf("another's condition became %s", problemOf(n))
	}
}

func problemOf(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == problem.KernelDeadlock {
			return fmt.Sprint(c.Reason, " ", max(0, c.LastTransitionTime.Unix()/60))
		}
	}
	return " 0"
}

// NODE-23: a Node says whether its network is missing where that is the agent's own. Another
// network says so itself, and finds nothing of the agent's.
func TestNetworkUnavailable(t *testing.T) {
	up := []*criv1.RuntimeCondition{{Type: criv1.NetworkReady, Status: true}}
	down := []*criv1.RuntimeCondition{{Type: criv1.NetworkReady, Reason: "NetworkPluginNotReady", Message: "no range"}}
	theirs := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: "FlannelIsUp"}
	runtime := &fakeRuntime{}
	own := true
	d := &Describer{
		Static:      Input{Name: "n"},
		Runtime:     runtime,
		Images:      runtime,
		Pressure:    func() map[corev1.NodeConditionType]bool { return nil },
		Annotations: func() map[string]string { return nil },
		Leaving:     func() bool { return false },
		OwnNetwork:  func() bool { return own },
	}
	var n *corev1.Node
	for i, step := range []struct {
		what    string
		runtime []*criv1.RuntimeCondition
		err     error
		own     bool
		theirs  bool
		want    string // status, reason, message, and the step of the last change
	}{
		{"no range yet", down, nil, true, false, "True ShoalNetworkIsDown no range 0"},
		{"set up", up, nil, true, false, "False ShoalNetworkIsUp the agent's own pod network is set up on this node 1"},
		{"set up", up, nil, true, false, "False ShoalNetworkIsUp the agent's own pod network is set up on this node 1"},
		{"no answer", nil, errors.New("gone"), true, false,
			"False ShoalNetworkIsUp the agent's own pod network is set up on this node 1"},
		{"another network", up, nil, false, false, ""},
		{"which says so", up, nil, false, true, "False FlannelIsUp  0"},
		{"is not ready", down, nil, false, false, "False FlannelIsUp  0"},
		{"its own again", up, nil, true, false,
			"False ShoalNetworkIsUp the agent's own pod network is set up on this node 0"},
	} {
		runtime.conditions, runtime.err, own = step.runtime, step.err, step.own
		if step.theirs {
			n.Status.Conditions = append(n.Status.Conditions, theirs)
		}
		in := d.Describe(t.Context())
		in.Now = metav1.Unix(int64(i), 0)
		n = Build(n, in)
		got := ""
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeNetworkUnavailable {
				got += fmt.Sprintf("%s %s %s %d", c.Status, c.Reason, c.Message, max(0, c.LastTransitionTime.Unix()))
			}
		}
		if got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}
