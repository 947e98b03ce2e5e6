package dra

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/agent/metrics"
)

// TestCounted: how many claims are in use, by their drivers, and what is asked of those.
func TestCounted(t *testing.T) {
	w := newWorld(t, claim("c", []string{"d.io", "e.io"}, "p"), claim("c2", []string{"e.io"}, "q"))
	counts := metrics.NewAgent()
	w.m.Durations, w.m.Drivers.Calls = counts.Claims, counts.ClaimCalls
	w.driver("d.io")
	inUse := func(want map[string]int) {
		t.Helper()
		if got := w.m.InUse(); !maps.Equal(got, want) {
			t.Errorf("in use %v, want %v", got, want)
		}
	}
	p, q := pod("p", []string{"c"}, "c"), pod("q", []string{"c2"}, "c2")
	w.ensure(p, "e.io is not registered")
	inUse(map[string]int{"<any>": 0})
	w.driver("e.io")
	w.ensure(p, "")
	w.ensure(q, "")
	w.ensure(pod("other", nil), "")
	inUse(map[string]int{"<any>": 2, "d.io": 1, "e.io": 2})
	w.release(p, "")
	inUse(map[string]int{"<any>": 1, "e.io": 1})

	var out bytes.Buffer
	page := metrics.NewPage(&out)
	counts.Show(page)
	if err := page.Flush(); err != nil {
		t.Fatal(err)
	}
	const call = `dra_grpc_operations_duration_seconds_count{driver_name="e.io",` +
		`method_name="/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/`
	for _, want := range []string{
		`dra_operations_duration_seconds_count{operation_name="PrepareResources",is_error="true"} 1`,
		`dra_operations_duration_seconds_count{operation_name="PrepareResources",is_error="false"} 2`,
		`dra_operations_duration_seconds_count{operation_name="UnprepareResources",is_error="false"} 1`,
		call + `NodePrepareResources",grpc_status_code="OK"} 2`,
		call + `NodeUnprepareResources",grpc_status_code="OK"} 1`,
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}
