package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/host"
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
