package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/tests/harness"
)

// ownCluster prepares a cluster that the test may break. It is stopped in the
// end, and its logs show when the test failed.
func ownCluster(t *testing.T, name string) *harness.Cluster {
	t.Helper()
	c, err := harness.Prepare(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.Kubectl("", "describe", "pods")
			t.Log(out, c.Logs())
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// smallDisk mounts a file system of its own on a directory of the cluster,
// which is taken down before the disk goes.
func smallDisk(t *testing.T, c *harness.Cluster, dir string, mebibytes int64) {
	t.Helper()
	diskOf(t, c, dir, mebibytes, "mkfs.ext4", "-q", "-F", "-m", "0")
}

// diskOf is smallDisk with a file system that a program makes.
func diskOf(t *testing.T, c *harness.Cluster, dir string, mebibytes int64, mkfs ...string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Truncate(image, mebibytes<<20), os.MkdirAll(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{append(mkfs, image), {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	t.Cleanup(func() {
		if err := c.Down(); err != nil {
			t.Error(err)
		}
		// The kernel lets go of files on it a moment after the last container's end.
		harness.Eventually(t, "the disk is free", func() (bool, string) {
			out, err := exec.Command("umount", dir).CombinedOutput()
			if err != nil {
				out = append(out, holders(dir)...)
			}
			return err == nil, string(out)
		})
	})
}

// holders tells which processes have something below dir open, or are in it, what is
// mounted there, and which loop devices have their file there.
func holders(dir string) string {
	var out strings.Builder
	for _, pattern := range []string{"fd/*", "cwd", "root", "exe", "map_files/*"} {
		links, _ := filepath.Glob("/proc/[0-9]*/" + pattern)
		for _, link := range links {
			if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, dir) {
				said, _ := os.ReadFile(filepath.Join("/proc", strings.Split(link, "/")[2], "cmdline"))
				fmt.Fprintf(&out, "%s -> %s of %q\n", link, to, said)
			}
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") {
			out.WriteString(line)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, l := range loops {
		if file, err := os.ReadFile(l); err == nil && strings.Contains(string(file), dir) {
			fmt.Fprintf(&out, "%s: %s", l, file)
		}
	}
	return out.String()
}

// fill takes all space below dir; the function that it returns gives it back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; size /= 2 { // down to the last block
		for block := make([]byte, size); err == nil; {
			_, err = f.Write(block)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		err = nil
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Error(err)
		}
	}
}

// TestCoordinatorDiskFull: writes are refused and say why, reads and deletions
// go on, nodes stay Ready; a coordinator that ends starts on the full disk; and
// with space all is as before, with nothing lost that was acknowledged.
func TestCoordinatorDiskFull(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "full")
	dir := filepath.Join(c.Dir, "coordinator")
	smallDisk(t, c, dir, 200)
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	var written []string
	write := func(size int) error {
		name := fmt.Sprint("kept-", len(written))
		_, err := c.Kubectl("", "create", "configmap", name, "--from-literal=v="+strings.Repeat("x", size))
		if err == nil {
			written = append(written, name)
		}
		return err
	}
	for range 5 {
		if err := write(100_000); err != nil {
			t.Fatal(err)
		}
	}
	c.Must(t, "create", "configmap", "extra")
	empty := fill(t, dir)
	for range 3 {
		if err := write(100_000); err == nil || !strings.Contains(err.Error(), "disk is full") ||
			!strings.Contains(err.Error(), "free some space") {
			t.Errorf("a write on a full disk: %v", err)
		}
	}
	all := func() {
		t.Helper()
		out := c.Must(t, "get", "configmaps", "-o", "name")
		for _, name := range written {
			if !strings.Contains(out, name+"\n") {
				t.Errorf("%s is lost; there are\n%s", name, out)
			}
		}
	}
	all()
	c.Must(t, "delete", "configmap", "extra")
	c.Kill(t, "coordinator")
	harness.Eventually(t, "the API is back on the full disk", func() (bool, string) {
		_, err := c.Kubectl("", "get", "--raw", "/readyz")
		return err == nil, fmt.Sprint(err)
	})
	all()
	if out, err := c.Kubectl("", "create", "configmap", "more"); err == nil || !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("a write on a full disk: %v %s", err, out)
	}
	if ready := c.Must(t, "get", "node", "node1", "-o",
		`jsonpath={.status.conditions[?(@.type=="Ready")].status}`); ready != "True" {
		t.Errorf("the node is Ready=%s", ready)
	}
	empty()
	harness.Eventually(t, "writes are taken", func() (bool, string) {
		err := write(100_000)
		return err == nil, fmt.Sprint(err)
	})
	all()
	c.Must(t, "run", "after", "--image=localhost/busybox:1", "--", "sleep", "999")
	c.Must(t, "wait", "pod/after", "--for=condition=Ready", "--timeout=60s")
	for _, want := range []string{"the disk is full", "there is space on the disk again"} {
		if !strings.Contains(c.Logs(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// onFullDisk are pods on a node whose disk one of them fills to the last block, and
// keeps full: large writes leave as much as a pod needs to start. They are the system's,
// so that none is evicted.
const onFullDisk = `
apiVersion: v1
kind: Pod
metadata: {name: filler}
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sh, -c, "cat /dev/zero > /e/fill; dd if=/dev/zero bs=512 >> /e/fill;
      echo full > /h/full; while sleep 0.2; do dd if=/dev/zero bs=512 >> /e/fill; done"],
     volumeMounts: [{name: e, mountPath: /e}, {name: h, mountPath: /h}]}
  volumes: [{name: e, emptyDir: {}}, {name: h, hostPath: {path: %[1]s}}]
---
apiVersion: v1
kind: Pod
metadata: {name: ends}
spec:
  priorityClassName: system-node-critical
  restartPolicy: Never
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sh, -c, "while [ ! -f /h/go ]; do echo line; sleep 0.05; done; exit 7"],
     volumeMounts: [{name: h, mountPath: /h}]}
  volumes: [{name: h, hostPath: {path: %[1]s}}]
`

// TestNodeDiskFull: archives that find no space are told and imported when
// there is; a pod fills the disk, the Node says DiskPressure and takes no more
// pods; what runs goes on, over a kill of the agent as well; exit codes are
// true; the pod that fills goes and all is as before.
func TestNodeDiskFull(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "node")
	dir := filepath.Join(c.Dir, "agent")
	smallDisk(t, c, dir, 250)
	if err := c.Up("--root-dir", filepath.Join(dir, "kubelet"),
		"--pod-logs-dir", filepath.Join(dir, "pod-logs")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "image", func() (bool, string) {
		out, err := c.Command("shoal", "images", "list", "--data-dir", c.Dir).CombinedOutput()
		return err == nil && strings.Contains(string(out), "nginx"), string(out)
	})
	pressure := func(want string) {
		t.Helper()
		began := time.Now()
		harness.Eventually(t, "DiskPressure "+want, func() (bool, string) {
			out, err := c.Kubectl("", "get", "node", "node1", "-o", `jsonpath={.status.conditions[?(@.type=="DiskPressure")].status}`)
			return err == nil && out == want, fmt.Sprint(out, err)
		})
		t.Logf("DiskPressure %s after %v", want, time.Since(began).Round(time.Second))
	}
	host := t.TempDir()
	c.MustWith(t, fmt.Sprintf(onFullDisk, host), "apply", "-f", "-")
	c.Must(t, "wait", "pod/ends", "pod/filler", "--for=condition=Ready", "--timeout=60s")
	harness.Eventually(t, "the disk is full", func() (bool, string) {
		_, err := os.Stat(filepath.Join(host, "full"))
		return err == nil, fmt.Sprint(err)
	})
	pressure("True")
	c.Must(t, "run", "waits", "--image=localhost/busybox:1", "--", "sleep", "999")
	c.Must(t, "run", "forced", "--image=localhost/busybox:1",
		`--overrides={"spec":{"nodeName":"node1","priorityClassName":"system-node-critical"}}`, "--", "sleep", "999")
	shows := func(object, want string) {
		t.Helper()
		harness.Eventually(t, object+" tells "+want, func() (bool, string) {
			out, err := c.Kubectl("", "describe", object)
			return err == nil && strings.Contains(out, want), fmt.Sprint(out, err)
		})
	}
	shows("pod/waits", "untolerated taint")
	shows("pod/forced", "no space left on device")
	if out, err := c.Command("shoal", "images", "import", filepath.Join(c.Dir, "images", "nginx.tar"),
		"--data-dir", c.Dir).CombinedOutput(); err != nil {
		t.Logf("an import on a full disk: %s", out)
	}
	c.Kill(t, "agent")
	writeFile(t, filepath.Join(host, "go"), "")
	code := func() (bool, string) {
		out, err := c.Kubectl("", "get", "pod", "ends", "-o", "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}")
		return err == nil && out == "7", fmt.Sprint(out, err)
	}
	harness.Eventually(t, "exit code on a full disk", code)
	c.Kill(t, "agent")
	c.Must(t, "delete", "pod", "filler", "--timeout=60s")
	harness.Eventually(t, "there is space", func() (bool, string) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		return err == nil && st.Bavail*uint64(st.Bsize) > 60<<20, fmt.Sprint(st, err)
	})
	c.Kill(t, "agent") // a condition lasts for five minutes; a start judges anew
	pressure("False")
	// The taint stayed over the restarts on a full disk: the pod was not given to the
	// node, which would have refused it for good.
	if phase := c.Must(t, "get", "pod", "waits", "-o", "jsonpath={.status.phase}"); phase == "Failed" {
		out, _ := c.Kubectl("", "describe", "pod", "waits")
		t.Fatal(out)
	}
	for _, pod := range []string{"pod/forced", "pod/waits"} {
		if _, err := c.Kubectl("", "wait", pod, "--for=condition=Ready", "--timeout=60s"); err != nil {
			out, _ := c.Kubectl("", "describe", "nodes,pods")
			t.Fatal(err, out)
		}
	}
	if ok, seen := code(); !ok {
		t.Errorf("the exit code became %s", seen)
	}
}

// TestFullBeforeStart: a cluster that finds no space for its images starts,
// tells it, and imports them when there is space.
func TestFullBeforeStart(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := ownCluster(t, "start")
	dir := filepath.Join(c.Dir, "agent")
	smallDisk(t, c, dir, 200)
	empty := fill(t, dir)
	if err := c.Up(); err == nil || !strings.Contains(err.Error(), "no space left on device") ||
		!strings.Contains(err.Error(), "free some space") {
		t.Errorf("up on a full disk: %v", err)
	}
	empty()
	if err := os.WriteFile(filepath.Join(dir, "part"), make([]byte, 165<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the log tells of the full disk", func() (bool, string) {
		return strings.Contains(c.Logs(), "the image archives that are missing are imported then"), c.Logs()
	})
	if err := os.Remove(filepath.Join(dir, "part")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "all images are there", func() (bool, string) {
		out, err := c.Command("shoal", "images", "list", "--data-dir", c.Dir).CombinedOutput()
		for _, name := range []string{"busybox", "hello", "nginx"} {
			if !strings.Contains(string(out), name) {
				return false, string(out)
			}
		}
		return err == nil, string(out)
	})
	c.Kill(t, "agent") // the condition that came with its start would last for five minutes
	c.Must(t, "run", "after", "--image=localhost/nginx:1")
	c.Must(t, "wait", "pod/after", "--for=condition=Ready", "--timeout=60s")
}
