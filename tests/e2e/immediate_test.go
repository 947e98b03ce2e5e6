package e2e

import (
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// TestImmediateVolume has a claim of a class that binds at once: its volume is there
// before its first pod, which goes to the volume's node.
func TestImmediateVolume(t *testing.T) {
	s := newSpace(t)
	class := "now-" + s.ns
	t.Cleanup(func() { s.k("delete", "storageclass", class, "--ignore-not-found") })
	s.apply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: ` + class + `}
provisioner: local.shoal-project.io
volumeBindingMode: Immediate
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: ` + class + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: huge}
spec: {storageClassName: ` + class + `, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Ei}}}
`)
	s.k("wait", "pvc/data", "--for=jsonpath={.status.phase}=Bound", "--timeout=90s")
	volume := s.k("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	harness.Eventually(t, "the claim that no node has room for says so", func() (bool, string) {
		out := s.k("get", "events", "--field-selector=involvedObject.name=huge,reason=ProvisioningFailed",
			"-o", "jsonpath={.items[*].message}")
		return strings.Contains(out, "nodes can make a volume of 1Ei: "), out
	})
	s.apply(`
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`)
	s.k("wait", "pod/p", "--for=condition=Ready", "--timeout=90s")
	s.k("exec", "p", "--", "sh", "-c", "echo x > /data/file")
	s.k("delete", "pod/p", "pvc/data", "pvc/huge", "--timeout=60s")
	harness.Eventually(t, "the volume is gone", func() (bool, string) {
		out := s.k("get", "pv", "-o", "name")
		return !strings.Contains(out, volume), out
	})
}
