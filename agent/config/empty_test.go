package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEmpty: a file of which a power cut left nothing does not begin another node.
func TestEmpty(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	for text, refused := range map[string]bool{"": true, "\n": true, "# the defaults\n": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := Default()
		err := c.Load(file)
		if refused != (err != nil && strings.Contains(err.Error(), file+": it is empty")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
