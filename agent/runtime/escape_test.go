package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// importLinks puts an image on the node that has links, from path to target,
// over what busybox's has, and a working directory.
func (g *rig) importLinks(tag string, links map[string]string, dir string) {
	g.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for from, to := range links {
		if err := w.WriteHeader(&tar.Header{Name: from, Typeflag: tar.TypeSymlink, Linkname: to}); err != nil {
			g.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		g.t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	if err != nil {
		g.t.Fatal(err)
	}
	img, err := mutate.AppendLayers(busyboxImage(g.t), layer)
	if err != nil {
		g.t.Fatal(err)
	}
	if dir != "" {
		if img, err = mutate.Config(img,
			v1.Config{Entrypoint: []string{"/bin/sh", "-c"}, Env: []string{"PATH=/bin"}, WorkingDir: dir}); err != nil {
			g.t.Fatal(err)
		}
	}
	ref, err := name.NewTag(tag)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := os.MkdirAll(g.cfg.ImportDir, 0o755); err != nil {
		g.t.Fatal(err)
	}
	file := strings.NewReplacer("/", "_", ":", "_").Replace(tag) + ".tar"
	if err := tarball.WriteToFile(filepath.Join(g.cfg.ImportDir, file), ref, img); err != nil {
		g.t.Fatal(err)
	}
	if err := g.r.images.ImportDir(context.Background(), g.cfg.ImportDir); err != nil {
		g.t.Fatal(err)
	}
}

// tries starts a container and returns what it printed, or why it did not run.
func (g *rig) tries(pod string, config *criv1.ContainerConfig) string {
	g.t.Helper()
	id, err := g.r.CreateContainer(context.Background(), pod, config, nil)
	if err != nil {
		return "not created: " + err.Error()
	}
	if err := g.r.StartContainer(context.Background(), id); err != nil {
		return "not started: " + err.Error()
	}
	g.exited(id)
	return g.log(id)
}

const secret = "of the node alone"

// SEC: the known ways out of a container that lead over its working directory,
// its links and the node's descriptors, against both of the distribution's
// runtimes.
func TestKnownEscapes(t *testing.T) {
	for _, handler := range []string{"runc", "crun"} {
		t.Run(handler, func(t *testing.T) {
			g := newRig(t)
			if err := os.WriteFile(filepath.Join(g.dir, "secret"), []byte(secret), 0o600); err != nil {
				t.Fatal(err)
			}
			g.importImage()
			pod, err := g.r.RunPodSandbox(t.Context(), g.podConfig(), handler)
			if err != nil {
				t.Fatal(err)
			}
			g.workingDirs(pod)
			g.execDirs(pod)
			g.linkedDirs(pod)
			g.descriptors(pod)
		})
	}
}

// steal prints the node's file if the working directory is one of the node's.
func (g *rig) steal() string {
	return "cat ." + strings.Repeat("/..", 12) + g.dir + "/secret; true"
}

// workingDirs: CVE-2024-21626 from a pod, an image, and a volume's links.
func (g *rig) workingDirs(pod string) {
	g.t.Helper()
	volume := filepath.Join(g.dir, "volume")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		g.t.Fatal(err)
	}
	for fd := 6; fd <= 9; fd++ {
		target := fmt.Sprintf("/proc/self/fd/%d", fd)
		link := fmt.Sprintf("link-%d", fd)
		if err := os.Symlink(target, filepath.Join(volume, link)); err != nil {
			g.t.Fatal(err)
		}
		direct := shell(fmt.Sprintf("direct-%d", fd), g.steal())
		direct.WorkingDir = target
		if got := g.tries(pod, direct); !strings.HasPrefix(got, "not created") {
			g.t.Errorf("%s as working directory: %q", target, got)
		}
		// The agent cannot see this one before the container's mounts are made.
		byVolume := shell(link, g.steal())
		byVolume.WorkingDir = "/vol/" + link
		byVolume.Mounts = []*criv1.Mount{{HostPath: volume, ContainerPath: "/vol"}}
		if got := g.tries(pod, byVolume); strings.Contains(got, secret) {
			g.t.Errorf("%s by a volume's link: got out of the container", target)
		}
	}
	g.importLinks("example.test/workdir:1", map[string]string{"work": "/proc/self/fd/7"}, "/work")
	c := shell("image", g.steal())
	c.Image.Image = "example.test/workdir:1"
	if got := g.tries(pod, c); !strings.HasPrefix(got, "not created") {
		g.t.Errorf("an image's working directory: %q", got)
	}
}

// execDirs: the same by a command in a container that has put a link in place
// of its working directory.
func (g *rig) execDirs(pod string) {
	g.t.Helper()
	c := shell("exec", "cd /; mv /data /old; ln -s /proc/self/fd/7 /data; "+forever)
	c.WorkingDir = "/data"
	id := g.start(pod, c)
	eventually(g.t, "the link is made", func() bool {
		fi, err := os.Lstat(fmt.Sprintf("/proc/%d/root/data", g.pid(id)))
		return err == nil && fi.Mode()&os.ModeSymlink != 0
	})
	out, _, err := g.r.ExecSync(g.t.Context(), id, []string{"sh", "-c", g.steal()}, 0)
	if err == nil || strings.Contains(string(out), secret) {
		g.t.Errorf("a command ran in %q", out)
	}
}

// linkedDirs: CVE-2025-31133, CVE-2025-52881, CVE-2026-41579 by an image's
// links and by a volume in the place of /dev.
func (g *rig) linkedDirs(pod string) {
	g.t.Helper()
	for _, dir := range []string{"dev", "proc", "sys"} {
		tag := "example.test/" + dir + ":1"
		g.importLinks(tag, map[string]string{dir: "/data"}, "")
		c := shell("linked-"+dir, "echo started")
		c.Image.Image = tag
		if got := g.tries(pod, c); !strings.HasPrefix(got, "not created") {
			g.t.Errorf("an image whose /%s is a link: %q", dir, got)
		}
	}
	g.importLinks("example.test/null:1",
		map[string]string{"dev/null": "/proc/sysrq-trigger", "dev/console": "/proc/sys/kernel/core_pattern"}, "")
	c := shell("null", "cat /proc/keys | head -c 8; test -c /dev/null && echo device")
	c.Image.Image = "example.test/null:1"
	c.Linux.SecurityContext.MaskedPaths = []string{"/proc/keys"}
	if got := g.tries(pod, c); got != "device\n" {
		g.t.Errorf("an image whose /dev/null is a link: %q", got)
	}
	c = shell("volume-dev", "echo started")
	c.Mounts = []*criv1.Mount{{HostPath: filepath.Join(g.dir, "volume"), ContainerPath: "/dev"}}
	if got := g.tries(pod, c); !strings.HasPrefix(got, "not created") {
		g.t.Errorf("a volume at /dev: %q", got)
	}
}

// descriptors: a container gets none of the node's, neither when it starts nor
// by a command, and its monitor keeps no directory.
func (g *rig) descriptors(pod string) {
	g.t.Helper()
	// the shell has closed the directory again
	list := "for f in /proc/$$/fd/*; do test -L $f && test ${f##*/} -gt 2 && echo $f; done; true"
	if got := g.tries(pod, shell("list", list)); got != "" {
		g.t.Errorf("a container starts with %q", got)
	}
	id := g.start(pod, shell("open", forever))
	if got := g.exec(id, "sh", "-c", list); got != "" {
		g.t.Errorf("a command starts with %q", got)
	}
	c, err := g.r.containers.Get(id)
	if err != nil {
		g.t.Fatal(err)
	}
	open, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", c.Monitor))
	if err != nil || len(open) == 0 {
		g.t.Fatalf("descriptors of conmon: %v, %v", open, err)
	}
	for _, fd := range open {
		if info, err := os.Stat(fd); err == nil && info.IsDir() {
			to, _ := os.Readlink(fd)
			g.t.Errorf("conmon has the directory %s", to)
		}
	}
}
