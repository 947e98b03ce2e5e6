package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The test's program is started again as the one that becomes crun, and as crun.
const roleEnv = "SHOAL_HYBRID_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "hybrid":
		os.Setenv(roleEnv, "crun")
		fmt.Println(become(os.Args[1], os.Args[2:]))
		os.Exit(1)
	case "crun":
		var st unix.Statfs_t
		err := unix.Statfs("/proc/self/exe", &st)
		fmt.Println("read-only:", err == nil && st.Flags&unix.ST_RDONLY != 0, os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestBecome checks that crun gets its arguments, and is a program that nobody can write
// to: else it would start itself once more. A script that stands for it runs as well.
func TestBecome(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "crun")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho script \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for crun, want := range map[string]string{
		self: "read-only: true [--root r list]", script: "script --root r list", "/nowhere/crun": "run /nowhere/crun: no such file or directory",
	} {
		cmd := exec.Command(self, crun, "--root", "r", "list")
		cmd.Env = append(os.Environ(), roleEnv+"=hybrid")
		out, _ := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); got != want {
			t.Errorf("%s gave %q, want %q", crun, got, want)
		}
	}
}
