package pod

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
		tooLow := " error=cannot decrease memory limits: " +
			"[attempting to set pod memory limit (41943040) below current usage (52428800), " +
			"attempting to set container \"a\" memory limit (41943040) below current usage (52428800)]"
		check("below what is used", "200Mi/40Mi"+tooLow)
		m.Update(sized(base, 4, "250Mi"), SourceAPI)
		check("no room", "200Mi/40Mi pending=Deferred"+tooLow)
		m.Remove(other.UID)
		time.Sleep(time.Minute)
		check("room", "250Mi/250Mi")
		expect(t, f, "a#0=run")
		if got := fmt.Sprint(limits); got != "[200 200 250 250]" {
			t.Errorf("limits of the pod: %s", got)
		}
		if n := e.count("ResizeCompleted"); n != 2 {
			t.Errorf("%d completed: %v", n, e.events)
		}
	})
}

// Pods that wait for room are given it by priority, guaranteed ones first, then the
// one that has waited longest; one that asks for less goes at once.
func TestResizeOrder(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Host.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1000Mi"),
			corev1.ResourceCPU: resource.MustParse("9"), corev1.ResourcePods: resource.MustParse("9")}
		pod := func(name string, generation int64, memory string) *corev1.Pod {
			p := sized(testPod(corev1.RestartPolicyAlways, "a"), generation, memory)
			p.Name, p.UID = name, types.UID(name)
			switch name {
			case "important":
				p.Spec.Priority = ptr.To[int32](1000)
			case "guaranteed": // as sized makes it
				return p
			}
			p.Spec.Containers[0].Resources.Limits = nil
			return p
		}
		names := []string{"early", "late", "guaranteed", "important"}
		m.Update(pod("large", 1, "700Mi"), SourceAPI)
		for _, name := range names {
			m.Update(pod(name, 1, "50Mi"), SourceAPI)
			synctest.Wait()
		}
		has := func() string {
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			var large []string
			for _, name := range names {
				given := e.records[name].Allocated.Containers["a"]
				if given.Requests.Memory().String() == "700Mi" {
					large = append(large, name)
				}
			}
			return strings.Join(large, " ")
		}
		for _, name := range names { // in another order than they are given room
			m.Update(pod(name, 2, "700Mi"), SourceAPI)
			time.Sleep(time.Second)
		}
		if got := has(); got != "" {
			t.Fatalf("without room: %s", got)
		}
		before := "large"
		for _, want := range []string{"important", "guaranteed", "early", "late"} {
			m.Remove(types.UID(before))
			if before != "large" {
				names = slices.DeleteFunc(names, func(name string) bool { return name == before })
			}
			time.Sleep(time.Minute)
			if got := has(); got != want {
				t.Errorf("without %s: %q has room, want %s", before, got, want)
			}
			before = want
		}
	})
}

// A pod that gives up some of one resource and wants more of another holds what it
// has until it has changed: who comes after it may not count on that. So each of a
// chain makes room for the next.
func TestResizeChain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		m.Host.Allocatable = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1200Mi"),
			corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("9")}
		pod := func(name string, generation int64, cpu, memory string) *corev1.Pod {
			p := sized(testPod(corev1.RestartPolicyAlways, "a"), generation, memory)
			p.Name, p.UID = name, types.UID(name)
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}
			return p
		}
		for _, name := range []string{"last", "gone", "first", "second"} {
			m.Update(pod(name, 1, "500m", "240Mi"), SourceAPI)
			synctest.Wait()
		}
		has := func() (got []string) {
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, name := range []string{"first", "second", "last"} {
				r := e.records[name].Allocated.Containers["a"].Requests
				got = append(got, r.Cpu().String()+" "+r.Memory().String())
			}
			return got
		}
		for _, p := range []*corev1.Pod{pod("first", 2, "666m", "50Mi"), pod("second", 2, "83m", "800Mi"),
			pod("last", 2, "1250m", "240Mi")} {
			m.Update(p, SourceAPI)
			time.Sleep(time.Second)
		}
		if got := has(); !slices.Equal(got, []string{"500m 240Mi", "500m 240Mi", "500m 240Mi"}) {
			t.Fatalf("without room: %q", got)
		}
		m.Remove("gone")
		time.Sleep(time.Minute)
		if got := has(); !slices.Equal(got, []string{"666m 50Mi", "83m 800Mi", "1250m 240Mi"}) {
			t.Errorf("with room: %q", got)
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

// whole is a pod with resources of its own, and containers without.
func whole(p *corev1.Pod, generation int64, memory string) *corev1.Pod {
	p = p.DeepCopy()
	p.Generation = generation
	list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory),
		corev1.ResourceCPU: resource.MustParse("1")}
	p.Spec.Resources = &corev1.ResourceRequirements{Requests: list, Limits: list}
	return p
}

// The resources of a pod as a whole change, and with them those of the containers that
// have no limit: KEP-5419.
func TestResizeWholePod(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		var limits []int64
		m.Limit = func(_ *corev1.Pod, l launch.Limits) error { limits = append(limits, l.MemoryBytes>>20); return nil }
		base := testPod(corev1.RestartPolicyNever, "a", "b", "own")
		base.Spec.Containers[1].ResizePolicy = []corev1.ContainerResizePolicy{
			{ResourceName: corev1.ResourceMemory, RestartPolicy: corev1.RestartContainer}}
		base.Spec.Containers[2].Resources.Limits = corev1.ResourceList{
			corev1.ResourceMemory: resource.MustParse("80Mi"), corev1.ResourceCPU: resource.MustParse("1")}
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			e.mu.Lock()
			defer e.mu.Unlock()
			r := e.records["u"]
			got := r.Allocated.Pod.Limits.Memory().String()
			for _, name := range []string{"a", "b", "own"} {
				got += fmt.Sprintf(" %s=%s", name, r.Containers[name].Limits.Memory())
			}
			if r.Resize.Actuating {
				got += " from " + r.Resize.From.Limits.Memory().String() + ": " + r.Resize.Error
			}
			if got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		m.Update(whole(base, 1, "200Mi"), SourceAPI)
		expect(t, f, "a#0=run b#0=run own#0=run")
		check("at first", "200Mi a=200Mi b=200Mi own=80Mi")
		m.Update(whole(base, 2, "300Mi"), SourceAPI)
		check("grown", "300Mi a=300Mi b=300Mi own=80Mi")
		expect(t, f, "a#0=run b#0=exit0 b#1=run own#0=run")
		if got := f.memory("a"); got != 300<<20 {
			t.Errorf("the runtime was told %d", got)
		}
		m.Update(whole(base, 3, "140Mi"), SourceAPI)
		check("below what is used", "140Mi a=300Mi b=140Mi own=80Mi from 300Mi: "+
			"cannot decrease memory limits: attempting to set pod memory limit (146800640) below current usage (157286400)")
		m.Update(whole(base, 4, "160Mi"), SourceAPI)
		time.Sleep(time.Minute)
		check("as much as is used", "160Mi a=160Mi b=160Mi own=80Mi")
		if got := fmt.Sprint(limits); got != "[300 300 300 160]" {
			t.Errorf("limits of the pod: %s", got)
		}
		if n := e.count("ResizeCompleted"); n != 2 {
			t.Errorf("%d completed: %v", n, e.events)
		}
	})
}

// A container that ends before others can be resized while it runs.
func TestResizeInit(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		base := testPod(corev1.RestartPolicyNever, "init:i", "a")
		init := func(generation int64, memory string) *corev1.Pod {
			p := base.DeepCopy()
			p.Generation = generation
			limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
			p.Spec.InitContainers[0].Resources.Limits = limits
			return p
		}
		m.Update(init(1, "100Mi"), SourceAPI)
		expect(t, f, "i#0=run")
		m.Update(init(2, "200Mi"), SourceAPI)
		expect(t, f, "i#0=run")
		if got := f.memory("i"); got != 200<<20 || e.count("ResizeCompleted") != 1 {
			t.Errorf("the runtime was told %d, %v", got, e.events)
		}
		f.end("i", 0)
		expect(t, f, "a#0=run i#0=exit0")
		m.Update(init(3, "300Mi"), SourceAPI)
		expect(t, f, "a#0=run i#0=exit0")
		if e.count("ResizeCompleted") != 2 {
			t.Errorf("after its end: %v", e.events)
		}
	})
}
