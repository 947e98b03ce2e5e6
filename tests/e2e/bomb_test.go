package e2e

import (
	"archive/tar"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/tests/harness"
)

// withFiles is an image with files of zeros added, which compress to nothing.
func withFiles(t *testing.T, img v1.Image, files int, size int64) v1.Image {
	t.Helper()
	added, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		pr, pw := io.Pipe()
		go func() {
			w := tar.NewWriter(pw)
			for i := range files {
				if err := w.WriteHeader(
					&tar.Header{Name: fmt.Sprintf("bomb/%d/%d", i/1000, i), Mode: 0o644, Size: size}); err != nil {
					pw.CloseWithError(err)
					return
				}
				if _, err := w.Write(make([]byte, size)); err != nil {
					pw.CloseWithError(err)
					return
				}
			}
			pw.CloseWithError(w.Close())
		}()
		return pr, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.AppendLayers(img, added); err != nil {
		t.Fatal(err)
	}
	return img
}

// TestImageBombs: images that unpack to more than the node's disk, in bytes or
// in inodes, end at the limit. The pod's events say why, what was written is
// removed, and a neighbour runs on.
func TestImageBombs(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "bomb")
	dir := filepath.Join(c.Dir, "agent")
	smallDisk(t, c, dir, 250)
	if err := c.Up("--root-dir", filepath.Join(dir, "kubelet"), "--pod-logs-dir", filepath.Join(dir, "pod-logs"),
		"--eviction-hard", "nodefs.available=5Mi,imagefs.available=50Mi,imagefs.inodesFree=20%"); err != nil {
		t.Fatal(err)
	}
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	address := serveInside(t, c, images.ServeHTTP)
	push(t, c, address+"/bomb/bytes:1", withFiles(t, load(t, "busybox"), 300, 1<<20))
	push(t, c, address+"/bomb/inodes:1", withFiles(t, load(t, "busybox"), 200_000, 0))
	c.Must(t, "run", "neighbour", "--image=localhost/nginx:1")
	c.Must(t, "wait", "pod/neighbour", "--for=condition=Ready", "--timeout=60s")
	usage := func() (megabytes, inodes uint64) {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		return (st.Blocks - st.Bfree) * uint64(st.Bsize) >> 20, st.Files - st.Ffree
	}
	megabytes, inodes := usage()
	for bomb, want := range map[string]string{"bytes": "imagefs.available", "inodes": "imagefs.inodesFree"} {
		c.MustWith(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: 0,
  containers: [{name: c, image: "%s/bomb/%s:1", imagePullPolicy: Always, command: [sleep, "999"]}]}}`,
			bomb, address, bomb),
			"apply", "-f", "-")
		harness.Eventually(t, bomb+": an event tells of the limit", func() (bool, string) {
			out, err := c.Kubectl("", "get", "events", "--field-selector=involvedObject.name="+bomb+",reason=Failed")
			return err == nil && strings.Contains(out, "the image does not fit") &&
				strings.Contains(out, want), fmt.Sprint(out, err)
		})
		out := c.Must(t, "get", "pod", bomb, "-o", "jsonpath={.status.containerStatuses[0].state.waiting.reason}")
		if out != "ErrImagePull" && out != "ImagePullBackOff" {
			t.Errorf("%s waits for %q", bomb, out)
		}
		c.Must(t, "delete", "pod", bomb, "--timeout=60s")
	}
	harness.Eventually(t, "what was written is removed", func() (bool, string) {
		m, i := usage()
		return m <= megabytes+8 &&
				i <= inodes+100,
			fmt.Sprintf("%d MiB and %d inodes are used, before it were %d and %d", m, i, megabytes, inodes)
	})
	if out := c.Must(t, "get", "pod", "neighbour", "-o",
		"jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}"); out != "Running 0" {
		t.Errorf("the neighbour is %s", out)
	}
}
