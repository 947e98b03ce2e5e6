package probe

import (
	"cmp"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/metrics"
)

// Results of a probe, as metrics call them.
const (
	successful = iota
	failed
	unknown
)

var results = [...]string{successful: "successful", failed: "failed", unknown: "unknown"}

// outcomes counts what came of one probe of a container; it goes with the probe.
type outcomes struct {
	number [len(results)]uint64
	took   metrics.Buckets
}

func (o *outcomes) count(good bool, err error, took time.Duration) {
	switch {
	case err != nil:
		o.number[unknown]++
	case good:
		o.number[successful]++
	default:
		o.number[failed]++
	}
	o.took.Observe(metrics.DefaultBuckets, took)
}

// Show puts the outcomes of the probes that go on on a page.
func (m *Manager) Show(p *metrics.Page) {
	type line struct {
		labels []string
		outcomes
	}
	m.mu.Lock()
	var lines []line
	for uid, watches := range m.pods {
		for _, w := range watches {
			pod := w.t.Pod
			lines = append(lines, line{
				labels: []string{"probe_type", w.kind.String(), "container", w.t.Container.Name, "pod", pod.Name,
					"namespace", pod.Namespace, "pod_uid", string(uid)},
				outcomes: w.outcomes,
			})
			lines[len(lines)-1].took = w.outcomes.took.Clone()
		}
	}
	m.mu.Unlock()
	slices.SortFunc(lines, func(a, b line) int { return slices.CompareFunc(a.labels, b.labels, cmp.Compare[string]) })
	f := p.Family("prober_probe_total", metrics.Counter,
		"[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.")
	for _, l := range lines {
		for result, n := range l.number {
			if n > 0 {
				f.Put(float64(n), append(slices.Clip(l.labels), "result", results[result])...)
			}
		}
	}
	const named = 8 // of the labels, all but the pod's UID
	f = p.Family("prober_probe_duration_seconds", metrics.Histogram, "[ALPHA] Duration in seconds for a probe response.")
	for _, l := range lines {
		f.PutBuckets(metrics.DefaultBuckets, l.took, l.labels[:named]...)
	}
}
