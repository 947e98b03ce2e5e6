package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmpty: a file of which a power cut left nothing does not begin another cluster.
func TestEmpty(t *testing.T) {
	file := filepath.Join(t.TempDir(), "coordinator.yaml")
	for text, refused := range map[string]bool{"": true, "\n": true, "# the defaults\n": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(file)
		if refused != (err != nil && strings.Contains(err.Error(), file+": it is empty")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
