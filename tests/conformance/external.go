package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-project/shoal/agent/oci"
	"github.com/shoal-project/shoal/tests/harness"
	"github.com/shoal-project/shoal/tests/upstream"
)

// driverFile says to upstream's suite what the driver that ships with Shoal can do:
// its specs are those of "External Storage".
const driverFile = `# Written by the rig.
StorageClass:
  FromExistingClassName: local
SnapshotClass:
  FromExistingClassName: local
DriverInfo:
  Name: local.shoal-project.io
  SupportedSizeRange: {Min: 16Mi, Max: 1Gi}
  SupportedFsType: {"": {}, ext4: {}, xfs: {}}
  SupportedMountOption: {noatime: {}}
  RequiredAccessModes: [ReadWriteOnce]
  TopologyKeys: [local.shoal-project.io/node]
  Capabilities:
    persistence: true
    block: true
    fsGroup: true
    exec: true
    multipods: true
    singleNodeVolume: true
    topology: true
    capacity: true
    readWriteOncePod: true
    controllerExpansion: true
    nodeExpansion: true
    offlineExpansion: true
    # An ext4 grows while it is mounted only where the machine lets it.
    onlineExpansion: %t
    # Files of the nodes' disks share blocks.
    snapshotDataSource: true
    pvcDataSource: true
`

// diskSize is that of a node's disk for volumes. It is a sparse file.
const diskSize = 16 << 30

// newDisk makes the image of a disk whose files can share blocks.
func newDisk(file string) error {
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, diskSize)); err != nil {
		return err
	}
	if out, err := exec.Command("mkfs.xfs", "-q", "-m", "reflink=1", file).CombinedOutput(); err != nil {
		return fmt.Errorf("make a disk for volumes (mkfs.xfs is in Debian's xfsprogs): %w: %s", err, out)
	}
	return nil
}

// installSnapshots does what docs/storage.md says of snapshots, with the modules of the
// proxy, and with groups of them, which are off by default.
func installSnapshots(ctx context.Context, c *harness.Cluster, cache string) error {
	controller, client, err := upstream.SnapshotSources(ctx, filepath.Join(cache, "csi-src", "snapshots"))
	if err != nil {
		return err
	}
	kustomization, class, err := upstream.Snapshots(filepath.Join(c.Dir, "snapshots"), controller, client,
		"/var/lib/kubelet")
	if err != nil {
		return err
	}
	if err := allowGroups(filepath.Join(kustomization, "kustomization.yaml")); err != nil {
		return err
	}
	for _, args := range []string{
		"apply -k " + kustomization,
		"wait crd/volumesnapshotclasses.snapshot.storage.k8s.io crd/volumesnapshots.snapshot.storage.k8s.io" +
			" --for=condition=Established --timeout=60s",
		"apply -f " + class,
		"-n kube-system rollout status deployment/snapshot-controller --timeout=180s",
		"-n kube-system rollout status daemonset/local-snapshotter --timeout=180s",
	} {
		if _, err := c.Kubectl("", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

// allowGroups has the snapshot controller know groups of snapshots.
func allowGroups(kustomization string) error {
	text, err := os.ReadFile(kustomization)
	if err != nil {
		return err
	}
	const patch = "    - {op: add, path: /spec/template/spec/containers/0/args/-, value: "
	const gate = "--feature-gates=CSIVolumeGroupSnapshot=true}\n"
	patched := strings.Replace(string(text), patch, patch+gate+patch, 1)
	if patched == string(text) {
		return fmt.Errorf("%s has no patch of the controller's arguments", kustomization)
	}
	return os.WriteFile(kustomization, []byte(patched), 0o600)
}

// externalDriver are the suite's arguments for it, in runs of storage.
func (o options) externalDriver() []string {
	if !o.storage() {
		return nil
	}
	return []string{"--storage.testdriver=" + o.driverFile()}
}

func (o options) driverFile() string { return filepath.Join(o.bin, "conformance", "local-driver.yaml") }

// writeDriverFile writes what this machine lets the driver do.
func (o options) writeDriverFile() error {
	if !o.storage() {
		return nil
	}
	host, err := oci.ReadHost(false)
	if err != nil {
		return err
	}
	return os.WriteFile(o.driverFile(), fmt.Appendf(nil, driverFile,
		slices.Contains(host.Capabilities, "CAP_SYS_RESOURCE")), 0o644)
}
