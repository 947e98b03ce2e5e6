package runtime

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Somebody deletes what the runtime has in its run directory: it ends, to be started again.
func TestRunDirDeleted(t *testing.T) {
	for _, name := range []string{"containers/exits", "sandboxes", CRISocket} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- g.r.Run(ctx) }()
			for gone(filepath.Join(g.cfg.RunDir, ImagesSocket)) {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond) // it watches
			if err := os.RemoveAll(filepath.Join(g.cfg.RunDir, name)); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err == nil || !strings.Contains(err.Error(), "deleted by somebody else") {
					t.Errorf("%v", err)
				}
			case <-time.After(10 * time.Second):
				cancel()
				t.Errorf("it runs on, and ends with: %v", <-ended)
			}
		})
	}
}
