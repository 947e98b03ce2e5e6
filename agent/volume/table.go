package volume

import (
	"errors"
	"fmt"
	"strings"
)

// row is a line of the table of drivers.
type row struct {
	// name is the driver's, in records and messages.
	name string
	// claims: persistent volumes of this type may be behind claims.
	claims bool
	driver
}

// csiRow and csiBlockRow are the lines of storage drivers.
const (
	csiRow      = "csi"
	csiBlockRow = "csiBlock"
)

// emptyDirRow and projectedRow are the lines of what the node makes of its own disk and
// memory: directories, and what the API and the node tell.
const (
	emptyDirRow  = "emptyDir"
	projectedRow = "projected"
)

// nfsRow is the line of what servers have.
const nfsRow = "nfs"

// ofStorageDriver tells whether a storage driver makes the volume.
func (v *Volume) ofStorageDriver() bool { return v.Driver == csiRow || v.Driver == csiBlockRow }

// table lists the drivers, of which the first that supports a volume makes it.
// A new type of volume is a file with its driver, and a line here.
func (m *Manager) table() []row {
	if m.rows != nil {
		return m.rows
	}
	mounts := m.mounter()
	storage := csiDriver{root: m.RootDir, node: m.NodeName, drivers: m.storageDrivers(), objects: m.Objects,
		tokens: m.Tokens, mounts: mounts, boot: m.Boot, log: m.Log}
	iscsi := diskDriver{plugin: "iscsi", users: m, mounts: mounts, log: m.Log,
		finder: iscsiFinder{diskNode: m.diskNode(), users: m, objects: m.Objects}}
	projected := projectedDriver{objects: m.Objects, tokens: m.Tokens, facts: m.Facts, mounts: mounts}
	fc := diskDriver{plugin: "fc", users: m, mounts: mounts, log: m.Log, finder: fcFinder{m.diskNode()}}
	return []row{
		{name: emptyDirRow, driver: emptyDirDriver{mounts: mounts, quotas: m.Quotas, memory: m.Memory, log: m.Log}},
		{name: "hostPath", driver: hostPathDriver{}, claims: true},
		{name: projectedRow, driver: projected},
		{name: "local", driver: localDriver{root: m.RootDir, mounts: mounts, used: m.usedByOthers, tell: m.tell,
			log: m.Log}, claims: true},
		{name: nfsRow, driver: nfsDriver{mounts: mounts}, claims: true},
		{name: "iscsi", driver: iscsi, claims: true},
		{name: "fc", driver: fc, claims: true},
		{name: "image", driver: imageDriver{}},
		{name: csiRow, claims: true, driver: storage},
		{name: csiBlockRow, driver: csiBlockDriver{storage}},
		{name: "localBlock", driver: localBlockDriver{}},
		{name: "iscsiBlock", driver: diskBlockDriver{iscsi}},
		{name: "fcBlock", driver: diskBlockDriver{fc}},
	}
}

func (m *Manager) storageDrivers() StorageDrivers {
	if m.Drivers == nil {
		return noDrivers{}
	}
	return m.Drivers
}

// find returns the driver of a volume.
func find(table []row, s Source) (row, error) {
	for _, r := range table {
		if r.Supports(s) {
			return r, nil
		}
	}
	switch {
	case s.Volume.GitRepo != nil:
		return row{}, errors.New("gitRepo volumes are not supported: use an init container that clones the repository")
	case s.Volume.FlexVolume != nil, s.Persistent != nil && s.Persistent.Spec.FlexVolume != nil:
		return row{}, errors.New("flexVolume drivers are not supported: use a CSI driver")
	case s.block():
		return row{}, fmt.Errorf("persistent volume %s: only local, iscsi, fc and csi volumes can have volumeMode Block",
			s.Persistent.Name)
	case s.Persistent == nil:
		return row{}, errors.New("such volumes are not supported by this node yet")
	}
	var names []string
	for _, r := range table {
		if r.claims {
			names = append(names, r.name)
		}
	}
	return row{}, fmt.Errorf("persistent volume %s: only %s and %s volumes are supported by this node yet",
		s.Persistent.Name, strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
}

// made returns the driver that made a volume, by its record.
func made(table []row, v *Volume) (row, error) {
	for _, r := range table {
		if r.name == v.Driver {
			return r, nil
		}
	}
	return row{}, fmt.Errorf("volume %q was made by driver %q, which this agent does not have", v.Volume.Name, v.Driver)
}
