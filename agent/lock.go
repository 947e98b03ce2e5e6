package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/process"
)

// lockData takes the data directory for this process, until the file is closed.
func lockData(c *config.Config) (*os.File, error) {
	f, err := process.Lock(c.DataDir)
	var other *process.InUse
	if errors.As(err, &other) {
		return nil,
			fmt.Errorf(
				"data directory %s is in use by another agent (pid %s): stop it, or give this one its own --data-dir",
				c.DataDir, other.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return f, nil
}
