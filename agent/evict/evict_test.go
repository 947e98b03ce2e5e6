package evict

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/host"
)

func TestPIDPressure(t *testing.T) {
	s := tasks(host.Tasks{Count: 950, MaxPID: 1000, MaxThreads: 2000})
	if s != (Signal{Available: 50, Capacity: 1000}) {
		t.Fatalf("%+v", s)
	}
	for limit, want := range map[string]bool{"51": true, "50": false, "10%": true, "5%": false} {
		got := Pressure(map[string]string{"pid.available": limit}, map[string]Signal{"pid.available": s})
		if got[corev1.NodePIDPressure] != want || got[corev1.NodeDiskPressure] {
			t.Errorf("%s: %v", limit, got)
		}
	}
	if _, ok := Measure("/", "/", Signal{})["pid.available"]; !ok {
		t.Error("this machine's tasks are not measured")
	}
}
