package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/shoal-project/shoal/csi/csitest"
	"github.com/shoal-project/shoal/tests/harness"
)

// stored is a pod with volumes of a storage driver: one behind a claim, of which a
// part is mounted too, and one of its own.
const stored = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: memory.csi.test}
spec:
  attachRequired: false
  podInfoOnMount: true
  volumeLifecycleModes: [Persistent, Ephemeral]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: in-memory}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  csi: {driver: memory.csi.test, volumeHandle: handle-1, fsType: tmpfs}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  volumeName: in-memory
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: stored}
spec:
  securityContext: {fsGroup: 4711}
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: localhost/busybox:1
    command: [sleep, "3600"]
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: data, mountPath: /part, subPath: a/b}
    - {name: own, mountPath: /own}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: own, csi: {driver: memory.csi.test}}
`

// TestStorageDriver: a driver registers, and a pod that waits for it has its volumes;
// an agent that was killed is followed by one that knows of them, and nothing is left
// at the end.
func TestStorageDriver(t *testing.T) {
	s := newSpace(t)
	root := filepath.Join(cluster.Dir, "kubelet")
	d := &csitest.Driver{
		Name:         "memory.csi.test",
		Mounts:       csitest.Memory{},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	s.apply(stored)
	t.Cleanup(func() {
		cluster.Must(t, "delete", "csidriver/memory.csi.test", "pv/in-memory", "--wait=false", "--ignore-not-found")
	})
	harness.Eventually(t, "the pod waits for the driver", func() (bool, string) {
		out := s.k("get", "events", "-o", "jsonpath={range .items[*]}{.reason} {.message}{'\\n'}{end}")
		return strings.Contains(out, "driver name memory.csi.test not found in the list of registered CSI drivers"), out
	})
	told, gone := d.Register(t, filepath.Join(root, "plugins_registry"), d.Serve(t))
	select {
	case answer := <-told:
		if answer != "" {
			t.Fatalf("it is not registered: %s", answer)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody heard it register")
	}
	s.says("memory.csi.test node-of-memory.csi.test", "get", "csinode", "node1", "-o",
		"jsonpath={range .spec.drivers[*]}{.name} {.nodeID}{end}")
	s.k("wait", "pod/stored", "--for=condition=Ready", "--timeout=60s")
	in := func(command string) string {
		t.Helper()
		return strings.TrimSpace(s.k("exec", "stored", "--", "sh", "-c", command))
	}
	in("echo one > /data/f; echo two > /part/f; echo three > /own/f")
	const see = "cat /data/f /data/a/b/f /own/f; stat -c %g /data"
	want := "one\ntwo\nthree\n4711"
	if got := in(see); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	uid := s.k("get", "pod", "stored", "-o", "jsonpath={.metadata.uid}")
	data := filepath.Join(root, "pods", uid, "volumes/kubernetes.io~csi/in-memory/vol_data.json")
	if _, err := os.Stat(data); err != nil {
		t.Error(err)
	}
	cluster.Kill(t, "agent")
	select {
	case <-told: // by the next agent
	case <-time.After(time.Minute):
		t.Fatal("the next agent does not hear of the driver")
	}
	harness.Eventually(t, "the next agent answers", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "exec", "stored", "--", "sh", "-c", see)
		return err == nil && strings.TrimSpace(out) == want, out
	})
	s.k("delete", "pod", "stored", "--timeout=60s")
	harness.Eventually(t, "nothing is left of the pod's volumes", func() (bool, string) {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		records, _ := filepath.Glob(filepath.Join(cluster.Dir, "agent/checkpoint/volumes", uid+"_*"))
		staged, _ := filepath.Glob(filepath.Join(root, "plugins/kubernetes.io/csi/memory.csi.test/*"))
		state := d.String()
		return err == nil && state == "" && len(records)+len(staged) == 0 && !strings.Contains(string(mounts), uid) &&
			!strings.Contains(string(mounts), "memory.csi.test"), fmt.Sprint(state, records, staged, err)
	})
	gone()
	harness.Eventually(t, "the driver is gone from the node", func() (bool, string) {
		out := s.k("get", "csinode", "node1", "-o", "jsonpath={.spec.drivers[*].name}")
		return !strings.Contains(out, "memory.csi.test"), out
	})
}

// attaching is a pod with a volume that must be attached to its node.
const attaching = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: attach.csi.test}
spec: {attachRequired: true, podInfoOnMount: false}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: attached}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  csi: {driver: attach.csi.test, volumeHandle: handle-2, fsType: tmpfs}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  volumeName: attached
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: waits}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// TestStorageDriverAttaches: a volume is not touched before it is attached, and is in
// use until nothing is left of it. The test is the driver's attacher.
func TestStorageDriverAttaches(t *testing.T) {
	s := newSpace(t)
	root := filepath.Join(cluster.Dir, "kubelet")
	d := &csitest.Driver{
		Name:         "attach.csi.test",
		Mounts:       csitest.Memory{},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	told, _ := d.Register(t, filepath.Join(root, "plugins_registry"), d.Serve(t))
	select {
	case answer := <-told:
		if answer != "" {
			t.Fatalf("it is not registered: %s", answer)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody heard it register")
	}
	s.apply(attaching)
	t.Cleanup(func() {
		cluster.Must(t, "delete", "csidriver/attach.csi.test", "pv/attached", "--wait=false", "--ignore-not-found")
	})
	const path = `jsonpath={.items[?(@.spec.attacher=="attach.csi.test")].metadata.name}`
	name := ""
	harness.Eventually(t, "the cluster asks for the attachment", func() (bool, string) {
		name = strings.TrimSpace(s.k("get", "volumeattachments", "-o", path))
		return name != "", name
	})
	const volume = "kubernetes.io/csi/attach.csi.test^handle-2"
	inUse := func() string {
		t.Helper()
		return s.k("get", "node", "node1", "-o", "jsonpath={.status.volumesInUse}")
	}
	harness.Eventually(t, "the node has it in use", func() (bool, string) {
		out := inUse()
		return strings.Contains(out, volume), out
	})
	if calls := d.Calls(); len(calls) > 0 {
		t.Errorf("the driver is called before the volume is attached: %q", calls)
	}
	s.k("patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p",
		`{"status":{"attached":true,"attachmentMetadata":{"device":"7"}}}`)
	s.k("wait", "pod/waits", "--for=condition=Ready", "--timeout=60s")
	staged, ok := d.Last("NodeStageVolume").(*csipb.NodeStageVolumeRequest)
	if !ok || staged.PublishContext["device"] != "7" {
		t.Errorf("staged by %v", staged)
	}
	s.k("delete", "pod", "waits", "--timeout=60s")
	harness.Eventually(t, "it is not in use any more", func() (bool, string) {
		out, state := inUse(), d.String()
		return state == "" && !strings.Contains(out, volume), out + state
	})
	harness.Eventually(t, "it is detached", func() (bool, string) {
		out := s.k("get", "volumeattachments", "-o", path)
		return strings.TrimSpace(out) == "", out
	})
}
