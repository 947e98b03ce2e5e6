package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"syscall"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/process"
)

// lockData takes the data directory for this process, until the file is closed.
func lockData(c *config.Config) (*os.File, error) {
	f, err := process.Lock(c.DataDir)
	return f, lockError(c, err)
}

// lockToEnd is lockData for who ends what runs, which must be possible when the disk takes
// nothing any more.
func lockToEnd(c *config.Config, log *slog.Logger) (*os.File, error) {
	f, err := lockData(c)
	if errors.Is(err, syscall.EROFS) {
		log.Warn("the data directory's disk is read-only: what runs is ended, files stay", "dir", c.DataDir)
		f, err = process.LockUnwritable(c.DataDir)
		err = lockError(c, err)
	}
	return f, err
}

func lockError(c *config.Config, err error) error {
	var other *process.InUse
	if errors.As(err, &other) {
		return fmt.Errorf(
			"data directory %s is in use by another agent (pid %s): stop it, or give this one its own --data-dir",
			c.DataDir, other.PID)
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}
