package controller_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // the libraries' queues, whose families are the same

	"github.com/shoal-project/shoal/coordinator/controller"
)

// TestQueueMetrics: the queue of each loop is in the families of client-go's
// queues, beside those of the libraries.
func TestQueueMetrics(t *testing.T) {
	library := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "library"})
	library.Add("a")
	t.Cleanup(library.ShutDownWithDrain)
	t.Cleanup(func() { key, _ := library.Get(); library.Done(key) })

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := controller.New("measured", 1, slog.New(slog.DiscardHandler))
		calls := 0
		l.Reconciler = controller.Func(func(_ context.Context, key string) (time.Duration, error) {
			time.Sleep(10 * time.Second)
			if calls++; calls == 1 {
				return 0, errors.New("first fails")
			}
			return 0, nil
		})
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Add("a")
		l.Add("b")
		l.Add("b") // is there already
		time.Sleep(4 * time.Second)
		want := func(when, want string) {
			t.Helper()
			if diff := cmp.Diff(want, page(t, "measured")); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", when, diff)
			}
		}
		want("in the first", `workqueue_adds_total 2
workqueue_depth 1
workqueue_longest_running_processor_seconds 4
workqueue_queue_duration_seconds count 1 sum 0.0
workqueue_retries_total 0
workqueue_unfinished_work_seconds 4
workqueue_work_duration_seconds count 0 sum 0.0
`)
		time.Sleep(time.Minute)
		want("after a retry of the first", `workqueue_adds_total 3
workqueue_depth 0
workqueue_longest_running_processor_seconds 0
workqueue_queue_duration_seconds count 3 sum 20.0
workqueue_retries_total 1
workqueue_unfinished_work_seconds 0
workqueue_work_duration_seconds count 3 sum 30.0
`)
		l.Add("c")
		l.Add("d")
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if got := page(t, "measured"); !strings.Contains(got, "workqueue_depth 0\n") {
			t.Errorf("keys of a loop that has ended wait in\n%s", got)
		}
	})
	if got := page(t, "library"); !strings.Contains(got, "workqueue_depth 1\n") {
		t.Errorf("the library's queue is\n%s", got)
	}
}

// page is what the metrics page says of a queue.
func page(t *testing.T, queue string) string {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "workqueue_") {
			continue
		}
		for _, m := range f.Metric {
			if m.Label[0].GetValue() != queue {
				continue
			}
			value := fmt.Sprint(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			if h := m.Histogram; h != nil {
				value = fmt.Sprintf("count %d sum %.1f", h.GetSampleCount(), h.GetSampleSum())
			}
			lines = append(lines, f.GetName()+" "+value+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
