package evict

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestPIDPressure(t *testing.T) {
	proc := t.TempDir()
	for file, text := range map[string]string{
		"sys/kernel/pid_max": "1000\n", "sys/kernel/threads-max": "2000\n", "loadavg": "0.1 0.2 0.3 2/950 4711\n",
	} {
		path := filepath.Join(proc, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s, err := tasks(proc)
	if err != nil || s != (Signal{Available: 50, Capacity: 1000}) {
		t.Fatalf("%+v, %v", s, err)
	}
	for limit, want := range map[string]bool{"51": true, "50": false, "10%": true, "5%": false} {
		got := Pressure(map[string]string{"pid.available": limit}, map[string]Signal{"pid.available": s})
		if got[v1.NodePIDPressure] != want || got[v1.NodeDiskPressure] {
			t.Errorf("%s: %v", limit, got)
		}
	}
	if _, ok := Measure("/", "/", Signal{})["pid.available"]; !ok {
		t.Error("this machine's tasks are not measured")
	}
}
