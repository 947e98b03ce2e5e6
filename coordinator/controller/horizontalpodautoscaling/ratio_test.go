package horizontalpodautoscaling

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// podsOf makes pods p0, p1 …, each as a word says, with a request of 100m.
func podsOf(states string) (pods []*corev1.Pod) {
	for i, state := range strings.Fields(states) {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: ptr.To(metav1.NewTime(now.Add(-time.Hour)))},
		}
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))}
		switch state {
		case "ready":
		case "pending":
			p.Status.Phase = corev1.PodPending
		case "failed":
			p.Status.Phase = corev1.PodFailed
		case "deleted":
			p.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		case "never": // it has never been ready
			ready.Status = corev1.ConditionFalse
			ready.LastTransitionTime = metav1.NewTime(now.Add(-time.Hour + 10*time.Second))
		case "unready": // it was, once
			ready.Status = corev1.ConditionFalse
			ready.LastTransitionTime = metav1.NewTime(now.Add(-time.Minute))
		case "young": // ready for longer than a window
			p.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-time.Minute)))
			ready.LastTransitionTime = metav1.NewTime(now.Add(-30 * time.Second))
		case "warming": // ready since a moment ago
			p.Status.StartTime = ptr.To(metav1.NewTime(now.Add(-time.Minute)))
			ready.LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
		default:
			panic(state)
		}
		p.Status.Conditions = []corev1.PodCondition{ready}
		pods = append(pods, p)
	}
	return pods
}

// metricsOf makes the metrics of p0, p1 …; -1: of this one there is none.
func metricsOf(values ...int64) PodMetrics {
	m := PodMetrics{}
	for i, v := range values {
		if v >= 0 {
			m[fmt.Sprintf("p%d", i)] = PodMetric{Value: v, Time: now, Window: 15 * time.Second}
		}
	}
	return m
}

// Pods of which each requests 100m are to use half of that, or 50 of something.
func TestCountByPods(t *testing.T) {
	half := func() target { return &utilization{percent: 50, resource: corev1.ResourceCPU} }
	fifty := func() target { return averageValue(50) }
	for _, c := range []struct {
		name    string
		target  func() target
		pods    string
		metrics PodMetrics
		current int32
		want    int32
		average int64
		err     string
	}{
		{"as it should be", half, "ready ready", metricsOf(50, 50), 2, 2, 50, ""},
		{"within the tolerance", half, "ready ready", metricsOf(55, 55), 2, 2, 55, ""},
		{"twice as much", half, "ready ready", metricsOf(100, 100), 2, 4, 100, ""},
		{"rounded up", half, "ready ready", metricsOf(100, 60), 2, 4, 80, ""},
		{"a quarter", half, "ready ready ready ready", metricsOf(10, 10, 10, 20), 4, 1, 12, ""},
		{"values", fifty, "ready ready", metricsOf(100, 100), 2, 4, 100, ""},
		{"more replicas wanted than there are pods", half, "ready ready", metricsOf(100, 100), 5, 4, 100, ""},

		// Without a metric a pod counts against the change.
		{"missing, up", half, "ready ready ready", metricsOf(100, 100, -1), 3, 4, 100, ""},
		{"missing, up, turns", half, "ready ready ready ready", metricsOf(60, 60, -1, -1), 4, 4, 60, ""},
		{"missing, down", half, "ready ready ready", metricsOf(10, 10, -1), 3, 3, 10, ""},
		{"missing, down, enough others", half, "ready ready ready ready ready", metricsOf(5, 5, 5, 5, -1), 5, 3, 5, ""},
		{"missing, values, down", fifty, "ready ready ready ready", metricsOf(10, 10, 10, -1), 4, 2, 10, ""},
		{"missing, as it should be", half, "ready ready", metricsOf(50, -1), 2, 2, 50, ""},

		// One that is starting counts as nothing when the others ask for more.
		{"pending, up", half, "ready pending", metricsOf(200), 2, 4, 200, ""},
		{"pending, up, too little", half, "ready pending", metricsOf(80), 2, 2, 80, ""},
		{"pending, down", half, "ready ready pending", metricsOf(10, 10), 3, 1, 10, ""},
		{"warming", half, "ready warming", metricsOf(50, 1000), 2, 2, 50, ""},
		{"young", half, "ready young", metricsOf(50, 150), 2, 4, 100, ""},
		{"never ready", half, "ready never", metricsOf(50, 1000), 2, 2, 50, ""},
		{"not ready any more", half, "ready unready", metricsOf(50, 150), 2, 4, 100, ""},
		{"starting matters for CPU only", fifty, "ready warming", metricsOf(50, 150), 2, 4, 100, ""},

		// Those that end do not count at all.
		{"ending", half, "ready failed deleted", metricsOf(100, 1000, 1000), 1, 2, 100, ""},

		{"no pods", half, "", metricsOf(), 2, 0, 0, "no pods returned by selector while calculating replica count"},
		{"none is ready", half, "pending", metricsOf(100), 2, 0, 0,
			"did not receive metrics for targeted pods (pods might be unready)"},
		{"metrics of others", half, "ready", PodMetrics{"x": {Value: 5}}, 1, 0, 0, "no metrics returned matched known pods"},
	} {
		_, isValue := c.target().(averageValue)
		got, is, err := countByPods(podsOf(c.pods), c.metrics, !isValue, c.target(), c.current,
			tolerances{down: 0.1, up: 0.1}, now)
		if got != c.want || is.average != c.average || fmt.Sprint(err) != c.err && !(err == nil && c.err == "") {
			t.Errorf("%s: %d replicas, average %d, %v; want %d, %d, %s", c.name, got, is.average, err, c.want, c.average,
				c.err)
		}
	}
}

func TestTolerances(t *testing.T) {
	tol := tolerances{down: 0.5, up: 0}
	for ratio, want := range map[float64]bool{0.4: false, 0.5: true, 0.9: true, 1: true, 1.01: false} {
		if tol.within(ratio) != want {
			t.Errorf("%v is within the tolerances: %v", ratio, !want)
		}
	}
}

func TestCountByValue(t *testing.T) {
	tol := tolerances{down: 0.1, up: 0.1}
	for _, c := range []struct {
		name          string
		pods          string
		value, target int64
		current, want int32
	}{
		{"as it should be", "ready ready", 1050, 1000, 2, 2},
		{"twice as much, of the ready ones", "ready ready unready", 2000, 1000, 3, 4},
		{"nothing", "ready ready", 0, 1000, 2, 0},
		{"more than can be counted", "ready", math.MaxInt64, 1, 1, math.MaxInt32},
	} {
		got, err := countByValue(podsOf(c.pods), c.value, c.target, c.current, tol)
		if got != c.want || err != nil {
			t.Errorf("%s: %d, %v, want %d", c.name, got, err, c.want)
		}
	}
	if _, err := countByValue(nil, 2, 1, 1, tol); err == nil {
		t.Error("no error without pods")
	}
}

func TestCountByShare(t *testing.T) {
	tol := tolerances{down: 0.1, up: 0.1}
	for _, c := range []struct {
		value, target int64
		replicas      int32
		want          int32
		share         int64
	}{
		{1000, 500, 2, 2, 500},
		{1001, 500, 2, 2, 501},
		{2000, 500, 2, 4, 1000},
		{100, 500, 4, 1, 25},
		{math.MaxInt64, 1, 4, math.MaxInt32, math.MaxInt64},
		{1000, 500, 0, 2, math.MaxInt64},
	} {
		if got, share := countByShare(c.value, c.target, c.replicas, tol); got != c.want || share != c.share {
			t.Errorf("%+v: %d, %d", c, got, share)
		}
	}
}

func TestRequestOf(t *testing.T) {
	cpu := func(amount string) corev1.ResourceRequirements {
		if amount == "" {
			return corev1.ResourceRequirements{}
		}
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "init", Resources: cpu("")},
			{Name: "sidecar", Resources: cpu("10m"), RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		},
		Containers: []corev1.Container{{Name: "a", Resources: cpu("100m")}, {Name: "b", Resources: cpu("200m")}},
	}}
	for container, want := range map[string]int64{"": 310, "b": 200, "sidecar": 10} {
		if got, err := requestOf(pod, corev1.ResourceCPU, container); got != want || err != nil {
			t.Errorf("%q: %d, %v, want %d", container, got, err, want)
		}
	}
	if _, err := requestOf(pod, corev1.ResourceCPU, "c"); fmt.Sprint(err) != "container c not found in Pod p" {
		t.Error(err)
	}
	pod.Spec.Containers[1].Resources = cpu("")
	if _, err := requestOf(pod, corev1.ResourceCPU, ""); fmt.Sprint(err) != "missing request for cpu in container b of Pod p" {
		t.Error(err)
	}
	pod.Spec.Resources = ptr.To(cpu("1"))
	if got, err := requestOf(pod, corev1.ResourceCPU, ""); got != 1000 || err != nil {
		t.Errorf("at the pod's level: %d, %v", got, err)
	}
	if _, err := requestOf(pod, corev1.ResourceMemory, ""); fmt.Sprint(err) != "missing pod-level request for memory in Pod p" {
		t.Error(err)
	}
}
