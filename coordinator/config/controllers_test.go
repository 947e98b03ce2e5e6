package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestControllers: EPS-4, GC-21. What cannot be is told, and 0 is not the default.
func TestControllers(t *testing.T) {
	for n, ok := range map[int]bool{0: false, 1: true, 1000: true, 1001: false} {
		c := Default()
		c.MaxEndpointsPerSlice = n
		err := c.Validate()
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "maxEndpointsPerSlice") {
			t.Errorf("%d: %v", n, err)
		}
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("terminatedPodGCThreshold: 0\nmaxEndpointsPerSlice: 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(file); err != nil || c.TerminatedPodGCThreshold != 0 || c.MaxEndpointsPerSlice != 7 {
		t.Errorf("%+v, %v", c.Controllers, err)
	}
	// Who writes a file of some fields leaves the others as they are.
	data, err := yaml.Marshal(Config{Port: 7443})
	if err != nil || strings.Contains(string(data), "hreshold") {
		t.Errorf("%s, %v", data, err)
	}
}
