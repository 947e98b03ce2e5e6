package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// SEC: runtimes with known ways out of a container are named with the version
// that closes them.
func TestHoles(t *testing.T) {
	const of2025, of2026 = "CVE-2025-31133", "CVE-2026-41579"
	for name, c := range map[string]struct {
		program, output string
		want            []string // in this order, and no others
	}{
		"first": {"runc", "runc version 1.0.0-rc6\ncommit: ccb5efd\nspec: 1.0.1-dev\n",
			[]string{"CVE-2019-5736", "CVE-2021-30465", "CVE-2024-21626", of2025, of2026}},
		"candidates": {"runc", "runc version 1.0.0-rc95\n", []string{"CVE-2024-21626", of2025, of2026}},
		"Debian candidate": {"runc", "runc version 1.0.0~rc93+ds1\ncommit: 1.0.0~rc93+ds1-5+deb11u1\n",
			[]string{"CVE-2021-30465", "CVE-2024-21626", of2025, of2026}},
		"of 2023": {"runc", "runc version 1.1.5\ncommit: v1.1.5-0-gf19387a6\n",
			[]string{"CVE-2024-21626", of2025, of2026}},
		"Debian backport": {"runc",
			"runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\ngo: go1.19.8\n",
			[]string{of2025, of2026}},
		"later update": {"runc", "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u12\n", []string{of2025, of2026}},
		"before the update": {"runc", "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+b3\n",
			[]string{"CVE-2024-21626", of2025, of2026}},
		"of 2024":         {"runc", "runc version 1.1.12\n", []string{of2025, of2026}},
		"1.2":             {"runc", "runc version 1.2.8\n", []string{of2026}},
		"1.3, not yet":    {"runc", "runc version 1.3.2\n", []string{of2025, of2026}},
		"1.3":             {"runc", "runc version 1.3.6\n", nil},
		"1.4 candidate":   {"runc", "runc version 1.4.0-rc.2\n", []string{of2025, of2026}},
		"1.4":             {"runc", "runc version 1.4.0\n", []string{of2026}},
		"today":           {"runc", "runc version 1.5.2\n", nil},
		"tomorrow":        {"runc", "runc version 2.0.0\n", nil},
		"old crun":        {"crun", "crun version 0.10.4\ncommit: x\n", []string{"CVE-2019-18837"}},
		"crun":            {"crun", "crun version 1.8.1\n+SYSTEMD +YAJL\n", nil},
		"crun with krun":  {"crun", "crun version 1.8.1\n+SYSTEMD +LIBKRUN +YAJL\n", []string{"CVE-2025-24965"}},
		"fixed with krun": {"crun", "crun version 1.20\n+SYSTEMD +LIBKRUN +YAJL\n", nil},
	} {
		got, err := holesOf(c.program, c.output)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var list []string
		for part := range strings.SplitSeq(got, "; ") {
			if first, _, _ := strings.Cut(part, " "); first != "" {
				list = append(list, strings.TrimSuffix(first, ","))
			}
		}
		if strings.Join(list, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: %q, want %v", name, got, c.want)
		}
	}
	for _, output := range []string{"", "runc version", "runc version next\n", "crun version 1.0.0\n"} {
		if got, err := holesOf("runc", output); err == nil {
			t.Errorf("%q is read as %q", output, got)
		}
	}
}

func TestVersionIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runc")
	script := "#!/bin/sh\necho 'runc version 1.5.2'\nhead -c 1000000 /dev/zero\n"
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := (Runtime{Path: path}).KnownHoles(context.Background()); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := (Runtime{Path: "/usr/bin/kata-runtime"}).KnownHoles(context.Background()); got != "" || err != nil {
		t.Errorf("another program: %q, %v", got, err)
	}
}

func FuzzHolesOf(f *testing.F) {
	f.Add("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\n")
	f.Add("runc version 1.4.0-rc.3\n")
	f.Fuzz(func(t *testing.T, output string) {
		if _, err := holesOf("runc", output); err == nil && !strings.Contains(output, "runc version ") {
			t.Errorf("a version is read from %q", output)
		}
	})
}
