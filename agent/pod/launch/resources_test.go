package launch

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/quota"
)

func TestHugepages(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
	got := map[string]uint64{}
	for _, l := range hugepages(p, &p.Spec.Containers[0], []string{"1Gi", "2Mi"}) {
		got[l.PageSize] = l.Limit
	}
	if want := map[string]uint64{"1GB": 0, "2MB": 4 << 20}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestMountsOuterFirst(t *testing.T) {
	h := &Host{RootDir: t.TempDir()}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	c := &p.Spec.Containers[0]
	for _, path := range []string{"/data/in/deep", "/data", "/data/in/", "/b"} {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "v", MountPath: path})
	}
	c.TerminationMessagePath = "/data/log"
	f := &Facts{Host: h, Pod: p, Container: c}
	f.Volume = func(string) (string, error) { return "", nil }
	f.Services = func() ([]*corev1.Service, bool) { return nil, true }
	config, _, err := Container(f)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range config.Mounts {
		got = append(got, m.ContainerPath)
	}
	if want := []string{"/data", "/b", "/data/in/", "/etc/hosts", "/data/log",
		"/data/in/deep"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestStorageLimit tells the runtime how much a container may write, where that is limited.
func TestStorageLimit(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	c := &p.Spec.Containers[0]
	for limit, want := range map[string]string{"": "", "0": "", "2Mi": "2097152", "1k": "1000"} {
		c.Resources.Limits = nil
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
		f := &Facts{Host: &Host{RootDir: t.TempDir()}, Pod: p, Container: c}
		f.Services = func() ([]*corev1.Service, bool) { return nil, true }
		config, _, err := Container(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := config.Annotations[quota.AnnotationLimit]; got != want {
			t.Errorf("limit %q: the runtime is told %q, want %q", limit, got, want)
		}
	}
}

func TestPodLimits(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	if got := new(Host).PodLimits(p); got.CPUShares != 2 || got.CPUQuota != 0 || got.MemoryBytes != 0 {
		t.Errorf("best effort: %+v", got)
	}
	if Shares(500) != 512 || (CFS{}).quota(500) != 50000 || (CFS{}).quota(1) != 1000 {
		t.Error("conversion of CPU amounts")
	}
}

// Containers use swap in proportion to what they ask for of the machine's memory, if their pod
// is Burstable (KEP-2400).
func TestSwap(t *testing.T) {
	list := func(q string) corev1.ResourceList {
		if q == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(q)}
	}
	for _, c := range []struct {
		name           string
		request, limit string
		change         func(*corev1.Pod)
		want           string
	}{
		{"a quarter of the memory", "1Gi", "2Gi", nil, "536870912"},
		{"no limit", "1Gi", "", nil, "536870912"},
		{"nothing asked for", "", "", nil, "0"},
		{"as much as it may have", "1Gi", "1Gi", nil, "0"},
		{"critical", "1Gi", "", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](2000000000) }, "0"},
		{"of a manifest", "1Gi", "",
			func(p *corev1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }, "0"},
	} {
		h := &Host{MemoryBytes: 4 << 30, SwapBytes: 2 << 30,
			Unified: map[string]string{"memory.swap.max": "0", "memory.oom.group": "1"}}
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a",
			Resources: corev1.ResourceRequirements{Requests: list(c.request), Limits: list(c.limit)}}}}}
		if c.change != nil {
			c.change(p)
		}
		r := Resources(h, p, &p.Spec.Containers[0])
		if r.Unified["memory.swap.max"] != c.want || r.Unified["memory.oom.group"] != "1" {
			t.Errorf("%s: %v, want %s", c.name, r.Unified, c.want)
		}
		if got := h.MemoryFiles(p, &p.Spec.Containers[0])["memory.swap.max"]; got != c.want {
			t.Errorf("%s, resized: %s, want %s", c.name, got, c.want)
		}
		h.SwapBytes = 0
		if r := Resources(h, p, &p.Spec.Containers[0]); r.Unified["memory.swap.max"] != "0" ||
			len(h.MemoryFiles(p, &p.Spec.Containers[0])) != 0 {
			t.Errorf("%s, without swap: %v", c.name, r.Unified)
		}
	}
}

// What pods ask for is kept from being reclaimed by their class, and they are slowed down before
// their limit (KEP-2570).
func TestMemoryFiles(t *testing.T) {
	list := func(q string) corev1.ResourceList {
		if q == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(q),
			corev1.ResourceCPU: resource.MustParse("1")}
	}
	h := &Host{Reserve: true, Throttle: 0.9, Allocatable: list("1000Mi")}
	for _, c := range []struct {
		request, limit string
		want           map[string]string
		pod            Limits
	}{
		{"64Mi", "64Mi", map[string]string{"memory.min": "67108864"}, Limits{MemoryMin: 64 << 20}},
		{"64Mi", "164Mi", map[string]string{"memory.low": "67108864", "memory.high": "161480704"},
			Limits{MemoryLow: 64 << 20}},
		{"100Mi", "", map[string]string{"memory.low": "104857600", "memory.high": "954204160"},
			Limits{MemoryLow: 100 << 20}},
		{"", "", map[string]string{"memory.low": "0", "memory.high": "943718400"}, Limits{}},
		{"1Mi", "1025Ki", map[string]string{"memory.low": "1048576", "memory.high": "max"}, Limits{MemoryLow: 1 << 20}},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a",
			Resources: corev1.ResourceRequirements{Requests: list(c.request), Limits: list(c.limit)}}}}}
		if got := h.MemoryFiles(p, &p.Spec.Containers[0]); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s of %s: %v, want %v", c.request, c.limit, got, c.want)
		}
		if l := h.PodLimits(p); l.MemoryMin != c.pod.MemoryMin || l.MemoryLow != c.pod.MemoryLow {
			t.Errorf("%s of %s: the pod has %+v", c.request, c.limit, l)
		}
	}
}
