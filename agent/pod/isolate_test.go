package pod

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// No container runs before its pod's network policies are enforced, by the labels that
// the pod has by then; what fails is tried again. A pod in its node's network waits for
// nothing.
func TestIsolatedFirst(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		answers := make(chan error)
		var mu sync.Mutex
		var asked []string
		m.Isolate = func(_ context.Context, p *corev1.Pod, ips []string) error {
			mu.Lock()
			asked = append(asked, p.Labels["app"])
			mu.Unlock()
			return <-answers
		}
		host := testPod(corev1.RestartPolicyAlways, "h")
		host.Name, host.UID, host.Spec.HostNetwork = "host", "host", true
		m.Update(host, SourceAPI)
		p := testPod(corev1.RestartPolicyAlways, "a")
		p.Labels = map[string]string{"app": "old"}
		m.Update(p, SourceAPI)
		expect(t, f, "h#0=run")
		answers <- errors.New("the kernel is busy")
		expect(t, f, "h#0=run")
		if n := e.count("a:Failed"); n != 1 {
			t.Errorf("told %d times: %v", n, e.events)
		}
		time.Sleep(2 * firstRetry)
		expect(t, f, "h#0=run")

		q := p.DeepCopy()
		q.Labels["app"] = "new"
		m.Update(q, SourceAPI)
		synctest.Wait()
		answers <- nil // by the old label
		expect(t, f, "h#0=run")
		answers <- nil
		expect(t, f, "a#0=run h#0=run")
		if len(asked) != 3 || asked[0] != "old" || asked[1] != "old" || asked[2] != "new" {
			t.Errorf("asked %v", asked)
		}
	})
}
