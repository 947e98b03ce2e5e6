package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// database is what most people have a cluster's storage for: a StatefulSet with a
// claim, and no class named.
const database = `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, selector: {app: db}, ports: [{port: 1}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {fsGroup: 1234}
      containers:
      - name: c
        image: "localhost/busybox:1"
        command: [sleep, "3600"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 32Mi}}
`

// TestLocalStorage has a claim of the class that a new cluster has: the volume is made
// on the node, has the claim's size as a limit, keeps its data when its pod goes, grows,
// and is gone with the claim.
func TestLocalStorage(t *testing.T) {
	s := newSpace(t)
	s.apply(database)
	s.k("rollout", "status", "statefulset/db", "--timeout=90s")
	volume := s.k("get", "pvc", "data-db-0", "-o", "jsonpath={.spec.volumeName}")
	dir := filepath.Join(cluster.Dir, "agent", "local-volumes", "volumes", volume)
	if _, err := os.Stat(filepath.Join(dir, "image")); err != nil {
		t.Errorf("the volume is not on the node: %v", err)
	}
	if got := s.k("exec", "db-0", "--", "stat", "-c", "%g %A", "/data"); !strings.HasPrefix(got, "1234 drwxrws") {
		t.Errorf("the volume is not the group's: %s", got)
	}
	s.refused("No space left on device", "exec", "db-0", "--", "dd", "if=/dev/zero", "of=/data/full", "bs=1M", "count=33")
	s.k("exec", "db-0", "--", "sh", "-c", "rm /data/full && echo kept > /data/file")

	// The volume is expanded where nobody uses it: not every machine lets ext4 grow
	// while it is mounted.
	s.k("scale", "statefulset/db", "--replicas=0")
	s.k("wait", "pod/db-0", "--for=delete", "--timeout=60s")
	s.k("patch", "pvc", "data-db-0", "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"64Mi"}}}}`)
	harness.Eventually(t, "the volume is larger", func() (bool, string) {
		out := s.k("get", "pv", volume, "-o", "jsonpath={.spec.capacity.storage}")
		return out == "64Mi", out
	})
	s.k("scale", "statefulset/db", "--replicas=1")
	s.k("rollout", "status", "statefulset/db", "--timeout=90s")
	if got := s.k("exec", "db-0", "--", "cat", "/data/file"); strings.TrimSpace(got) != "kept" {
		t.Errorf("the volume lost its data: %q", got)
	}
	s.k("exec", "db-0", "--", "dd", "if=/dev/zero", "of=/data/full", "bs=1M", "count=40")
	harness.Eventually(t, "the claim has its size", func() (bool, string) {
		out := s.k("get", "pvc", "data-db-0", "-o", "jsonpath={.status.capacity.storage} {.status.conditions}")
		return strings.TrimSpace(out) == "64Mi", out
	})

	s.k("delete", "statefulset/db", "--timeout=60s")
	s.k("delete", "pvc", "data-db-0", "--timeout=60s")
	harness.Eventually(t, "the volume is gone", func() (bool, string) {
		out := s.k("get", "pv", "-o", "name")
		_, err := os.Stat(dir)
		return os.IsNotExist(err) && !strings.Contains(out, volume), out
	})
}
