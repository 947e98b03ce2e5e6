package pod

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

func sized(p *corev1.Pod, generation int64, memory string) *corev1.Pod {
	p = p.DeepCopy()
	p.Generation = generation
	list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourceCPU: resource.MustParse("1")}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
	return p
}

// resizeState shows a record as in "100Mi/200Mi pending=Deferred".
func resizeState(e *edges, p *corev1.Pod) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.records[string(p.UID)]
	given, cr := r.Allocated.Containers["a"], r.Containers["a"]
	s := fmt.Sprintf("%s/%s", cr.Actuated.Limits.Memory(), given.Limits.Memory())
	if z := r.Resize; z.Pending != nil {
		s += " pending=" + z.Pending.Reason
	}
	if r.Resize.Actuating {
		s += " error=" + r.Resize.Error
	}
	return s
}

func TestResize(t *testing.T) { // KEP-1287
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Host.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("300Mi"),
			corev1.ResourceCPU: resource.MustParse("9"), corev1.ResourcePods: resource.MustParse("9")}
		var limits []int64
		m.Limit = func(_ *corev1.Pod, l launch.Limits) error { limits = append(limits, l.MemoryBytes>>20); return nil }
		base := testPod(corev1.RestartPolicyAlways, "a")
		other := sized(base, 1, "100Mi")
		other.Name, other.UID = "other", "other"
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := resizeState(e, base); got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		m.Update(sized(base, 1, "100Mi"), SourceAPI)
		check("at first", "100Mi/100Mi")
		m.Update(other, SourceAPI)
		m.Update(sized(base, 2, "200Mi"), SourceAPI)
		check("grown", "200Mi/200Mi")
		if got := f.memory("a"); got != 200<<20 && got != 0 {
			t.Errorf("the runtime was told %d", got)
		}
		m.Update(sized(base, 3, "40Mi"), SourceAPI)
		check("below what is used", "200Mi/40Mi error=cannot decrease memory limits: attempting to set container \"a\" memory limit (41943040) below current usage (52428800)")
		m.Update(sized(base, 4, "250Mi"), SourceAPI)
		check("no room", "200Mi/40Mi pending=Deferred error=cannot decrease memory limits: attempting to set container \"a\" memory limit (41943040) below current usage (52428800)")
		m.Remove(other.UID)
		time.Sleep(time.Minute)
		check("room", "250Mi/250Mi")
		expect(t, f, "a#0=run")
		if got := fmt.Sprint(limits); got != "[200 200 200 250 250]" {
			t.Errorf("limits of the pod: %s", got)
		}
		if n := e.count("ResizeCompleted"); n != 2 {
			t.Errorf("%d completed: %v", n, e.events)
		}
	})
}

func TestResizeRestarts(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		base := testPod(corev1.RestartPolicyOnFailure, "a") // it ends well, yet starts again
		base.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		m.Update(sized(base, 1, "100Mi"), SourceAPI)
		expect(t, f, "a#0=run")
		m.Update(sized(base, 2, "200Mi"), SourceAPI)
		expect(t, f, "a#0=exit0 a#1=run")
		if got := resizeState(e, base); got != "200Mi/200Mi" || e.count("ResizeCompleted") != 1 {
			t.Errorf("%s, %v", got, e.events)
		}
	})
}
