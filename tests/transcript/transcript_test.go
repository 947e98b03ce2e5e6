package transcript

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestPlay(t *testing.T) {
	script := "# A remark.\n> add 1\nstale\n> say a  b \n\n> add 2\n= 1\n"
	want := "# A remark.\n> add 1\n> say a  b \n\"say a  b\"\n\n> add 2\n"
	got := Play(script, func(command string) string {
		if text, ok := strings.CutPrefix(command, "say"); ok {
			return `"say` + text + "\"\n"
		}
		return ""
	})
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestPlayed is what TestFiles runs in a process of its own, on a directory of its.
func TestPlayed(t *testing.T) {
	pattern := os.Getenv("TRANSCRIPTS")
	if pattern == "" {
		t.Skip("TestFiles runs it")
	}
	Files(t, pattern, func(_ *testing.T, text string) string {
		return Play(text, func(command string) string { return command + "\n" })
	})
}

func TestFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	played := func(args ...string) (string, error) {
		cmd := exec.Command(self, append([]string{"-test.run=^TestPlayed$"}, args...)...)
		cmd.Env = append(os.Environ(), "TRANSCRIPTS="+filepath.Join(dir, "*.txt"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "echo.txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := played(); err == nil || !strings.Contains(out, "no scenarios") {
		t.Errorf("without files: %v, %s", err, out)
	}
	write("> a\nb\n")
	if out, err := played(); err == nil || !strings.Contains(out, "how it went") {
		t.Errorf("what came of it is another thing: %v, %s", err, out)
	}
	if out, err := played("-update"); err != nil {
		t.Errorf("-update: %v, %s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "echo.txt")); string(text) != "> a\na\n" {
		t.Errorf("-update wrote %q, %v", text, err)
	}
	if out, err := played(); err != nil {
		t.Errorf("after -update: %v, %s", err, out)
	}
}
