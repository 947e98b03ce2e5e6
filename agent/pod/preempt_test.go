package pod

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/record"
)

// asking is a pod that asks for CPU and memory, and has as much as limits where its class is
// Guaranteed.
func asking(name string, priority int32, class corev1.PodQOSClass, cpu, memory string) *corev1.Pod {
	p := testPod(corev1.RestartPolicyNever, name)
	p.Name, p.UID, p.Spec.Priority, p.Status.QOSClass = name, types.UID(name), &priority, class
	list := corev1.ResourceList{}
	for r, amount := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if amount != "" {
			list[r] = resource.MustParse(amount)
		}
	}
	p.Spec.Containers[0].Resources.Requests = list
	if class == corev1.PodQOSGuaranteed {
		p.Spec.Containers[0].Resources.Limits = list
	}
	return p
}

const system = 2000000000

// TestVictims: a critical pod ends as few others as it takes, the worst class first.
func TestVictims(t *testing.T) {
	const best, some, all = corev1.PodQOSBestEffort, corev1.PodQOSBurstable, corev1.PodQOSGuaranteed
	node := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		corev1.ResourcePods: resource.MustParse("4")}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		want   string
	}{
		"it fits": {asking("p", system, some, "300m", ""), []*corev1.Pod{asking("a", 0, some, "700m", "")}, ""},
		"the one that is large enough": {asking("p", system, some, "300m", ""), []*corev1.Pod{
			asking("a", 0, some, "200m", ""), asking("b", 0, some, "400m", ""), asking("c", 0, some, "350m", "")}, "c"},
		"two where one is too small": {asking("p", system, some, "900m", ""), []*corev1.Pod{
			asking("a", 0, some, "500m", ""), asking("b", 0, some, "450m", "")}, "a b"},
		"burstable before guaranteed": {asking("p", system, all, "500m", "1Mi"), []*corev1.Pod{
			asking("a", 0, all, "500m", "1Mi"), asking("b", 0, some, "500m", "1Mi")}, "b"},
		"another resource": {asking("p", system, some, "100m", "600Mi"), []*corev1.Pod{
			asking("a", 0, some, "800m", "1Mi"), asking("b", 0, some, "", "700Mi")}, "b"},
		"a place among pods": {asking("p", system, some, "1m", ""), []*corev1.Pod{
			asking("a", 0, some, "1m", ""), asking("b", 0, best, "", ""), asking("c", 0, all, "1m", "1Mi"),
			asking("d", 0, all, "1m", "1Mi")}, "b"},
		"not another critical one": {asking("p", system, some, "600m", ""), []*corev1.Pod{
			asking("a", system, some, "600m", "")}, ""},
		"one less critical": {asking("p", system+1000, some, "600m", ""), []*corev1.Pod{
			asking("a", system, some, "600m", "")}, "a"},
		"none who asks has no right": {asking("p", 1000, some, "600m", ""), []*corev1.Pod{
			asking("a", 0, some, "600m", "")}, ""},
		"none where it does not help": {asking("p", system, some, "2", ""), []*corev1.Pod{
			asking("a", 0, some, "600m", "")}, ""},
	} {
		var got []string
		for _, v := range victims(c.pod, c.others, node) {
			got = append(got, v.Name)
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %q end, want %q", name, text, c.want)
		}
	}
}

// TestPreempt: a critical pod for which there is no room starts when the one that ends for
// it is gone; one that is not critical is rejected.
func TestPreempt(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		var counted []corev1.ResourceName
		m.Preempted = func(resource corev1.ResourceName) { counted = append(counted, resource) }
		m.Host.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"),
			corev1.ResourcePods: resource.MustParse("10")}
		for _, p := range []*corev1.Pod{asking("small", 0, corev1.PodQOSBurstable, "300m", ""),
			asking("large", 0, corev1.PodQOSBurstable, "600m", "")} {
			m.Update(p, SourceAPI)
		}
		expect(t, f, "large#0=run small#0=run")
		plain := asking("plain", 0, corev1.PodQOSBurstable, "500m", "")
		m.Update(plain, SourceAPI)
		synctest.Wait()
		if ended := e.records["plain"].Ended; ended == nil || ended.Reason != "OutOfcpu" {
			t.Errorf("who is not critical: %+v", ended)
		}
		m.Update(asking("critical", system, corev1.PodQOSBurstable, "500m", ""), SourceAPI)
		expect(t, f, "critical#0=run large#0=exit0 small#0=run")
		ended := e.records["large"].Ended
		if ended == nil || ended.Phase != corev1.PodFailed || ended.Reason != reasonPreempting ||
			e.count(reasonPreempting) != 2 {
			t.Errorf("who ended: %+v, events %q", ended, e.events)
		}
		if !slices.Equal(counted, []corev1.ResourceName{corev1.ResourceCPU}) || !ended.ByExit {
			t.Errorf("counted %v, verdict %+v", counted, ended)
		}
		if d := e.records["large"].Disrupted; d == nil || d.Reason != corev1.PodReasonTerminationByKubelet {
			t.Errorf("its condition: %+v", d)
		}
	})
}
