package plugins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

func node(cpu string, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"disk": "ssd"}}}
	n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
		corev1.ResourcePods: resource.MustParse("10")}
	for _, t := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: t, Effect: corev1.TaintEffectNoSchedule})
	}
	return n
}

func podOn(nodeName string, ports ...int32) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{"app": "db"}},
		Spec: corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{}}}}
	for _, port := range ports {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: port})
	}
	return p
}

// TestHints: which events bring a refused pod back.
func TestHints(t *testing.T) {
	asking := podOn("", 80)
	asking.UID = "asking"
	asking.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	asking.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	asking.Spec.Affinity = &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey:   corev1.LabelHostname,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}}}}
	other := podOn("n")
	other.Labels = nil
	cordonedNode := node("4")
	cordonedNode.Spec.Unschedulable = true
	bare := node("4")
	bare.Labels = nil
	newer := node("4")
	newer.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
	zoned := node("4")
	zoned.Labels = map[string]string{corev1.LabelTopologyZone: "z"}
	// A node need not have what the pod is spread by only where that can be.
	asking.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
		{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, MaxSkew: 1,
			LabelSelector: &metav1.LabelSelector{}},
		{TopologyKey: "rack", WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 1,
			LabelSelector: &metav1.LabelSelector{}}}
	event := func(r framework.EventResource, a framework.Action, old, now any) framework.Event {
		return framework.Event{Resource: r, Action: a, Old: old, New: now}
	}
	tests := []struct {
		name, plugin string
		event        framework.Event
		want         framework.Hint
	}{
		{"room-freed", NodeResourcesFitName, event(framework.Pod, framework.Delete, podOn("n"), nil), true},
		{"unplaced-pod-gone", NodeResourcesFitName, event(framework.Pod, framework.Delete, podOn(""), nil), false},
		{"big-node", NodeResourcesFitName, event(framework.Node, framework.Add, nil, node("4")), true},
		{"small-node", NodeResourcesFitName, event(framework.Node, framework.Add, nil, node("1")), false},
		{"node-grew", NodeResourcesFitName,
			event(framework.Node, framework.UpdateNodeAllocatable, node("1"), node("4")), true},
		{"node-shrank", NodeResourcesFitName,
			event(framework.Node, framework.UpdateNodeAllocatable, node("8"), node("4")), false},
		{"node-got-devices", DynamicResourcesName,
			event(framework.Node, framework.UpdateNodeAllocatable, node("4"), newer), true},
		{"taint-lifted", TaintTolerationName,
			event(framework.Node, framework.UpdateNodeTaint, node("1", "k"), node("1")), true},
		{"taint-added", TaintTolerationName,
			event(framework.Node, framework.UpdateNodeTaint, node("1"), node("1", "k")), false},
		{"tainted-node", TaintTolerationName, event(framework.Node, framework.Add, nil, node("1", "k")), false},
		{"uncordoned", NodeUnschedulableName, event(framework.Node, framework.UpdateNodeTaint, cordonedNode, node("4")),
			true},
		{"still-cordoned", NodeUnschedulableName,
			event(framework.Node, framework.UpdateNodeTaint, cordonedNode, cordonedNode), false},
		{"labelled", NodeAffinityName, event(framework.Node, framework.UpdateNodeLabel, bare, node("4")), true},
		{"not-labelled", NodeAffinityName, event(framework.Node, framework.Add, nil, bare), false},
		{"port-freed", NodePortsName, event(framework.Pod, framework.Delete, podOn("n", 80), nil), true},
		{"other-port-freed", NodePortsName, event(framework.Pod, framework.Delete, podOn("n", 81), nil), false},
		{"rival-gone", InterPodAffinityName, event(framework.Pod, framework.Delete, podOn("n"), nil), true},
		{"stranger-gone", InterPodAffinityName, event(framework.Pod, framework.Delete, other, nil), false},
		{"zone-to-spread-over", PodTopologySpreadName, event(framework.Node, framework.Add, nil, zoned), true},
		{"no-zone-to-spread-over", PodTopologySpreadName, event(framework.Node, framework.Add, nil, node("4")), false},
		{"tolerates-now", PodTopologySpreadName,
			event(framework.Pod, framework.UpdatePodToleration, asking, asking), true},
		{"features-declared", NodeDeclaredFeaturesName,
			event(framework.Node, framework.UpdateNodeDeclaredFeature, node("4"), newer), true},
		{"features-as-before", NodeDeclaredFeaturesName,
			event(framework.Node, framework.UpdateNodeTaint, newer, newer), false},
		{"no-interest", NodeNameName, event(framework.Pod, framework.Delete, podOn("n"), nil), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Registry[tt.plugin](nil, &Deps{})
			if err != nil {
				t.Fatal(err)
			}
			got := framework.QueueSkip
			for _, h := range p.(framework.EventPlugin).Events() {
				if h.Matches(tt.event) && (h.Hint == nil || h.Hint(asking, tt.event) == framework.Queue) {
					got = framework.Queue
				}
			}
			if got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestPickPrefersTheLeastHarm(t *testing.T) {
	p := &preemption{d: &Deps{Pod: func(string, string) (*corev1.Pod, error) { return nil, errNone{} }}}
	victim := func(priority int32) *framework.PodInfo {
		return &framework.PodInfo{Priority: priority, Pod: &corev1.Pod{}}
	}
	all := []candidate{
		{node: "breaks-budget", victims: []*framework.PodInfo{victim(0)}, violations: 1},
		{node: "high", victims: []*framework.PodInfo{victim(9)}},
		{node: "two", victims: []*framework.PodInfo{victim(1), victim(1)}},
		{node: "one", victims: []*framework.PodInfo{victim(1)}},
	}
	if got := pick(all, p.started); got.node != "one" {
		t.Errorf("picked %s", got.node)
	}
}

type errNone struct{}

func (errNone) Error() string { return "none" }
