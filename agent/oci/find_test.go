package oci

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWrapCrun checks which file stands for crun on a hybrid host: one that shoal-hybrid
// interprets where the kernel can have it so, else a shell script.
func TestWrapCrun(t *testing.T) {
	dir := t.TempDir()
	hider := filepath.Join(dir, "shoal-hybrid")
	spaced := filepath.Join(dir, "with space")
	notExecutable := filepath.Join(dir, "data")
	for file, mode := range map[string]os.FileMode{hider: 0o755, spaced: 0o755, notExecutable: 0o644} {
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		hider, crun string
		direct      bool
	}{
		"beside":           {hider, "/usr/bin/crun", true},
		"none":             {"", "/usr/bin/crun", false},
		"missing":          {filepath.Join(dir, "missing"), "/usr/bin/crun", false},
		"not-executable":   {notExecutable, "/usr/bin/crun", false},
		"relative":         {"shoal-hybrid", "/usr/bin/crun", false},
		"a-directory":      {dir, "/usr/bin/crun", false},
		"spaces":           {spaced, "/usr/bin/crun", false},
		"spaces-in-crun":   {hider, "/opt/my tools/crun", false},
		"longer-than-read": {hider, "/" + strings.Repeat("a", maxFirstLine) + "/crun", false},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := wrapCrun(c.crun, filepath.Join(t.TempDir(), "bin"), c.hider)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := "#!/bin/sh\n"
			if c.direct {
				want = "#!" + c.hider + " " + c.crun + "\n"
			}
			if !strings.HasPrefix(string(got), want) || c.direct && string(got) != want {
				t.Errorf("the file for crun is %q, want %q", got, want)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("it cannot be run: %v, %v", info, err)
			}
		})
	}
}
