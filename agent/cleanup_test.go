package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/cni/nstest"
)

// TestCleanupWithoutKey: a node whose records cannot be read any more is cleaned up
// all the same.
func TestCleanupWithoutKey(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root cleans up")
	}
	cfg, dir := config.Default(), t.TempDir()
	cfg.NodeName = "n"
	cfg.DataDir, cfg.RootDir, cfg.RunDir = filepath.Join(dir, "data"), filepath.Join(dir, "root"), filepath.Join(dir, "run")
	cfg.PodLogsDir, cfg.ContainerLogsDir = filepath.Join(dir, "logs"), "-"
	cfg.CgroupRoot, cfg.Bridge, cfg.NFTable = "/shoal-"+filepath.Base(dir), "shoalclean0", "shoal-clean"
	if err := os.MkdirAll(cfg.CheckpointDir(), 0o700); err != nil {
		t.Fatal(err)
	}
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
