package pod

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// A container with CPUs for itself has no quota, whatever else of it is resized; one that has
// lost them has its own again, and so has its pod.
func TestQuotaFollowsCPUs(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Host.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("900Mi"),
			corev1.ResourceCPU: resource.MustParse("9"), corev1.ResourcePods: resource.MustParse("9")}
		m.Host.CFS = launch.CFS{Period: 100000}
		alone := true
		m.Host.Unthrottled = func(*corev1.Pod) bool { return alone }
		m.Pinned = func(*corev1.Pod, *corev1.Container) launch.Pinned { return launch.Pinned{Exclusive: alone} }
		var whole launch.Limits
		m.Limit = func(_ *corev1.Pod, l launch.Limits) error { whole = l; return nil }
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := fmt.Sprintf("pod %d, container %d", whole.CPUQuota, f.quota("a")); got != want {
				t.Errorf("%s: quotas of the %s, want %s", when, got, want)
			}
		}
		p := testPod(corev1.RestartPolicyAlways, "a")
		m.Update(sized(p, 1, "100Mi"), SourceAPI)
		synctest.Wait()
		m.Update(sized(p, 2, "200Mi"), SourceAPI)
		check("with CPUs of its own, resized", "pod -1, container -1")

		alone = false
		if err := m.Throttle(context.Background(), p.UID); err != nil {
			t.Fatal(err)
		}
		check("without them", "pod 100000, container 100000")
		if whole.MemoryBytes != 0 || whole.CPUShares != 1024 {
			t.Errorf("other limits of the pod were changed: %+v", whole)
		}
		if err := m.Throttle(context.Background(), "gone"); err != nil {
			t.Errorf("a pod that is gone: %v", err)
		}
	})
}
