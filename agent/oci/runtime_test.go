package oci

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	r := Parse(" /usr/bin/runsc  --network=host --platform=systrap ")
	if r.Path != "/usr/bin/runsc" || !slices.Equal(r.Args, []string{"--network=host", "--platform=systrap"}) {
		t.Errorf("parsed: %+v", r)
	}
	r.Root = "/run/runsc"
	want := []string{"--network=host", "--platform=systrap", "--root", "/run/runsc", "--log", "/log", "--log-format", "json"}
	for range 2 { // a second call does not see what the first appended
		if got := r.GlobalArgs("/log"); !slices.Equal(got, want) {
			t.Errorf("arguments %q", got)
		}
	}
	if r := Parse("   "); r.Path != "" {
		t.Errorf("of nothing: %+v", r)
	}
}

// What an unknown runtime's exec takes is asked of it; one that fails takes nothing more.
func TestProbe(t *testing.T) {
	script := func(text string) Runtime {
		path := filepath.Join(t.TempDir(), "some-runtime")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return Runtime{Path: path, Args: []string{"--own"}}
	}
	for text, want := range map[string]bool{
		`[ "$1 $2 $3" = "--own exec --help" ] && echo "  -internal-pid-file string"`: true,
		`echo "  --pid-file string"`:                false,
		`echo "unknown command" >&2; exit 1`:        false,
		`echo "  -internal-pid-file" >&2; exit 128`: true,
	} {
		if got := script(text).Probe(t.Context()); got.InnerPIDs != want {
			t.Errorf("%s: %v", text, got.InnerPIDs)
		}
	}
	if r := (Runtime{Path: "/none/runc"}).Probe(t.Context()); r.InnerPIDs {
		t.Error("runc numbers processes by itself")
	}
	before := time.Now()
	if (Runtime{Path: "/none"}).Probe(t.Context()).InnerPIDs || time.Since(before) > probeWait {
		t.Error("a program that is not there")
	}
}
