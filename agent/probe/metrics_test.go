package probe

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/metrics"
)

// TestOutcomesAreCounted: what came of a probe is told as long as it goes on.
func TestOutcomesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &Manager{Exec: &script{say: "bg"}, Events: silent{}, Report: func(Result) {}}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m.Start(ctx)
		spec := &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, SuccessThreshold: 1}
		spec.Exec = &corev1.ExecAction{Command: []string{"x"}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}}
		m.Set("u", []Target{{
			UID: "u", Pod: pod, Container: &corev1.Container{Name: "c"}, ID: "c0", Readiness: spec,
			Started: time.Now().Add(-time.Hour),
		}})
		time.Sleep(2500 * time.Millisecond)
		want := `# HELP prober_probe_total [BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.
# TYPE prober_probe_total counter
prober_probe_total{probe_type="Readiness",container="c",pod="web",namespace="ns",pod_uid="u",result="successful"} 2
prober_probe_total{probe_type="Readiness",container="c",pod="web",namespace="ns",pod_uid="u",result="failed"} 1
`
		got := show(t, m)
		if counts, _, _ := strings.Cut(got, "# HELP prober_probe_duration"); counts != want {
			t.Error(cmp.Diff(want, counts))
		}
		line := `prober_probe_duration_seconds_count{probe_type="Readiness",container="c",pod="web",namespace="ns"} 3`
		if !strings.Contains(got, line+"\n") {
			t.Errorf("no %s in\n%s", line, got)
		}
		m.Set("u", nil)
		if got := show(t, m); got != "" {
			t.Errorf("the probes of a pod that is gone: %s", got)
		}
	})
}

func show(t *testing.T, m *Manager) string {
	t.Helper()
	var out strings.Builder
	p := metrics.NewPage(&out)
	m.Show(p)
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
