package statefulset

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// A pod whose name another has is one line in the log, and no event.
func TestNameIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := pods(set(1), "0")[0]
		other.OwnerReferences, other.Labels = nil, nil
		var out bytes.Buffer
		loop := controller.New("statefulset", 1, slog.New(slog.NewTextHandler(&out, nil)))
		events := record.NewFakeRecorder(100)
		client := fake.NewClientset(other)
		r := &reconciler{client: client, events: events, expect: controller.NewExpectations()}
		v := see(set(1), "")
		v.current = v.update
		tries := 0
		loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
			tries++
			return 0, r.create(ctx, key, v, 0, controller.Revisions{})
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- loop.Run(ctx) }()
		loop.Add("ns/web")
		time.Sleep(10 * time.Minute)
		lines := strings.Count(out.String(), "\n")
		if tries < 15 || lines != 1 || !strings.Contains(out.String(), "pod web-0 waits for its name") ||
			!strings.Contains(out.String(), "key=ns/web") {
			t.Errorf("%d tries, logged:\n%s", tries, out.String())
		}
		if len(events.Events) > 0 {
			t.Errorf("an event: %s", <-events.Events)
		}
		if err := client.CoreV1().Pods("ns").Delete(ctx, "web-0", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if _, err := client.CoreV1().Pods("ns").Get(ctx, "web-0", metav1.GetOptions{}); err != nil {
			t.Errorf("the name is free: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
