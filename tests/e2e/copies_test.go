package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// withClaim is a pod that has a claim at /data; the claim's volume is empty, or made
// of a source.
func withClaim(name, size, source string) string { return claimOf(name, size, source) + podWith(name) }

func claimOf(name, size, source string) string {
	return `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ` + name + `}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: ` + size + `}}
` + source + `
`
}

func podWith(name string) string {
	return `
---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "localhost/busybox:1", command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumes: [{name: data, persistentVolumeClaim: {claimName: ` + name + `}}]
`
}

// TestCopiesOfVolumes has volumes of claims cloned, on a disk whose files can share
// blocks: for a larger claim, one of another class, one of a clone; and has those wait
// that can have none. `make ecosystem ONLY=snapshots` is of snapshots.
func TestCopiesOfVolumes(t *testing.T) {
	t.Parallel() // with a cluster of its own
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip(err)
	}
	c := ownCluster(t, "copies")
	diskOf(t, c, filepath.Join(c.Dir, "agent", "local-volumes"), 1024, "mkfs.xfs", "-q", "-m", "reflink=1")
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	apply := func(text string) { c.MustWith(t, text, "apply", "-f", "-") }
	runs := func(pod string) { c.Must(t, "wait", "pod/"+pod, "--for=condition=Ready", "--timeout=90s") }
	in := func(pod, command string) string { return c.Must(t, "exec", pod, "--", "sh", "-c", command) }
	// The first waits for its source, which no pod has asked for yet.
	const ofOld = "  dataSource: {kind: PersistentVolumeClaim, name: old}"
	apply(withClaim("clone", "48Mi", ofOld) + claimOf("old", "32Mi", ""))
	waits := func(claim, why string) {
		t.Helper()
		harness.Eventually(t, claim+" waits", func() (bool, string) {
			out := c.Must(t, "get", "events", "--field-selector", "involvedObject.name="+claim, "-o",
				"jsonpath={range .items[*]}{.message}{'\\n'}{end}")
			return strings.Contains(out, why), out
		})
		if phase := c.Must(t, "get", "pvc", claim, "-o", "jsonpath={.status.phase}"); phase != "Pending" {
			t.Errorf("%s is %s", claim, phase)
		}
	}
	waits("clone", "didn't have the volume or the snapshot that a volume is to be made of")
	apply(podWith("old"))
	runs("old")
	runs("clone")
	in("old", "echo first > /data/file && sync")
	c.Must(t, "delete", "pod/clone", "pvc/clone", "--timeout=60s")
	apply(withClaim("clone", "48Mi", ofOld))
	runs("clone")
	if got := in("clone", "cat /data/file"); got != "first\n" {
		t.Errorf("the clone has %q", got)
	}
	in("clone", "echo second > /data/file && dd if=/dev/zero of=/data/full bs=1M count=36 && rm /data/full && sync")
	if got := in("old", "cat /data/file"); got != "first\n" {
		t.Errorf("the clone's source has %q", got)
	}

	apply(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: other}
provisioner: local.shoal-project.io
volumeBindingMode: WaitForFirstConsumer
`)
	const ofClone = "  dataSource: {kind: PersistentVolumeClaim, name: clone}"
	apply(withClaim("less", "32Mi", ofClone) + withClaim("device", "48Mi", "  volumeMode: Block\n"+ofClone))
	waits("less", "new PVC request must be greater than or equal in size to the specified PVC data source")
	waits("device", "must have the same volume mode for cloning")
	apply(withClaim("again", "64Mi", "  storageClassName: other\n"+ofClone))
	runs("again")
	c.Must(t, "delete", "pod/old", "pod/clone", "pvc/old", "pvc/clone", "--timeout=60s")
	if got := in("again", "echo third >> /data/file && cat /data/file"); got != "second\nthird\n" {
		t.Errorf("the clone's clone has %q when its sources are gone", got)
	}
	c.Must(t, "delete", "pod", "--all", "--timeout=60s")
	c.Must(t, "delete", "pvc", "--all", "--timeout=60s")
	kept := filepath.Join(c.Dir, "agent", "local-volumes", "volumes", "*")
	harness.Eventually(t, "the volumes are gone", func() (bool, string) {
		left, err := filepath.Glob(kept)
		return err == nil && len(left) == 0, strings.Join(left, " ")
	})
}
