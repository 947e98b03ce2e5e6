package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestGuard checks that a program is run from a mount that nothing is written through, that
// what is installed in its place later is run then, and that all ends with Close.
func TestGuard(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "crun")
	install := func(says string) {
		t.Helper()
		if err := os.WriteFile(program+".new", []byte("#!/bin/sh\necho "+says+" \"$@\"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	install("old")
	through, guarded, err := guard(program)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(through) != "crun" {
		t.Errorf("%s is not known for what it is", through)
	}
	if f, err := os.OpenFile(through, os.O_WRONLY, 0); err == nil {
		f.Close()
		t.Error("it can be written to")
	}
	for _, version := range []string{"old", "new"} {
		install(version)
		out, err := exec.Command(through, "list").CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != version+" list" {
			t.Errorf("it says %q, %v, want %q", got, err, version+" list")
		}
	}
	if err := guarded.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(through); err == nil {
		t.Error("it is still there after Close")
	}
	if through, _, err := guard(filepath.Join(dir, "missing")); err == nil {
		t.Errorf("a program that is missing is run as %s", through)
	}
}

// TestGuardNoExec: a program runs though nothing of the mount that it lies on may.
func TestGuardNoExec(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil {
			t.Error(err)
		}
	})
	program := filepath.Join(dir, "crun")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho runs\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !noExec(program) {
		t.Error("its mount is taken for one that programs run from")
	}
	through, guarded, err := guard(program)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(through).CombinedOutput(); err != nil || string(out) != "runs\n" {
		t.Errorf("it says %q, %v", out, err)
	}
	if err := guarded.Close(); err != nil {
		t.Error(err)
	}
}
