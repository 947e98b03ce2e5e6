package e2e

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const counting = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: by-runc}
handler: runc
---
apiVersion: v1
kind: Pod
metadata: {name: counts}
spec:
  nodeName: node1
  runtimeClassName: by-runc
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sh, -c, "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.05; done"]
`

// TestCheckpoint: the kubelet's endpoint, through the API server, as upstream's
// e2e_node/checkpoint_container.go asks it. Where CRIU works with the kernel there is an
// archive, and the container goes on; elsewhere the reason is told and nothing is left.
func TestCheckpoint(t *testing.T) {
	s := newSpace(t)
	s.apply(counting)
	t.Cleanup(func() { _, _ = cluster.Kubectl("", "delete", "runtimeclass", "by-runc") })
	s.ready("counts")
	dir := filepath.Join(cluster.Dir, "kubelet", "checkpoints")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of checkpoints: %v %v", info, err)
	}
	post := func(path string, flags ...string) (string, error) {
		return cluster.Kubectl("", append([]string{"create", "-f", "/dev/null", "--raw",
			"/api/v1/nodes/node1/proxy/checkpoint/" + path}, flags...)...)
	}
	counted := func() int {
		return strings.Count(s.k("get", "--raw", "/api/v1/nodes/node1/proxy/metrics"),
			`kubelet_runtime_operations_total{operation_type="checkpoint_container"}`)
	}
	if n := counted(); n != 0 {
		t.Errorf("%d checkpoints are counted before the first", n)
	}
	if _, err := post(s.ns + "/counts/none"); err == nil ||
		!strings.Contains(err.Error(), "could not find the requested resource") { // 404, as upstream's
		t.Errorf("of a container that is not there: %v", err)
	}
	if _, err := post(s.ns+"/counts/c", "--as=nobody"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("by nobody: %v", err)
	}
	out, err := post(s.ns + "/counts/c")
	if n := counted(); n != 1 {
		t.Errorf("%d checkpoints are counted", n)
	}
	left, readErr := os.ReadDir(dir)
	if readErr != nil {
		t.Fatal(readErr)
	}
	_, lookErr := exec.LookPath("iptables-restore") // which CRIU calls to hold the network still
	if lookErr != nil || exec.Command("criu", "check").Run() != nil {
		if err == nil || !strings.Contains(err.Error(), "checkpointing of "+s.ns+"/counts/c failed (rpc error: ") ||
			!strings.Contains(strings.ToLower(err.Error()), "criu") || len(left) > 0 {
			t.Errorf("without CRIU: %s %v, left %v", out, err, left)
		}
		return
	}
	var answer struct{ Items []string }
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil || len(answer.Items) != 1 || len(left) != 1 {
		t.Fatalf("the answer %q %v, archives %v", out, err, left)
	}
	if name := filepath.Base(answer.Items[0]); filepath.Dir(answer.Items[0]) != dir ||
		!strings.HasPrefix(name, "checkpoint-counts_"+s.ns+"-c-") || !strings.HasSuffix(name, ".tar") {
		t.Errorf("the archive's name is %s", answer.Items[0])
	}
	has := archived(t, answer.Items[0])
	for _, name := range []string{"spec.dump", "config.dump", "checkpoint/inventory.img", "rootfs-diff.tar"} {
		if !has[name] {
			t.Errorf("the archive has no %s", name)
		}
	}
	before := s.exec("counts", "cat", "/tmp/count")
	s.until("counts on", "exec", "counts", "--", "sh", "-c", "[ $(cat /tmp/count) != "+strings.TrimSpace(before)+
		" ] && echo counts on")
}

// archived are the names in an archive, which is root's alone.
func archived(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode() != 0o600 {
		t.Errorf("the archive: %v %v", info, err)
	}
	names := map[string]bool{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = true
	}
}
