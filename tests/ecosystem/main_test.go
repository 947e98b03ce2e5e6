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

// TestParts: what has an archive of sources is built of it only where the archive is.
func TestParts(t *testing.T) {
	dir := t.TempDir()
	proxied, archived := software{name: "old"}, software{name: "new", archive: "new"}
	for _, test := range []struct {
		subject subject
		have    string // in the directory of archives
		dir     string
		want    string
	}{
		{subject{software: []software{proxied}}, "", dir, "old"},
		{subject{software: []software{proxied}, archived: []software{archived}}, "", "", "old"},
		{subject{software: []software{proxied}, archived: []software{archived}}, "other.tar.xz", dir, "old"},
		{subject{software: []software{proxied}, archived: []software{archived}}, "new.tar.xz", dir, "new"},
		{subject{software: []software{proxied}, archived: []software{archived}}, "new.tar.xz", "", "old"},
	} {
		if test.have != "" {
			if err := os.WriteFile(filepath.Join(dir, test.have), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := test.subject.parts(test.dir)[0].name; got != test.want {
			t.Errorf("with %q in %q: %s, want %s", test.have, test.dir, got, test.want)
		}
	}
}

// TestCertManagerChart: a chart has the version of its release, and definitions of
// resources once, whether the release adds them to its templates or not.
func TestCertManagerChart(t *testing.T) {
	for _, test := range []struct{ meta, template, want string }{
		{"Chart.template.yaml", "deployment.yaml", "crds.yaml deployment.yaml"},
		{"Chart.yaml", "crd-issuers.yaml", "crd-issuers.yaml"},
	} {
		source, chart := t.TempDir(), filepath.Join(t.TempDir(), "chart")
		for file, text := range map[string]string{
			"deploy/charts/cert-manager/" + test.meta:               "name: cert-manager\nversion: v0.0.0\nannotations: {a: b}\n",
			"deploy/charts/cert-manager/templates/" + test.template: "---\n",
			"deploy/crds/issuers.yaml":                              "kind: CustomResourceDefinition\n",
		} {
			file = filepath.Join(source, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeCertManagerChart(source, chart, "v1.2.3"); err != nil {
			t.Fatal(err)
		}
		meta, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
		if want := "appVersion: v1.2.3\nname: cert-manager\nversion: v1.2.3\n"; err != nil || string(meta) != want {
			t.Errorf("%s: %q, %v, want %q", test.meta, meta, err, want)
		}
		entries, err := os.ReadDir(filepath.Join(chart, "templates"))
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		if g := strings.Join(got, " "); err != nil || g != test.want {
			t.Errorf("%s: templates %s, %v, want %s", test.meta, g, err, test.want)
		}
	}
}

// TestReplaceModules: a module is replaced once, however often its program is built.
func TestReplaceModules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go.mod")
	if err := os.WriteFile(file, []byte("module a.b/c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := replaceModules(file, "/src", []string{"d.e/f/v5=f-v5.1.0"}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if want := "module a.b/c\nreplace d.e/f/v5 => /src/f-v5.1.0\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
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
