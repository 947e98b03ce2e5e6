package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// claimant is a pod with volumes of its own and one behind a claim; a part of
// each is mounted, too. Its second container ends when it is told to.
const claimant = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: outlives}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  local: {path: %s}
  nodeAffinity:
    required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: by-hand
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cm}
data: {a: one}
---
apiVersion: v1
kind: Pod
metadata: {name: claimant}
spec:
  securityContext: {fsGroup: 4711}
  terminationGracePeriodSeconds: 0
  containers:
  - name: stays
    image: localhost/busybox:1
    command: [sleep, "3600"]
    volumeMounts: &mounts
    - {name: disk, mountPath: /disk}
    - {name: disk, mountPath: /disk-part, subPath: a/b}
    - {name: memory, mountPath: /memory}
    - {name: cm, mountPath: /cm}
    - {name: data, mountPath: /data}
    - {name: data, mountPath: /data-part, subPath: part}
  - name: ends
    image: localhost/busybox:1
    command: [sh, -c, "until [ -e /disk/end ]; do sleep 0.1; done; rm /disk/end"]
    volumeMounts: *mounts
  volumes:
  - {name: disk, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: cm, configMap: {name: cm}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
`

// TestVolumesOutliveAgent: an agent that takes over from one that was killed
// mounts what containers need that start again, lets volumes follow changes,
// and leaves nothing of them at the pod's end but what is behind the claim.
func TestVolumesOutliveAgent(t *testing.T) {
	s := newSpace(t)
	behind := t.TempDir()
	s.apply(fmt.Sprintf(claimant, behind))
	t.Cleanup(func() { cluster.Must(t, "delete", "pv", "outlives", "--wait=false") })
	s.k("wait", "pod/claimant", "--for=condition=Ready", "--timeout=60s")
	in := func(container, command string) string {
		t.Helper()
		return s.k("exec", "claimant", "-c", container, "--", "sh", "-c", command)
	}
	in("stays", "echo d > /disk-part/f; echo m > /memory/f; echo c > /data-part/f; chmod 0750 /disk")
	uid := s.k("get", "pod", "claimant", "-o", "jsonpath={.metadata.uid}")
	records := func() []string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(cluster.Dir, "agent/checkpoint/volumes", uid+"_*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if got := records(); len(got) != 5 {
		t.Errorf("records of 4 volumes and a token: %q", got)
	}
	cluster.Kill(t, "agent")
	harness.Eventually(t, "the next agent answers", func() (bool, string) {
		out, err := cluster.Kubectl("", "-n", s.ns, "exec", "claimant", "-c", "stays", "--", "touch", "/disk/end")
		return err == nil, out
	})
	harness.Eventually(t, "the container that ended runs again", func() (bool, string) {
		const path = `jsonpath={range .status.containerStatuses[*]}{.name} {.restartCount} {.ready} {end}`
		out := s.k("get", "pod", "claimant", "-o", path)
		return strings.TrimSpace(out) == "ends 1 true stays 0 true", out
	})
	const see = "cat /disk-part/f /memory/f /data-part/f; stat -c %a,%g /disk; ls /data"
	for _, container := range []string{"stays", "ends"} {
		if got := strings.Fields(in(container, see)); strings.Join(got, " ") != "d m c 750,4711 part" {
			t.Errorf("%s sees %q", container, got)
		}
	}
	s.k("patch", "configmap", "cm", "-p", `{"data":{"a":"two"}}`)
	harness.Eventually(t, "a change shows", func() (bool, string) {
		out := in("stays", "cat /cm/a")
		return strings.TrimSpace(out) == "two", out
	})
	s.k("delete", "pod", "claimant", "--timeout=60s")
	harness.Eventually(t, "nothing is left of the pod's volumes", func() (bool, string) {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		left := records()
		return err == nil && len(left) == 0 && !strings.Contains(string(mounts), uid), fmt.Sprint(left, err)
	})
	if data, err := os.ReadFile(filepath.Join(behind, "part/f")); string(data) != "c\n" {
		t.Errorf("behind the claim: %q, %v", data, err)
	}
}
