package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/shoal-project/shoal/agent/cgroup"
	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/cni/podnet"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const testImage = "example.test/busybox:1"

// fakeNetwork gives every pod the same address and remembers who has one.
type fakeNetwork struct {
	mu sync.Mutex
	up map[string]bool
}

func (n *fakeNetwork) Name() string { return "fake" }

func (n *fakeNetwork) Setup(_ context.Context, s podnet.Sandbox) ([]netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.up[s.ID] = true
	return []netip.Addr{netip.MustParseAddr("10.1.2.3")}, nil
}

func (n *fakeNetwork) Teardown(_ context.Context, s podnet.Sandbox) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.NetNS != "" && n.up[s.ID] && !netns.Exists(s.NetNS) {
		return fmt.Errorf("the network namespace of %s is gone before its network", s.ID)
	}
	delete(n.up, s.ID)
	return nil
}

func (n *fakeNetwork) Status(context.Context) error { return nil }

// rig is a runtime on directories and control groups of its own.
type rig struct {
	t   testing.TB
	r   *Runtime
	cfg Config
	dir string
	net *fakeNetwork
}

func newRig(t testing.TB) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("containers need root: run the tests as root")
	}
	for _, p := range []string{"conmon", "busybox"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%s is not installed: run `make setup`", p)
		}
	}
	dir, err := os.MkdirTemp("", "rt")
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, dir: dir, net: &fakeNetwork{up: map[string]bool{}}}
	// On a machine with systemd and cgroup v2 the tests pass with either driver.
	driver := cgroup.Driver(os.Getenv("SHOAL_TEST_CGROUP_DRIVER"))
	g.cfg = Config{
		DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), ImportDir: filepath.Join(dir, "images"),
		CgroupRoot: driver.Child("", filepath.Base(dir)), Driver: driver, Network: g.net, Pause: pauseProgram(t, dir),
		Hybrid: hybridProgram(t, dir),
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	g.open()
	t.Cleanup(g.clean)
	return g
}

// pauseProgram builds shoal-pause, but on a machine without Go, which has it.
func pauseProgram(t testing.TB, dir string) string {
	t.Helper()
	if have := os.Getenv("SHOAL_TEST_PAUSE"); have != "" {
		return have
	}
	path := filepath.Join(dir, "shoal-pause")
	if out, err := exec.Command("go", "build", "-o", path,
		"github.com/shoal-project/shoal/agent/pause").CombinedOutput(); err != nil {
		t.Fatalf("build shoal-pause: %v\n%s", err, out)
	}
	return path
}

// hybridProgram builds shoal-hybrid; on a machine without Go the tests go on with
// the shell script, or with the one that the environment names.
func hybridProgram(t testing.TB, dir string) string {
	t.Helper()
	if have := os.Getenv("SHOAL_TEST_HYBRID"); have != "" || os.Getenv("SHOAL_TEST_PAUSE") != "" {
		return have
	}
	path := filepath.Join(dir, "shoal-hybrid")
	if out, err := exec.Command("go", "build", "-o", path,
		"github.com/shoal-project/shoal/agent/oci/shoal-hybrid").CombinedOutput(); err != nil {
		t.Fatalf("build shoal-hybrid: %v\n%s", err, out)
	}
	return path
}

func (g *rig) open() {
	g.t.Helper()
	r, err := Open(context.Background(), g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	r.importsDone() // most tests do not run it
	g.r = r
}

// reopen is what a new process does after the old one was killed: nothing of
// the old one's memory is used.
func (g *rig) reopen() {
	g.t.Helper()
	if err := g.r.Close(context.Background()); err != nil {
		g.t.Fatal(err)
	}
	g.open()
}

// clean removes everything and proves that nothing is left.
func (g *rig) clean() {
	if err := g.r.Cleanup(context.Background()); err != nil {
		g.t.Error(err)
	}
	if err := g.r.Close(context.Background()); err != nil {
		g.t.Error(err)
	}
	if g.r.cgroups.Exists(g.cfg.CgroupRoot) {
		g.t.Error("control groups are left")
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	if strings.Contains(string(mounts), g.dir+"/") {
		g.t.Error("mounts are left")
	}
	for _, d := range []string{"data/containers", "data/sandboxes", "run/containers", "run/sandboxes", "run/runc"} {
		if _, err := os.Stat(filepath.Join(g.dir, d)); err == nil {
			g.t.Errorf("%s is left", d)
		}
	}
	if err := os.RemoveAll(g.dir); err != nil {
		g.t.Error(err)
	}
}

// busyboxImage is a small image of the static busybox.
func busyboxImage(t testing.TB) v1.Image {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	bin, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	add := func(h tar.Header, body []byte) {
		h.Size = int64(len(body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin/", "etc/", "tmp/", "data/"} {
		add(tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, bin)
	for _, l := range strings.Fields("sh sleep cat echo id ls sed env hostname dd kill true false printf stty trap mount ps touch head tail nc grep") {
		add(tar.Header{Name: "bin/" + l, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	add(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/:/bin/sh\nweb:x:101:102::/:/bin/sh\n"))
	add(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nweb:x:102:\nextra:x:103:web\n"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	second, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		_ = w.WriteHeader(&tar.Header{Name: "data/hello", Typeflag: tar.TypeReg, Mode: 0o644, Size: 6})
		_, _ = w.Write([]byte("hello\n"))
		_ = w.Close()
		return io.NopCloser(&b), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer, second)
	if err != nil {
		t.Fatal(err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", goArch()
	cf.Config = v1.Config{Entrypoint: []string{"/bin/sh", "-c"}, Cmd: []string{"echo from the image"},
		Env: []string{"FROM_IMAGE=yes", "PATH=/bin"}, WorkingDir: "/data", Volumes: map[string]struct{}{"/data": {}}}
	img, err = mutate.ConfigFile(img, cf)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// importImage puts the image on the node by an archive.
func (g *rig) importImage() {
	g.t.Helper()
	if err := os.MkdirAll(g.cfg.ImportDir, 0o755); err != nil {
		g.t.Fatal(err)
	}
	ref, err := name.NewTag(testImage)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := tarball.WriteToFile(filepath.Join(g.cfg.ImportDir, "busybox.tar"), ref, busyboxImage(g.t)); err != nil {
		g.t.Fatal(err)
	}
	if err := g.r.images.ImportDir(context.Background(), g.cfg.ImportDir); err != nil {
		g.t.Fatal(err)
	}
}

// podConfig is a pod named after the test.
func (g *rig) podConfig() *criv1.PodSandboxConfig {
	return &criv1.PodSandboxConfig{
		Metadata: &criv1.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "uid-1"}, Hostname: "pod-host",
		LogDirectory: filepath.Join(g.dir, "logs"), Labels: map[string]string{"app": "test"},
		DnsConfig: &criv1.DNSConfig{Servers: []string{"10.96.0.10"}, Searches: []string{"default.svc"},
			Options: []string{"ndots:5"}},
		Linux: &criv1.LinuxPodSandboxConfig{
			SecurityContext: &criv1.LinuxSandboxSecurityContext{
				NamespaceOptions: &criv1.NamespaceOption{Pid: criv1.NamespaceMode_CONTAINER}}},
	}
}

func (g *rig) run(config *criv1.PodSandboxConfig) string {
	g.t.Helper()
	id, err := g.r.RunPodSandbox(context.Background(), config, "")
	if err != nil {
		g.t.Fatal(err)
	}
	return id
}

// shell is a container that runs a script.
func shell(name, script string) *criv1.ContainerConfig {
	return &criv1.ContainerConfig{
		Metadata: &criv1.ContainerMetadata{Name: name}, Image: &criv1.ImageSpec{Image: testImage},
		Args: []string{script}, LogPath: name + "/0.log",
		Linux: &criv1.LinuxContainerConfig{SecurityContext: &criv1.LinuxContainerSecurityContext{
			NamespaceOptions: &criv1.NamespaceOption{Pid: criv1.NamespaceMode_CONTAINER},
		}},
	}
}

func (g *rig) start(sandbox string, config *criv1.ContainerConfig) string {
	g.t.Helper()
	id, err := g.r.CreateContainer(context.Background(), sandbox, config, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := g.r.StartContainer(context.Background(), id); err != nil {
		g.t.Fatal(err)
	}
	return id
}

func (g *rig) status(id string) *criv1.ContainerStatus {
	g.t.Helper()
	s, err := g.r.ContainerStatus(context.Background(), id, false)
	if err != nil {
		g.t.Fatal(err)
	}
	return s.Status
}

// exited waits for the container's end.
func (g *rig) exited(id string) *criv1.ContainerStatus {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := g.r.containers.Wait(ctx, id); err != nil {
		g.t.Fatalf("container does not end: %v", err)
	}
	return g.status(id)
}

// log is what the container wrote, without times and stream names.
func (g *rig) log(id string) string {
	g.t.Helper()
	b, err := os.ReadFile(g.status(id).LogPath)
	if err != nil {
		g.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 {
			g.t.Fatalf("not in CRI log format: %q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			g.t.Fatal(err)
		}
		out.WriteString(f[3])
	}
	return out.String()
}

func (g *rig) exec(id string, cmd ...string) string {
	g.t.Helper()
	out, errOut, err := g.r.ExecSync(context.Background(), id, cmd, 20*time.Second)
	if err != nil {
		g.t.Fatalf("exec %v: %v: %s", cmd, err, errOut)
	}
	return string(out)
}

// eventually polls until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("did not happen: %s", what)
}

func (g *rig) pid(id string) int {
	g.t.Helper()
	c, err := g.r.containers.Get(id)
	if err != nil {
		g.t.Fatal(err)
	}
	return c.PID
}

func itoa(i int) string { return fmt.Sprint(i) }

// syncBuffer is a buffer that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
