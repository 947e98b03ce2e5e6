package scheduler

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// inProcess runs a scheduler in the API server's process, as the coordinator does.
func inProcess(t testing.TB) (kubernetes.Interface, informers.SharedInformerFactory) {
	server := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	s, err := New(Config{Client: server.Client(), Informers: server.Informers()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server.Informers().Start(ctx.Done())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		server.Stop()
		server.Informers().Shutdown()
	})
	return server.Client(), server.Informers()
}

// readyNode creates a node without the taint that new nodes get until they report.
func readyNode(t testing.TB, c kubernetes.Interface, n *corev1.Node) {
	t.Helper()
	made, err := c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status = n.Status
	if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func apiPod(name string, opts ...podOpt) *corev1.Pod {
	p := testPod(name, opts...)
	p.UID = ""
	return p
}

func TestWithTheAPIServer(t *testing.T) {
	client, _ := inProcess(t)
	readyNode(t, client, testNode("n1", "1", "1Gi"))
	pods := client.CoreV1().Pods("default")
	for _, p := range []*corev1.Pod{apiPod("low", requests("800m", "1Mi")), apiPod("big", requests("4", "1Mi"))} {
		if _, err := pods.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not seen in time: %s", what)
			}
		}
	}
	condition := func(name string) corev1.PodCondition {
		p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled {
				return c
			}
		}
		return corev1.PodCondition{}
	}
	wait("low bound", func() bool { return condition("low").Status == corev1.ConditionTrue })
	wait("big refused", func() bool {
		return condition("big").Message == "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
	})
	high := apiPod("high", requests("500m", "1Mi"), priority(10))
	if _, err := pods.Create(t.Context(), high, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("low marked", func() bool {
		p, err := pods.Get(t.Context(), "low", metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Reason == corev1.PodReasonPreemptionByScheduler {
				return p.DeletionTimestamp != nil
			}
		}
		return false
	})
	// The kubelet's part: the victim has ended.
	zero := int64(0)
	if err := pods.Delete(t.Context(), "low", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	wait("high bound", func() bool { return condition("high").Status == corev1.ConditionTrue })
	wait("events", func() bool {
		l, err := client.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, e := range l.Items {
			seen[e.Regarding.Name+" "+e.Reason] = true
		}
		return seen["low Scheduled"] && seen["big FailedScheduling"] && seen["low Preempted"] && seen["high Scheduled"]
	})
}

// BenchmarkBind is pods from creation to bound through the API server, all at
// once ("pods/s") and one by one ("ms/pod").
func BenchmarkBind(b *testing.B) {
	const nodes = 1000
	client, factory := inProcess(b)
	for i := range nodes {
		readyNode(b, client, testNode(fmt.Sprint("n", i), "32", "128Gi", zone(fmt.Sprint("z", i%10))))
	}
	bound := make(chan struct{}, 100000)
	_, err := factory.Core().V1().Pods().Informer().
		AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, now any) {
			if old.(*corev1.Pod).Spec.NodeName == "" && now.(*corev1.Pod).Spec.NodeName != "" {
				bound <- struct{}{}
			}
		}})
	if err != nil {
		b.Fatal(err)
	}
	create := func(name string) {
		if _, err := client.CoreV1().Pods("default").Create(context.Background(), apiPod(name, requests("10m", "1Mi")),
			metav1.CreateOptions{}); err != nil {
			b.Error(err)
		}
	}
	b.Run("one-by-one", func(b *testing.B) {
		for i := range b.N {
			create(fmt.Sprint("one-", b.N, "-", i))
			<-bound
		}
		b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/pod")
	})
	b.Run("at-once", func(b *testing.B) {
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := w; i < b.N; i += 16 {
					create(fmt.Sprint("all-", b.N, "-", i))
				}
			})
		}
		for range b.N {
			<-bound
		}
		wg.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
	})
}
