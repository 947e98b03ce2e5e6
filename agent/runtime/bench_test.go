package runtime

import (
	"context"
	"sync"
	"testing"
	"time"
)

// BenchmarkPod tells where the time of a pod's start and end goes, in
// milliseconds a step.
func BenchmarkPod(b *testing.B) {
	g := newRig(b)
	g.importImage()
	ctx := context.Background()
	var mu sync.Mutex
	spent := map[string]time.Duration{}
	timed := func(step string, fn func() error) {
		at := time.Now()
		if err := fn(); err != nil {
			b.Error(step, err)
		}
		mu.Lock()
		spent[step] += time.Since(at)
		mu.Unlock()
	}
	pods := 0
	one := func() {
		var pod, id string
		timed("1-sandbox-ms", func() (err error) { pod, err = g.r.RunPodSandbox(ctx, g.podConfig(), ""); return err })
		timed("2-create-ms", func() (err error) {
			id, err = g.r.CreateContainer(ctx, pod, shell("c", "sleep 1000"), nil)
			return err
		})
		timed("3-start-ms", func() error { return g.r.StartContainer(ctx, id) })
		timed("4-stop-ms", func() error { return g.r.StopContainer(ctx, id, 0) })
		timed("5-remove-ms", func() error { return g.r.RemovePodSandbox(ctx, pod) })
		mu.Lock()
		pods++
		mu.Unlock()
	}
	for b.Loop() {
		one()
	}
	for step, d := range spent {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(pods), step)
	}
}

// BenchmarkThirtyPods starts 30 pods at the same time.
func BenchmarkThirtyPods(b *testing.B) {
	g := newRig(b)
	g.importImage()
	ctx := context.Background()
	var start, end time.Duration
	for b.Loop() {
		pods := make([]string, 30)
		each := func(fn func(i int) error) time.Duration {
			at := time.Now()
			var wg sync.WaitGroup
			for i := range pods {
				wg.Go(func() {
					if err := fn(i); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			return time.Since(at)
		}
		start += each(func(i int) error {
			id, err := g.r.RunPodSandbox(ctx, g.podConfig(), "")
			if err != nil {
				return err
			}
			pods[i] = id
			c, err := g.r.CreateContainer(ctx, id, shell("c", "sleep 1000"), nil)
			if err != nil {
				return err
			}
			return g.r.StartContainer(ctx, c)
		})
		end += each(func(i int) error { return g.r.RemovePodSandbox(ctx, pods[i]) })
	}
	b.ReportMetric(float64(start.Milliseconds())/float64(b.N), "start-ms")
	b.ReportMetric(float64(end.Milliseconds())/float64(b.N), "remove-ms")
}
