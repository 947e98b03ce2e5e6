package plugins

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// Containers are written "NAME:AMOUNT": "i" ends, "s" is a sidecar, "c" a container.
// Init containers use the devices of later ones, then share what the neediest lacks
// (KEP-5004).
func TestRequestsForExtendedResource(t *testing.T) {
	for _, c := range []struct{ containers, requests, mappings string }{
		{"c1:2", "0=2", "c1>0"},
		{"c1:0", "", ""},
		{"c1:2 c2:1", "0=2 1=1", "c1>0 c2>1"},
		// The init container's need is met by the container's.
		{"i1:2 c1:2", "1=2", "c1>1 i1>1"},
		{"i1:1 c1:2", "1=2", "c1>1 i1>1"},
		// It uses as many requests as it needs, not more.
		{"i1:1 c1:1 c2:1", "1=1 2=1", "c1>1 c2>2 i1>1"},
		{"i1:2 c1:1 c2:1", "1=1 2=1", "c1>1 c2>2 i1>1 i1>2"},
		// It needs more.
		{"i1:3 c1:1", "0=2 1=1", "c1>1 i1>1 i1>0"},
		// Two share what the neediest lacks.
		{"i1:2 i2:4 c1:1", "1=3 2=1", "c1>2 i1>2 i1>1 i2>2 i2>1"},
		{"i1:4 i2:2 c1:1", "0=3 2=1", "c1>2 i1>2 i1>0 i2>2 i2>0"},
		// A sidecar runs beside those that come after it: its devices are its own.
		{"s1:1 i1:1 c1:1", "0=1 2=1", "s1>0 c1>2 i1>2"},
		{"i1:2 s1:1 c1:1", "1=1 2=1", "s1>1 c1>2 i1>1 i1>2"},
		{"s1:1 i1:1", "0=1 1=1", "s1>0 i1>1"},
	} {
		pod := &corev1.Pod{}
		for _, word := range strings.Fields(c.containers) {
			name, amount, _ := strings.Cut(word, ":")
			one := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse(amount)}}}
			switch name[0] {
			case 's':
				one.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
				fallthrough
			case 'i':
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
			default:
				pod.Spec.Containers = append(pod.Spec.Containers, one)
			}
		}
		requests, mappings := requestsFor(pod, "example.com/gpu", "gpu")
		var got, users []string
		index := func(name string) string {
			return strings.TrimSuffix(strings.TrimPrefix(name, "container-"), "-request-0")
		}
		for _, r := range requests {
			e := r.Exactly
			if e.DeviceClassName != "gpu" || e.AllocationMode != resourcev1.DeviceAllocationModeExactCount {
				t.Errorf("%s: request %+v", c.containers, r)
			}
			got = append(got, fmt.Sprintf("%s=%d", index(r.Name), r.Exactly.Count))
		}
		for _, m := range mappings {
			users = append(users, m.ContainerName+">"+index(m.RequestName))
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.requests || strings.Join(users, " ") != c.mappings {
			t.Errorf("%s: requests %v, want %s; mappings %v, want %s", c.containers, got, c.requests, users, c.mappings)
		}
	}
}

// A request is named by its container and by the place of its resource among all there.
func TestNameOfRequest(t *testing.T) {
	c := &corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"cpu": resource.MustParse("1"), "example.com/b": resource.MustParse("1"), "example.com/a": resource.MustParse("1")}}}
	if got := requestName(c, 3, "example.com/b"); got != "container-3-request-2" {
		t.Error(got)
	}
}
