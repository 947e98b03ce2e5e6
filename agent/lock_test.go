package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/config"
)

func TestSecondAgent(t *testing.T) {
	c := config.Default()
	c.DataDir = t.TempDir()
	l, err := lockData(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockData(&c); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("second lock: %v", err)
	}
	l.Close()
	l, err = lockData(&c)
	if err != nil {
		t.Errorf("after the first ended: %v", err)
	} else {
		l.Close()
	}
}

// What runs on a node can be ended when its disk is read-only, but only by one at a time.
func TestLockOnReadOnlyDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	c := &config.Config{DataDir: t.TempDir()}
	if err := unix.Mount("disk", c.DataDir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(c.DataDir, unix.MNT_DETACH) })
	log := slog.New(slog.DiscardHandler)
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", c.DataDir, "", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	if _, err := lockToEnd(c, log); err == nil {
		t.Error("a directory that no agent had is locked")
	}
	remount(0)
	lock, err := lockData(c)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	remount(unix.MS_RDONLY)

	if _, err := lockData(c); !errors.Is(err, syscall.EROFS) || !strings.Contains(err.Error(), c.DataDir) {
		t.Errorf("an agent starts: %v", err)
	}
	if lock, err = lockToEnd(c, log); err != nil {
		t.Fatal(err)
	}
	if _, err := lockToEnd(c, log); err == nil || !strings.Contains(err.Error(), "in use by another agent") {
		t.Errorf("two have it: %v", err)
	}
	lock.Close()
	if _, err := os.Stat(filepath.Join(c.DataDir, "lock")); err != nil {
		t.Error(err)
	}
}
