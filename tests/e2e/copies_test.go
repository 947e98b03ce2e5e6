package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/shoal-project/shoal/tests/harness"
)

// withClaim is a pod that has a claim at /data; the claim's volume is empty, or made
// of a source.
func withClaim(name, size, source string) string {
	return `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: ` + name + `}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: ` + size + `}}
` + source + `
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

// TestCopiesOfVolumes has a claim's volume cloned for a larger claim, on a disk whose
// files can share blocks. With SHOAL_SIDECARS, a directory with the programs of
// kubernetes-csi, and SHOAL_SNAPSHOTTER, the sources of external-snapshotter, it has
// snapshots too, by what docs/snapshots installs.
func TestCopiesOfVolumes(t *testing.T) {
	t.Parallel() // with a cluster of its own
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip(err)
	}
	c := ownCluster(t, "copies")
	diskOf(t, c, filepath.Join(c.Dir, "agent", "local-volumes"), 1024, "mkfs.xfs", "-q", "-m", "reflink=1")
	programs, sources := os.Getenv("SHOAL_SIDECARS"), os.Getenv("SHOAL_SNAPSHOTTER")
	if programs != "" {
		for _, program := range []string{"csi-snapshotter", "snapshot-controller"} {
			programImage(t, c, filepath.Join(programs, program), "registry.k8s.io/sig-storage/"+program+":v8.6.0")
		}
	}
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	c.MustWith(t, withClaim("old", "32Mi", ""), "apply", "-f", "-")
	c.Must(t, "wait", "pod/old", "--for=condition=Ready", "--timeout=90s")
	c.Must(t, "exec", "old", "--", "sh", "-c", "echo first > /data/file && sync")

	c.MustWith(t, withClaim("clone", "48Mi", "  dataSource: {kind: PersistentVolumeClaim, name: old}"),
		"apply", "-f", "-")
	c.Must(t, "wait", "pod/clone", "--for=condition=Ready", "--timeout=90s")
	if got := c.Must(t, "exec", "clone", "--", "cat", "/data/file"); got != "first\n" {
		t.Errorf("the clone has %q", got)
	}
	c.Must(t, "exec", "clone", "--", "sh", "-c",
		"echo second > /data/file && dd if=/dev/zero of=/data/full bs=1M count=36")
	if got := c.Must(t, "exec", "old", "--", "cat", "/data/file"); got != "first\n" {
		t.Errorf("the clone's source has %q", got)
	}
	if programs == "" {
		return
	}
	installSnapshots(t, c, sources)
	c.MustWith(t, `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: s}
spec: {source: {persistentVolumeClaimName: old}}
`, "apply", "-f", "-")
	c.Must(t, "wait", "volumesnapshot/s", "--for=jsonpath={.status.readyToUse}=true", "--timeout=90s")
	c.Must(t, "exec", "old", "--", "sh", "-c", "rm /data/file && sync")
	c.MustWith(t, withClaim("restored", "32Mi",
		"  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}"), "apply", "-f", "-")
	c.Must(t, "wait", "pod/restored", "--for=condition=Ready", "--timeout=90s")
	if got := c.Must(t, "exec", "restored", "--", "cat", "/data/file"); got != "first\n" {
		t.Errorf("what was restored has %q", got)
	}
	c.MustWith(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: now}
provisioner: local.shoal-project.io
volumeBindingMode: Immediate
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: now}
spec:
  storageClassName: now
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 32Mi}}
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: s}
`, "apply", "-f", "-")
	c.Must(t, "wait", "pvc/now", "--for=jsonpath={.status.phase}=Bound", "--timeout=90s")
	c.Must(t, "delete", "volumesnapshot", "s", "--timeout=60s")
	kept := filepath.Join(c.Dir, "agent", "local-volumes", "snapshots", "*")
	harness.Eventually(t, "the snapshot is gone", func() (bool, string) {
		left, err := filepath.Glob(kept)
		return err == nil && len(left) == 0, strings.Join(left, " ")
	})
}

// installSnapshots does what docs/storage.md says, with sources that are here already.
func installSnapshots(t *testing.T, c *harness.Cluster, sources string) {
	t.Helper()
	dir := t.TempDir()
	for from, to := range map[string]string{
		"../../docs/snapshots":                                                "snapshots",
		filepath.Join(sources, "client", "config", "crd"):                     "crd",
		filepath.Join(sources, "deploy", "kubernetes", "snapshot-controller"): "controller",
	} {
		if err := os.CopyFS(filepath.Join(dir, to), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	replace := func(file string, pairs ...string) {
		t.Helper()
		file = filepath.Join(dir, "snapshots", file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(pairs); i += 2 {
			if !bytes.Contains(text, []byte(pairs[i])) {
				t.Errorf("%s has no %q", file, pairs[i])
			}
		}
		if err := os.WriteFile(file, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const upstream = "https://github.com/kubernetes-csi/external-snapshotter/"
	replace("kustomization.yaml", upstream+"client/config/crd?ref=v8.6.0", "../crd",
		upstream+"deploy/kubernetes/snapshot-controller?ref=v8.6.0", "../controller")
	replace("snapshotter.yaml", "/var/lib/kubelet", filepath.Join(c.Dir, "kubelet"))
	c.Must(t, "apply", "-k", filepath.Join(dir, "snapshots"))
	c.Must(t, "wait", "crd/volumesnapshotclasses.snapshot.storage.k8s.io", "crd/volumesnapshots.snapshot.storage.k8s.io",
		"--for=condition=Established", "--timeout=60s")
	c.Must(t, "apply", "-f", filepath.Join(dir, "snapshots", "class.yaml"))
}

// programImage has the cluster have an image with one program.
func programImage(t *testing.T, c *harness.Cluster, program, image string) {
	t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err = w.WriteHeader(&tar.Header{Name: filepath.Base(program), Mode: 0o755, Size: int64(len(text))})
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: "linux", Architecture: runtime.GOARCH,
		Config: v1.Config{Entrypoint: []string{"/" + filepath.Base(program)}},
	})
	if err == nil {
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(image)
	if err == nil {
		err = tarball.WriteToFile(filepath.Join(c.Dir, "images", filepath.Base(program)+".tar"), tag, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}
