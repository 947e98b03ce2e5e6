package runtime

import (
	"bytes"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// basicAuth is a registry that wants a user name and password.
func basicAuth(t *testing.T) (host string) {
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, pass, _ := r.BasicAuth(); user != "me" || pass != "secret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		reg.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// push uploads an image by the distribution protocol.
func push(t *testing.T, ref string, img v1.Image) v1.Hash {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + tag.RegistryStr() + "/v2/" + tag.RepositoryStr()
	send := func(method, url, mediaType string, body []byte) {
		req, err := http.NewRequest(method, url, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("me", "secret")
		req.Header.Set("Content-Type", mediaType)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, url, resp.Status)
		}
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		blob, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		send(http.MethodPost, base+"/blobs/uploads/?digest="+d.String(), "application/octet-stream", blob)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	send(http.MethodPost, base+"/blobs/uploads/?digest="+id.String(), "application/octet-stream", config)
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	kind, err := img.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	send(http.MethodPut, base+"/manifests/"+tag.TagStr(), string(kind), manifest)
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Covers IMG-5, IMG-16 and IMG-23: by tag, by digest, with credentials.
func TestPull(t *testing.T) {
	g := newRig(t)
	host := basicAuth(t)
	img := busyboxImage(t)
	digest := push(t, host+"/team/box:v1", img)
	ctx := context.Background()
	tag, byDigest := &criv1.ImageSpec{Image: host + "/team/box:v1"}, &criv1.ImageSpec{Image: host +
		"/team/box@" + digest.String()}
	auth := &criv1.AuthConfig{Username: "me", Password: "secret"}

	_, err := g.r.PullImage(ctx, tag, nil, nil)
	if err == nil ||
		!strings.Contains(err.Error(),
			`failed to pull and unpack image "`+tag.Image+`": failed to resolve reference`) ||
		!strings.Contains(err.Error(), "authorization failed") {
		t.Errorf("pull without credentials: %v", err)
	}
	_, err = g.r.PullImage(ctx, &criv1.ImageSpec{Image: host + "/team/none:v1"}, auth, nil)
	if status.Code(err) != codes.NotFound || !strings.HasSuffix(err.Error(), "/team/none:v1: not found") {
		t.Errorf("pull of what is not there: %v", err)
	}
	foreign, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	foreign = foreign.DeepCopy()
	foreign.Architecture = "s390x"
	other, err := mutate.ConfigFile(img, foreign)
	if err != nil {
		t.Fatal(err)
	}
	push(t, host+"/team/other:v1", other)
	if _, err = g.r.PullImage(ctx, &criv1.ImageSpec{Image: host + "/team/other:v1"}, auth, nil); err == nil ||
		!strings.Contains(err.Error(), "no match for platform in manifest") {
		t.Errorf("pull for another platform: %v", err)
	}

	id, err := g.r.PullImage(ctx, tag, auth, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := g.r.PullImage(ctx, byDigest, auth, nil)
	if err != nil || again != id {
		t.Errorf("pull by digest: %s, %v; by tag it was %s", again, err, id)
	}
	st, err := g.r.ImageStatus(ctx, byDigest, true)
	if err != nil || st.Image.GetId() != id || len(st.Image.RepoTags) != 1 ||
		len(st.Image.RepoDigests) != 1 || st.Image.Size == 0 {
		t.Errorf("status: %v, %v", st, err)
	}
	config := shell("c", "cat hello")
	config.Image = &criv1.ImageSpec{Image: id}
	pod := g.run(g.podConfig())
	c := g.start(pod, config)
	if s := g.exited(c); s.ExitCode != 0 || g.log(c) != "hello\n" || s.ImageRef != byDigest.Image {
		t.Errorf("container: %v, log %q", s, g.log(c))
	}
	// The container keeps its layers when the image goes.
	if err := g.r.RemoveImage(ctx, tag); err != nil {
		t.Fatal(err)
	}
	if st, err := g.r.ImageStatus(ctx, tag, false); err != nil || st.Image != nil {
		t.Errorf("removed image: %v, %v", st, err)
	}
	if err := g.r.RemovePodSandbox(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if bytes, _, err := g.r.images.Usage(ctx); err != nil || bytes != 0 {
		t.Errorf("%d bytes of layers are left: %v", bytes, err)
	}
}

func TestImportIsRepeatable(t *testing.T) {
	g := newRig(t)
	g.importImage()
	first, err := g.r.images.Find(testImage)
	if err != nil {
		t.Fatal(err)
	}
	g.reopen()
	if err := os.WriteFile(filepath.Join(g.cfg.ImportDir, "bad.tar"), []byte("not an archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := g.r.images.ImportDir(context.Background(), g.cfg.ImportDir); err == nil ||
		!strings.Contains(err.Error(), "bad.tar") {
		t.Errorf("a bad archive: %v", err)
	}
	again, err := g.r.images.Find(first.ID[7:19])
	if err != nil || again.ID != first.ID {
		t.Errorf("found %v by its short ID, %v", again, err)
	}
}

func TestDamagedStateIsMovedAside(t *testing.T) {
	g := newRig(t)
	g.importImage()
	if err := g.r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	db := filepath.Join(g.cfg.DataDir, "image", "meta.db")
	info, err := os.Stat(db)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(db, make([]byte, info.Size()), 0o600); err != nil {
		t.Fatal(err)
	}
	record := filepath.Join(g.cfg.DataDir, "containers", "broken.json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	g.open()
	aside, _ := filepath.Glob(filepath.Join(g.cfg.DataDir, "image.damaged-*"))
	if len(aside) != 1 {
		t.Errorf("moved aside: %v", aside)
	}
	if _, err := os.Stat(record + ".damaged"); err != nil {
		t.Error(err)
	}
	if err := g.r.images.ImportDir(context.Background(), g.cfg.ImportDir); err != nil {
		t.Fatal(err)
	}
	pod := g.run(g.podConfig())
	if s := g.exited(g.start(pod, shell("c", "exit 0"))); s.ExitCode != 0 {
		t.Errorf("container after the repair: %v", s)
	}
}

// A reboot: processes and the run directory's mounts are gone.
func TestReboot(t *testing.T) {
	g := newRig(t)
	g.importImage()
	pod := g.run(g.podConfig())
	id := g.start(pod, shell("c", forever))
	if err := g.r.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	c, err := g.r.containers.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	monitor, err := os.FindProcess(c.Monitor)
	if err != nil {
		t.Fatal(err)
	}
	if err := monitor.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.r.cgroups.Kill(g.cfg.CgroupRoot); err != nil {
		t.Fatal(err)
	}
	clear(g.net.up)
	if err := unmountBelow(g.cfg.RunDir); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(g.cfg.RunDir); err != nil {
		t.Fatal(err)
	}
	g.open()
	if s := g.exited(id); s.Reason != "Unknown" || s.ExitCode != 255 {
		t.Errorf("container: %v", s)
	}
	if p, err := g.r.PodSandboxStatus(context.Background(), pod, false); err != nil ||
		p.Status.State != criv1.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("sandbox: %v, %v", p, err)
	}
	if err := g.r.RemovePodSandbox(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	if s := g.exited(g.start(g.run(g.podConfig()), shell("c", "exit 0"))); s.ExitCode != 0 {
		t.Errorf("container after the reboot: %v", s)
	}
}
