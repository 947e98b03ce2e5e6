package image

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestSlowTransferEnds: a registry that sends a byte now and then does not
// keep a pull for ever; a slow but steady one does.
func TestSlowTransferEnds(t *testing.T) {
	for name, x := range map[string]struct {
		chunk int
		want  error
	}{"loris": {1, errTooSlow}, "steady": {16 << 10, nil}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pr, pw := io.Pipe()
				defer pw.Close()
				f := paced(
					remotes.FetcherFunc(func(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
						return pr, nil
					}), nil)
				body, err := f.Fetch(t.Context(),
					ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: 1 << 30,
						Digest: digest.FromString("x")})
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					for range 60 {
						if _, err := pw.Write(make([]byte, x.chunk)); err != nil {
							return
						}
						time.Sleep(10 * time.Second)
					}
					pw.Close()
				}()
				_, err = io.Copy(io.Discard, body)
				if !errors.Is(err, x.want) {
					t.Errorf("got %v", err)
				}
				body.Close()
				pr.Close()
				<-done
			})
		})
	}
}

func TestArchiveLimits(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range maxArchiveEntries + 1 {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	g := guarded(&b)
	if _, err := io.Copy(io.Discard, g); err == nil || !strings.Contains(err.Error(), "entries") {
		t.Errorf("got %v", err)
	}
	g.Close()
	g = guarded(bytes.NewReader(layer(t, &tar.Header{Name: strings.Repeat("n/", maxArchiveName)})))
	if _, err := io.Copy(io.Discard, g); err == nil || !strings.Contains(err.Error(), "name") {
		t.Errorf("got %v", err)
	}
	g.Close()
	whole := layer(t, &tar.Header{Name: "a", Size: 3000}, &tar.Header{Name: "b"})
	g = guarded(bytes.NewReader(whole))
	if got, err := io.ReadAll(g); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes of %d, %v", len(got), len(whole), err)
	}
	g.Close()
}
