package main

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/network"
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
		return cleanup(t.Context(), &cfg, true, slog.New(slog.DiscardHandler))
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
		return cleanup(t.Context(), &cfg, true, log)
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
