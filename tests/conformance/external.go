package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-project/shoal/agent/oci"
)

// driverFile says to upstream's suite what the driver that ships with Shoal can do:
// its specs are those of "External Storage".
const driverFile = `# Written by the rig.
StorageClass:
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
`

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
