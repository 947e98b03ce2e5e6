package server

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/shoal-project/shoal/agent/record"
)

// rotateEvery is how often sizes of logs are looked at: the kernel tells of
// every write, which would cost more.
const rotateEvery = 10 * time.Second

// Rotator keeps the logs of running containers below a size.
type Rotator struct {
	Pods Pods
	// Reopen makes the container's monitor open its log anew.
	Reopen   func(ctx context.Context, id string) error
	MaxBytes int64
	MaxFiles int
	Log      *slog.Logger
}

// Run rotates until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rotateEvery):
		}
		for _, p := range r.Pods.List() {
			found, ok := r.Pods.Find(p.Namespace, p.Name)
			if !ok {
				continue
			}
			for i := range found.Observed.Containers {
				c := &found.Observed.Containers[i]
				if c.State == record.Running && c.LogPath != "" {
					r.rotate(ctx, c)
				}
			}
		}
	}
}

func (r *Rotator) rotate(ctx context.Context, c *record.Observation) {
	st, err := os.Stat(c.LogPath)
	if err != nil || st.Size() < r.MaxBytes {
		return
	}
	old, err := filepath.Glob(c.LogPath + ".*")
	if err != nil {
		return
	}
	sort.Strings(old)
	for len(old) > r.MaxFiles-2 {
		os.Remove(old[0])
		old = old[1:]
	}
	aside := c.LogPath + "." + time.Now().Format("20060102-150405")
	if err := os.Rename(c.LogPath, aside); err != nil {
		r.Log.Warn("a container log cannot be rotated", "log", c.LogPath, "error", err)
		return
	}
	if err := r.Reopen(ctx, c.ID); err != nil {
		// It goes on into the old file: give it its name back.
		r.Log.Warn("a container log cannot be reopened", "log", c.LogPath, "error", err)
		if err := os.Rename(aside, c.LogPath); err != nil {
			r.Log.Warn("a container log has lost its name", "log", aside, "error", err)
		}
	}
}
