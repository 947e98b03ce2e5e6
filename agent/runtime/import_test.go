package runtime

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// IMG: archives of both forms, compressed or not, by the socket of images.
func TestImportForms(t *testing.T) {
	g := newRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.r.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	img := busyboxImage(t)
	docker := filepath.Join(g.dir, "docker.tar.gz")
	tag, err := name.NewTag("example.test/docker:1")
	if err != nil {
		t.Fatal(err)
	}
	compressed(t, docker, func(w io.Writer) error { return tarball.Write(tag, img, w) })
	dir := filepath.Join(g.dir, "layout")
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	err = l.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "example.test/oci:1"}))
	if err != nil {
		t.Fatal(err)
	}
	oci := filepath.Join(g.dir, "oci.tgz")
	compressed(t, oci, func(w io.Writer) error {
		archive := tar.NewWriter(w)
		if err := archive.AddFS(os.DirFS(dir)); err != nil {
			return err
		}
		return archive.Close()
	})
	client := &http.Client{
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(g.cfg.RunDir, ImagesSocket))
		}}}
	defer client.CloseIdleConnections()
	eventually(t, "the socket is served", func() bool {
		c, err := net.Dial("unix", filepath.Join(g.cfg.RunDir, ImagesSocket))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	for _, c := range []struct {
		file, want string
		code       int
	}{
		{docker, "example.test/docker:1", http.StatusOK},
		{oci, "example.test/oci:1", http.StatusOK},
		{filepath.Join(g.dir, "missing.tar"), "no such file", http.StatusUnprocessableEntity},
		{"relative.tar", "must be absolute", http.StatusUnprocessableEntity},
	} {
		resp, err := client.Post("http://shoal/import?path="+url.QueryEscape(c.file), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %s %s, %v", c.file, resp.Status, body, err)
		}
	}
	for _, n := range []string{"example.test/docker:1", "example.test/oci:1"} {
		if _, err := g.r.images.Find(n); err != nil {
			t.Error(err)
		}
	}
}

func compressed(t *testing.T, file string, write func(io.Writer) error) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gzip.NewWriter(f)
	if err := write(w); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
