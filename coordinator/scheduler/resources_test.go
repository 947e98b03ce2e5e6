package scheduler

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

func TestResources(t *testing.T) {
	pod := func(name, node string, phase corev1.PodPhase, requests, limits corev1.ResourceList) *corev1.Pod {
		priority := int32(7)
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name},
			Spec: corev1.PodSpec{NodeName: node, SchedulerName: "s", Priority: &priority,
				Containers: []corev1.Container{{
					Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits},
				}},
				Overhead: corev1.ResourceList{"cpu": resource.MustParse("500m")}},
			Status: corev1.PodStatus{Phase: phase}}
	}
	two := corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("1Ki"),
		"hugepages-2Mi": resource.MustParse("2Mi"), "example.com/foo": resource.MustParse("2"),
		"ephemeral-storage": resource.MustParse("0")}
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, p := range []*corev1.Pod{
		pod("runs", "a", corev1.PodRunning, two, corev1.ResourceList{"cpu": resource.MustParse("2")}),
		pod("waits", "", corev1.PodPending, nil, nil), pod("over", "a", corev1.PodSucceeded, two, two),
		pod("failed", "a", corev1.PodFailed, two, two)} {
		if err := pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	w := httptest.NewRecorder()
	Resources(corelisters.NewPodLister(pods)).ServeHTTP(w, httptest.NewRequest("GET", ResourcesPath, nil))
	var got []string
	for line := range strings.Lines(w.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	series := func(of, node, name, priority, resource, unit, value string) string {
		return `kube_pod_resource_` + of + `{namespace="n",node="` + node + `",pod="` + name + `",priority="` + priority +
			`",resource="` + resource + `",scheduler="s",unit="` + unit + `"} ` + value
	}
	want := []string{
		series("limit", "a", "runs", "7", "cpu", "cores", "2.5"),
		series("request", "a", "runs", "7", "cpu", "cores", "2"),
		series("request", "a", "runs", "7", "memory", "bytes", "1024"),
		series("request", "a", "runs", "7", "hugepages-2Mi", "bytes", "2.097152e+06"),
		series("request", "a", "runs", "7", "example.com/foo", "", "2"),
		series("request", "", "waits", "7", "cpu", "cores", "0.5"),
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want, +got:\n%s", diff)
	}
}
