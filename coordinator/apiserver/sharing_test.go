package apiserver_test

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// An informer in the API server's process has the watch cache's objects, not
// copies of them: what was there before it, what is created and what is changed.
func TestInformersShareTheWatchCache(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	if _, err := s.Client().CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	maps := s.Client().CoreV1().ConfigMaps("default")
	create(ctx, t, s, configMap("before", "1"))
	informer := s.Informers().Core().V1().ConfigMaps().Informer()
	s.Informers().Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("informer did not fill")
	}
	created := create(ctx, t, s, configMap("after", "1"))
	shared(ctx, t, s, informer, "before", "")
	shared(ctx, t, s, informer, "after", created.ResourceVersion)
	changed, err := maps.Update(ctx, configMap("after", "2"), metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	shared(ctx, t, s, informer, "after", changed.ResourceVersion)
	if err := maps.Delete(ctx, "after", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "the deleted object leaves the informer", func() bool {
		_, exists, _ := informer.GetIndexer().GetByKey("default/after")
		return !exists
	})
}

func create(ctx context.Context, t *testing.T, s *apitest.Server, m *corev1.ConfigMap) *corev1.ConfigMap {
	t.Helper()
	out, err := s.Client().CoreV1().ConfigMaps(m.Namespace).Create(ctx, m, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// shared waits until the informer has the object at a version and compares it
// with the storage's own follower, by pointer, and with what the watch cache
// lists, by the map in it: a list copies the outermost struct.
func shared(ctx context.Context, t *testing.T, s *apitest.Server,
	informer cache.SharedIndexInformer, name, version string) {
	t.Helper()
	var have *corev1.ConfigMap
	until(ctx, t, "the informer has "+name, func() bool {
		obj, exists, _ := informer.GetIndexer().GetByKey("default/" + name)
		if exists {
			have = obj.(*corev1.ConfigMap)
		}
		return exists && (version == "" || have.ResourceVersion == version)
	})
	store := s.Store("/configmaps")
	list, err := store.List(ctx, &internalversion.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.(*corev1.ConfigMapList).Items {
		if m.Name == name && m.Namespace == "default" &&
			reflect.ValueOf(m.Data).Pointer() != reflect.ValueOf(have.Data).Pointer() {
			t.Errorf("%s at %s: the informer's object is not the watch cache's", name, have.ResourceVersion)
		}
	}
	w := store.Storage.Storage.(interface{ Follow() watch.Interface }).Follow()
	defer w.Stop()
	for e := range w.ResultChan() {
		m := e.Object.(*corev1.ConfigMap)
		if e.Type == watch.Bookmark {
			return
		}
		if m.Name == name && m.Namespace == "default" && m != have {
			t.Errorf("%s at %s: the informer has another pointer", name, have.ResourceVersion)
		}
	}
}

func until(ctx context.Context, t testing.TB, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("not seen: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// BenchmarkPodStatus writes the status of 5,000 pods, with the informer of a
// scheduler and of controllers beside; heap-MB is what is held at the end.
func BenchmarkPodStatus(b *testing.B) {
	const pods = 5000
	ctx := b.Context()
	s := apitest.Start(b, apitest.Options{Kinds: registry.Kinds()})
	informer := s.Informers().Core().V1().Pods().Informer()
	s.Informers().Start(ctx.Done())
	client := s.Client().CoreV1()
	if _, err := client.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crowd"}},
		metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	before := heap()
	all := make([]*corev1.Pod, pods)
	for i := range all {
		var err error
		if all[i], err = client.Pods("crowd").Create(ctx, crowdPod(i), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	write := func(i int) {
		p := all[i%pods]
		p.Status.Phase = corev1.PodRunning
		p.Status.PodIP = fmt.Sprintf("10.0.%d.%d", i/200%200, i%200)
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, Message: fmt.Sprint(i)}}
		var err error
		if all[i%pods], err = client.Pods("crowd").UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range pods {
		write(i)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		write(n)
		n++
	}
	last := all[(n+pods-1)%pods].ResourceVersion
	until(ctx, b, "the last version", func() bool {
		obj, _, _ := informer.GetIndexer().GetByKey(fmt.Sprintf("crowd/pod-%d", (n+pods-1)%pods))
		return obj.(*corev1.Pod).ResourceVersion == last
	})
	clear(all)
	b.ReportMetric(float64(heap()-before)/1e6, "heap-MB")
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func crowdPod(i int) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i),
			Namespace: "crowd", Labels: map[string]string{"app": "crowd", "tier": "backend"}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "registry.example/app:v1", Command: []string{"/app", "--serve"}}}},
	}
	for e := range 12 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env,
			corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", e), Value: "some value of a usual length"})
	}
	return p
}
