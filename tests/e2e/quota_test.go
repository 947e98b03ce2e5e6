package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
	"github.com/shoal-project/shoal/tests/harness"
)

const limitedByQuota = `
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: trusted},
  provisioner: local.shoal-project.io, volumeBindingMode: WaitForFirstConsumer, allowVolumeExpansion: true,
  parameters: {csi.storage.k8s.io/fstype: btrfs}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {storageClassName: trusted,
  accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: writer}, spec: {terminationGracePeriodSeconds: 0,
  securityContext: {fsGroup: 1234},
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}, {name: v, emptyDir: {sizeLimit: 64Mi}}],
  containers: [{name: c, image: "localhost/busybox:1", command: [sleep, "3600"],
    resources: {limits: {ephemeral-storage: 192Mi}},
    volumeMounts: [{name: data, mountPath: /data}, {name: v, mountPath: /v}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: greedy}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: v, emptyDir: {sizeLimit: 32Mi}}, {name: h, hostPath: {path: %[1]s}}],
  containers: [{name: c, image: "localhost/busybox:1",
    volumeMounts: [{name: v, mountPath: /v}, {name: h, mountPath: /h}],
    command: [sh, -c, "dd if=/dev/zero of=/v/f bs=1M count=200 2>/h/said; sleep 3600"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: own-users}, spec: {terminationGracePeriodSeconds: 0, hostUsers: false,
  volumes: [{name: v, emptyDir: {sizeLimit: 32Mi}}, {name: w, emptyDir: {}}],
  containers: [{name: c, image: "localhost/busybox:1", resources: {limits: {ephemeral-storage: 64Mi}},
    volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}],
    command: [sh, -c, "echo a > /v/f && echo b > /w/f && echo c > /f && exec sleep 3600"]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: scribbler}, spec: {terminationGracePeriodSeconds: 0,
  volumes: [{name: h, hostPath: {path: %[1]s}}],
  containers: [{name: c, image: "localhost/busybox:1", resources: {limits: {ephemeral-storage: 32Mi}},
    volumeMounts: [{name: h, mountPath: /h}],
    command: [sh, -c, "dd if=/dev/zero of=/big bs=1M count=200 2>/h/scribbled; sleep 3600"]}]}}
`

// TestQuotas has a node whose disk is btrfs with simple quotas: an emptyDir has a hard
// limit, and what a container writes, and their pods are evicted all the same; a claim's
// volume is a subvolume that grows while it is used.
func TestQuotas(t *testing.T) {
	t.Parallel() // with a cluster of its own
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil || !btrfs.KernelHasSimple() {
		t.Skip("no mkfs.btrfs, or no simple quotas (Linux 6.7)")
	}
	c := ownCluster(t, "quotas")
	dir := filepath.Join(c.Dir, "agent")
	diskOf(t, c, dir, 1536, btrfstest.Mkfs()...)
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = btrfs.Enable(f)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Up("--root-dir", filepath.Join(dir, "kubelet")); err != nil {
		t.Fatal(err)
	}
	host := t.TempDir() // what the pod says there stays when it is evicted, as its log does not
	c.MustWith(t, fmt.Sprintf(limitedByQuota, host), "apply", "-f", "-")
	for _, one := range []struct{ pod, file, why string }{
		{"greedy", "said", `Usage of EmptyDir volume "v" exceeds the limit "32Mi". `},
		{"scribbler", "scribbled", "Pod ephemeral local storage usage exceeds the total limit of containers 32Mi. "},
	} {
		harness.Eventually(t, one.pod+" is evicted", func() (bool, string) {
			out, err := c.Kubectl("", "get", "pod", one.pod, "-o",
				"jsonpath={.status.phase} {.status.reason}: {.status.message}")
			return err == nil && out == "Failed Evicted: "+one.why, fmt.Sprint(out, err)
		})
		said, err := os.ReadFile(filepath.Join(host, one.file))
		// It says nothing where it was evicted before it had written as much as it can.
		if err != nil || len(said) > 0 && !strings.Contains(string(said), "Disk quota exceeded") {
			t.Errorf("%s wrote what it wanted: %s %v", one.pod, said, err)
		}
	}
	c.Must(t, "wait", "pod/writer", "pod/own-users", "--for=condition=Ready", "--timeout=90s")
	write := func(file string, count int) error {
		_, err := c.Kubectl("", "exec", "writer", "--", "dd", "if=/dev/zero", "of="+file, "bs=1M",
			fmt.Sprint("count=", count))
		return err
	}
	if err := write("/v/f", 60); err != nil {
		t.Errorf("what is allowed in an emptyDir: %v", err)
	}
	if err := write("/f", 100); err != nil {
		t.Errorf("what is allowed in a container: %v", err)
	}
	if err := write("/data/f", 70); err == nil || !strings.Contains(err.Error(), "Disk quota exceeded") {
		t.Errorf("more than the volume may have: %v", err)
	}
	out := c.Must(t, "exec", "writer", "--", "stat", "-c", "%g %A", "/data")
	if !strings.HasPrefix(out, "1234 drwxrws") {
		t.Errorf("the volume is not the group's: %s", out)
	}
	c.Must(t, "patch", "pvc", "data", "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	harness.Eventually(t, "the claim has its size while it is used", func() (bool, string) {
		out, err := c.Kubectl("", "get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage}")
		return err == nil && out == "128Mi", fmt.Sprint(out, err)
	})
	if err := write("/data/g", 40); err != nil {
		t.Errorf("the volume did not grow: %v", err)
	}
	for _, pod := range []string{"writer", "own-users"} {
		out = c.Must(t, "get", "pod", pod, "-o",
			"jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}")
		if out != "Running 0" {
			t.Errorf("%s is %s", pod, out)
		}
	}
	out = c.Must(t, "exec", "own-users", "--", "stat", "-c", "%u", "/v/f", "/w/f", "/f")
	if strings.Join(strings.Fields(out), " ") != "0 0 0" {
		t.Errorf("the files of the pod's root belong to %s", out)
	}
	layers, err := filepath.Glob(filepath.Join(dir, "containers/*/upper/f"))
	if err != nil || len(layers) != 2 {
		t.Errorf("what containers wrote lies in %q, %v", layers, err)
	}
	for _, file := range layers {
		if _, err := btrfs.Open(filepath.Dir(filepath.Dir(file))); err != nil {
			t.Errorf("what is written has no hard limit: %v", err)
		}
	}
	c.Must(t, "delete", "pod/writer", "pvc/data", "--timeout=60s")
	harness.Eventually(t, "the volume is gone", func() (bool, string) {
		left, err := filepath.Glob(filepath.Join(dir, "local-volumes/volumes/*"))
		return err == nil && len(left) == 0, fmt.Sprint(left, err)
	})
}
