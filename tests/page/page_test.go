package page

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte("before\n<begin>\nold\n<end>\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Replace(file, "<begin>\n", "<end>\n", "new\n"); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(file); string(data) != "before\n<begin>\nnew\n<end>\nafter\n" {
		t.Errorf("page %q", data)
	}
	if err := Replace(file, "<end>\n", "<begin>\n", ""); err == nil {
		t.Error("marks in the wrong order are no error")
	}
}
