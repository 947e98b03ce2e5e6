// Package transcript plays scenarios that are told as text: a file says what is done
// and what came of it, and a test that plays it gets the same file again.
//
//	# Why this scenario is there.
//	> start web            a command
//	web: running           what came of it
//
// After a wanted change: go test ./the/package -update writes the files; read the diff.
package transcript

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
)

var update = flag.Bool("update", false, "write how the scenarios went into their files")

// Files plays each file that pattern matches, as a test of its own: play is given a
// file's text and returns it with what came of its commands. Where that is not the
// same, the test fails, or writes the file when it is run with -update.
func Files(t *testing.T, pattern string, play func(t *testing.T, text string) string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios %s: %v", pattern, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			switch {
			case got == string(text):
			case *update:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Error(err)
				}
			default:
				t.Errorf("-%s, +how it went:\n%s", file, diff(string(text), got))
			}
		})
	}
}

func diff(want, got string) string {
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: difflib.SplitLines(want), B: difflib.SplitLines(got), Context: 3,
	})
	if err != nil { // of a writer that is a buffer: never
		return err.Error()
	}
	return text
}

// Play does the commands of a script, the lines that begin with "> ", and returns it
// with what do says of each, in whole lines. Remarks ("#") and empty lines stay.
func Play(script string, do func(command string) string) string {
	var out strings.Builder
	for line := range strings.Lines(script) {
		command, ok := strings.CutPrefix(line, "> ")
		if ok || strings.HasPrefix(line, "#") || line == "\n" {
			out.WriteString(line)
		}
		if ok {
			out.WriteString(do(strings.TrimSpace(command)))
		}
	}
	return out.String()
}
