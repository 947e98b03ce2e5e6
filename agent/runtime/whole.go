package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-project/shoal/agent/dirwatch"
)

// whileWhole returns nil at the end of ctx, and before an error when somebody deletes what
// the runtime made in RunDir as it began: no container would start any more. Who runs the
// agent starts it again then, and it is made anew. Containers run on.
func (r *Runtime) whileWhole(ctx context.Context) error {
	events, err := dirwatch.New(r.cfg.Log)
	if err != nil {
		r.cfg.Log.Warn("nothing tells when somebody deletes the run directory", "dir", r.cfg.RunDir, "err", err)
		<-ctx.Done()
		return nil
	}
	defer events.Close()
	exits := filepath.Join(r.containerRun(), "exits")
	needed := []string{r.cfg.RunDir, r.containerRun(), r.sandboxRun(), exits, filepath.Join(r.cfg.RunDir, CRISocket)}
	// Of what is in containers, which come and go, only the exits matter.
	for _, dir := range []string{r.cfg.RunDir, exits} {
		if err := events.Add(dir); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events.Errors: // some were lost
			for _, name := range needed {
				if gone(name) {
					return deleted(name)
				}
			}
		case e := <-events.Events:
			if slices.Contains(needed, e.Name) && gone(e.Name) && ctx.Err() == nil {
				return deleted(e.Name)
			}
		}
	}
}

func gone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func deleted(name string) error {
	return fmt.Errorf("%s was deleted by somebody else: the agent has to start again to make it anew", name)
}
