package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/cni/nstest"
)

// TestCleanupWithoutKey: a node whose records cannot be read any more is cleaned up
// all the same.
func TestCleanupWithoutKey(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root cleans up")
	}
	cfg := cleanupConfig(t)
	if err := os.WriteFile(cfg.CheckpointKey(), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openStores(&cfg, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("the key is taken")
	}
	err := nstest.In(nstest.New(t), func() error {
		return cleanup(t.Context(), &cfg, cleanupOptions{purge: true}, slog.New(slog.DiscardHandler))
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.DataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data directory is left: %v", err)
	}
}

// TestCleanupBesideAnother: a node whose names another agent has taken is cleaned up
// but for the network of those names.
func TestCleanupBesideAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root cleans up")
	}
	cfg, log := cleanupConfig(t), slog.New(slog.DiscardHandler)
	sandboxes := filepath.Join(cfg.DataDir, "sandboxes")
	if err := os.MkdirAll(sandboxes, 0o700); err != nil {
		t.Fatal(err)
	}
	record := []byte(`{"ID":"left","Networked":true,"Config":""}`)
	data := fmt.Appendf(nil, "%08x\n%s", crc32.ChecksumIEEE(record), record)
	if err := os.WriteFile(filepath.Join(sandboxes, "left.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	err := nstest.In(nstest.New(t), func() error {
		another, err := network.Claim(cfg.Bridge, cfg.NFTable)
		if err != nil {
			return err
		}
		defer another.Close()
		return cleanup(t.Context(), &cfg, cleanupOptions{purge: true}, log)
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.DataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data directory is left: %v", err)
	}
}

// TestCleanupAroundMount: what somebody mounted into the data directory is named, and
// all else goes.
func TestCleanupAroundMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root cleans up")
	}
	cfg, log := cleanupConfig(t), slog.New(slog.DiscardHandler)
	clean := func(purge bool) error {
		return nstest.In(nstest.New(t), func() error {
			return cleanup(t.Context(), &cfg, cleanupOptions{purge: purge}, log)
		})
	}
	if err := clean(false); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(cfg.DataDir, "backup", "disk")
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("disk", at, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	mine := filepath.Join(at, "mine")
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cfg.CheckpointDir(), 0o700); err != nil { // as an agent that ran
		t.Fatal(err)
	}
	if err := clean(false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("what somebody mounted is gone without --purge: %v", err)
	}
	if err := clean(true); err == nil || !strings.Contains(err.Error(), "mounted at "+at) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(cfg.DataDir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
	if err := unix.Unmount(at, 0); err != nil {
		t.Fatal(err)
	}
	if err := clean(true); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.DataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data directory is left: %v", err)
	}
}

// TestCleanupOfAnotherVersion: neither a field that this version does not know nor a
// value that it does not take keeps what an agent made.
func TestCleanupOfAnotherVersion(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root cleans up")
	}
	cfg := cleanupConfig(t)
	file := filepath.Join(filepath.Dir(cfg.DataDir), "agent.yaml")
	cfg.ContainerLogMaxFiles = 1
	text, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, "colour: blue\n"...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	err = command([]string{"--config", file}).ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("an agent starts with an unknown field: %v", err)
	}
	err = nstest.In(nstest.New(t), func() error {
		return command([]string{"cleanup", "--config", file, "--purge", "--grace", "1s"}).ExecuteContext(t.Context())
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(cfg.DataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the data directory is left: %v", err)
	}
}

// cleanupConfig is that of an agent that ran, on directories and with names of the
// test's own.
func cleanupConfig(t *testing.T) config.Config {
	t.Helper()
	cfg, dir := config.Default(), t.TempDir()
	cfg.NodeName = "n"
	cfg.DataDir, cfg.RootDir, cfg.RunDir = filepath.Join(dir, "data"), filepath.Join(dir, "root"), filepath.Join(dir, "run")
	cfg.PodLogsDir, cfg.ContainerLogsDir = filepath.Join(dir, "logs"), "-"
	cfg.CgroupRoot, cfg.Bridge, cfg.NFTable = "/shoal-"+filepath.Base(dir), "shoalclean0", "shoal-clean"
	if err := os.MkdirAll(cfg.CheckpointDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestPodGrace: a container has its pod's grace period, at most what the cleanup gives.
func TestPodGrace(t *testing.T) {
	for said, want := range map[string]time.Duration{
		"5": 5 * time.Second, "0": 0, "60": time.Minute, "3600": time.Minute, "-3": 0,
		"9223372036854775807": time.Minute, "soon": 30 * time.Second, "": 30 * time.Second,
	} {
		c := &criv1.Container{Annotations: map[string]string{launch.AnnotationPodGrace: said}}
		if got := podGrace(c, time.Minute); got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
	if got := podGrace(&criv1.Container{}, time.Second); got != time.Second {
		t.Errorf("without one: %s", got)
	}
}

// TestCleanupOfMountedRoot: a disk of its own for pods' directories is left, empty.
func TestCleanupOfMountedRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root cleans up")
	}
	cfg := cleanupConfig(t)
	if err := os.MkdirAll(cfg.RootDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("disk", cfg.RootDir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(cfg.RootDir, unix.MNT_DETACH) })
	if err := nstest.In(nstest.New(t), func() error {
		return cleanup(t.Context(), &cfg, cleanupOptions{purge: true}, slog.New(slog.DiscardHandler))
	}); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(cfg.RootDir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}
