package oci

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// profiled is a specification with a profile that refuses the named call.
func profiled(call string) *specs.Spec {
	return &specs.Spec{Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActAllow,
		Syscalls: []specs.LinuxSyscall{{Names: []string{call}, Action: specs.ActErrno}}}}}
}

// translated puts a program where the runtime leaves that of a container.
func translated(t *testing.T, rt Runtime, id string, program []byte) {
	t.Helper()
	dir := rt.StateDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "seccomp.bpf"), program, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A profile's translation is used for that profile and that runtime alone.
func TestFiltersAreOfTheirProfile(t *testing.T) {
	rt := Runtime{Path: "/usr/bin/crun", Root: t.TempDir()}
	var f Filters
	program := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 3)
	s := profiled("mount")
	of := f.Use(rt, s)
	if of == "" || len(s.Annotations) > 0 {
		t.Fatalf("an unknown profile: %q, annotations %v", of, s.Annotations)
	}
	translated(t, rt, "a", program)
	f.Learn(rt, "a", of)

	s = profiled("mount")
	again := f.Use(rt, s)
	if want := base64.StdEncoding.EncodeToString(program); again != "" || s.Annotations[filterAnnotation] != want {
		t.Errorf("a known profile: to be learned %q, annotations %v", again, s.Annotations)
	}
	if s.Linux.Seccomp == nil || len(s.Linux.Seccomp.Syscalls) != 1 {
		t.Error("the rules are gone, for runtimes that do not know the annotation")
	}
	for what, c := range map[string]struct {
		rt     Runtime
		change func(*specs.Spec)
		learns bool
	}{
		"another call":        {rt, func(s *specs.Spec) { s.Linux.Seccomp.Syscalls[0].Names[0] = "umount2" }, true},
		"another action":      {rt, func(s *specs.Spec) { s.Linux.Seccomp.DefaultAction = specs.ActKill }, true},
		"another crun":        {Runtime{Path: "/opt/crun", Root: rt.Root}, func(*specs.Spec) {}, true},
		"no profile":          {rt, func(s *specs.Spec) { s.Linux.Seccomp = nil }, false},
		"a listener":          {rt, func(s *specs.Spec) { s.Linux.Seccomp.ListenerPath = "/run/x.sock" }, false},
		"runc":                {Runtime{Path: "/usr/bin/runc", Root: rt.Root}, func(*specs.Spec) {}, false},
		"a kernel of its own": {Runtime{Path: "/usr/bin/runsc", Root: rt.Root}, func(*specs.Spec) {}, false},
		"a device plugin's": {rt, func(s *specs.Spec) {
			s.Annotations = map[string]string{filterAnnotation: "Zg=="}
		}, false},
	} {
		s := profiled("mount")
		c.change(s)
		before := s.Annotations[filterAnnotation]
		of := f.Use(c.rt, s)
		if (of != "") != c.learns || s.Annotations[filterAnnotation] != before {
			t.Errorf("%s: to be learned %t, annotation %q", what, of != "", s.Annotations[filterAnnotation])
		}
	}
}

// What is no filter of the kernel's is not kept.
func TestFiltersRefuse(t *testing.T) {
	rt := Runtime{Path: "/usr/bin/crun", Root: t.TempDir()}
	for what, program := range map[string][]byte{
		"nothing": {}, "part of an instruction": make([]byte, 12), "too long": make([]byte, filterMax+instruction),
	} {
		var f Filters
		of := f.Use(rt, profiled("mount"))
		translated(t, rt, "a", program)
		f.Learn(rt, "a", of)
		f.Learn(rt, "gone", of)
		if len(f.known) != 0 {
			t.Errorf("%s is kept", what)
		}
	}
}

// Users who make many profiles, by capabilities that they drop, take no memory for it,
// and a profile that is in use stays.
func TestFiltersAreBounded(t *testing.T) {
	rt := Runtime{Path: "/usr/bin/crun", Root: t.TempDir()}
	var f Filters
	translated(t, rt, "a", make([]byte, instruction))
	f.Learn(rt, "a", f.Use(rt, profiled("used")))
	for i := range 3 * filtersKept {
		f.Learn(rt, "a", f.Use(rt, profiled(fmt.Sprint("call", i))))
		if f.Use(rt, profiled("used")) != "" {
			t.Fatalf("forgotten after %d others", i)
		}
	}
	if len(f.known) != filtersKept {
		t.Errorf("%d are kept", len(f.known))
	}
}
