package source

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestReadAgain: a manifest changes of which the kernel does not tell the watch of its
// directory, as on a network's file system: here through another name of the file.
func TestReadAgain(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "web.yaml")
	write := func(image string) {
		t.Helper()
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: " + image + "}]}\n"
		if err := os.WriteFile(elsewhere, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	if err := os.Link(elsewhere, filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	m := newManifests(t)
	m.static.Dir, m.static.Every = dir, 20*time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.static.Run(ctx) }()
	m.handler.await(t, "web-n1 runs")
	time.Sleep(2 * quietFor) // the watch was there before the change
	m.handler.heard()
	write("another")
	m.handler.await(t, "web-n1 runs")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
