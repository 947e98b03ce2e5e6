package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSelectSubjects: what a subject needs is run before it, in the order of the list.
func TestSelectSubjects(t *testing.T) {
	for _, test := range []struct{ only, want, err string }{
		{only: "", want: names()},
		{only: "node-exporter", want: "node-exporter"},
		{only: "prometheus", want: "kube-state-metrics, node-exporter, prometheus"},
		{only: "redis,metrics-server", want: "metrics-server, local-path, redis"},
		{only: "redis,oracle", err: `-only "oracle": no such subject`},
	} {
		selected, err := selectSubjects(test.only)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%q: error %v, want %q", test.only, err, test.err)
			}
			continue
		}
		var got []string
		for _, s := range selected {
			got = append(got, s.name)
		}
		if g := strings.Join(got, ", "); err != nil || g != test.want {
			t.Errorf("%q: %s (%v), want %s", test.only, g, err, test.want)
		}
	}
}

// TestNeedsComeFirst: no subject needs one that is run after it.
func TestNeedsComeFirst(t *testing.T) {
	for i, s := range subjects {
		for _, n := range s.needs {
			if j := slices.IndexFunc(subjects, func(s subject) bool { return s.name == n }); j < 0 || j >= i {
				t.Errorf("%s needs %s, which is not run before", s.name, n)
			}
		}
	}
}

// TestLeaveOut: what is left out is imported no more, and all else is.
func TestLeaveOut(t *testing.T) {
	file := filepath.Join(t.TempDir(), "main.go")
	const text = "package main\n\nimport (\n\t_ \"a.b/one\"\n\t_ \"a.b/one/more\"\n)\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // of a copy that is there
		if err := leaveOut(file, []string{"a.b/one"}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if want := "package main\n\nimport (\n\t_ \"a.b/one/more\"\n)\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}
