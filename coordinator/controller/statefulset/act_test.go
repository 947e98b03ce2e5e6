package statefulset

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// A pod whose name another has is one line in the log, and no event; it is made when
// the name is free.
func TestNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := pods(set(1), "0")[0]
		other.OwnerReferences, other.Labels = nil, nil
		var out bytes.Buffer // read when the loop has ended
		loop := controller.New("statefulset", 1, slog.New(slog.NewTextHandler(&out, nil)))
		events := record.NewFakeRecorder(100)
		client := fake.NewClientset(other)
		r := &reconciler{client: client, events: events, expect: controller.NewExpectations()}
		v := see(set(1), "")
		v.current = v.update
		var tries, made atomic.Int32
		loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
			tries.Add(1)
			err := r.create(ctx, key, v, 0, controller.Revisions{})
			if err == nil {
				made.Add(1)
			}
			return 0, err
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop.Run(ctx) }()
		loop.Add("ns/web")
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n, pods := tries.Load(), made.Load(); n < 15 || pods != 0 || len(events.Events) > 0 {
			t.Errorf("%d tries, %d pods, %d events", n, pods, len(events.Events))
		}
		if err := client.CoreV1().Pods("ns").Delete(ctx, "web-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if made.Load() != 1 {
			t.Errorf("the name is free, and %d pods were made", made.Load())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "pod web-0 waits for its name") ||
			!strings.Contains(out.String(), "key=ns/web") {
			t.Errorf("logged:\n%s", out.String())
		}
	})
}
