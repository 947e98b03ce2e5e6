package runtime

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/logs"
)

// BenchmarkPod tells where the time of a pod's start and end goes, in
// milliseconds a step, medians. Pods come one by one: the kernel does at once what it
// has just done (cgroup.Root.ExpectMove).
func BenchmarkPod(b *testing.B) {
	g := newRig(b)
	g.importImage()
	ctx := context.Background()
	spent := map[string][]time.Duration{}
	timed := func(step string, fn func() error) {
		at := time.Now()
		if err := fn(); err != nil {
			b.Error(step, err)
		}
		spent[step] = append(spent[step], time.Since(at))
	}
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
	}
	for b.Loop() {
		b.StopTimer()
		time.Sleep(150 * time.Millisecond)
		b.StartTimer()
		one()
	}
	for step, d := range spent {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, step)
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

// BenchmarkLogFlood has a container write 300 MB to its log as fast as it can: by a monitor that
// writes on for ever, whose log is looked at each 10 s, and by one that begins it anew by
// itself. "peak-MiB" is what the logs took at most.
func BenchmarkLogFlood(b *testing.B) {
	const bytes, most = 300 << 20, 10 << 20
	for _, bounded := range []bool{false, true} {
		b.Run(map[bool]string{false: "polled", true: "bounded"}[bounded], func(b *testing.B) {
			g := newRig(b)
			g.importImage()
			ctx := b.Context()
			pod, err := g.r.RunPodSandbox(ctx, g.podConfig(), "")
			if err != nil {
				b.Fatal(err)
			}
			config := shell("flood", fmt.Sprintf("busybox yes %s | head -c %d", strings.Repeat("a", 99), bytes))
			if bounded {
				config.Annotations = map[string]string{logs.AnnotationMax: strconv.Itoa(most)}
			}
			id, err := g.r.CreateContainer(ctx, pod, config, nil)
			if err != nil {
				b.Fatal(err)
			}
			path := g.status(id).LogPath
			written := []logs.Written{{ID: id, Path: path, Bounded: bounded}}
			rotator := &logs.Rotator{Dir: filepath.Dir(filepath.Dir(path)), MaxBytes: most, MaxFiles: 5,
				Bounded: bounded, Logs: func() []logs.Written { return written },
				Reopen: g.r.ReopenContainerLog, Log: g.cfg.Log}
			rotator.Watch(filepath.Dir(path))
			running, stop := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() { ended <- rotator.Run(running) }()
			begun, peak := time.Now(), int64(0)
			if err := g.r.StartContainer(ctx, id); err != nil {
				b.Fatal(err)
			}
			for g.status(id).State != criv1.ContainerState_CONTAINER_EXITED {
				if has, _, err := beneath.Usage(ctx, filepath.Dir(path)); err == nil {
					peak = max(peak, has)
				}
				time.Sleep(5 * time.Millisecond)
			}
			b.ReportMetric(float64(bytes>>20)/time.Since(begun).Seconds(), "MiB/s")
			b.ReportMetric(float64(peak>>20), "peak-MiB")
			stop()
			<-ended
		})
	}
}
