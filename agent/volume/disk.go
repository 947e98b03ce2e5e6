package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/csi/storagenet"
)

// A disk of a storage network (iscsi, fc) is found on the node by this agent, mounted
// once for all pods of the node, and bound to the place of each. What it is to the
// node is told by network (its target and number, whatever the portals are), so that
// two PersistentVolumes of one disk are never two mounts.

// Disk is what the record of a volume on such a disk knows beside its source.
type Disk struct {
	// Global is where the disk is mounted for all pods of the node, or for a device
	// the link to it.
	Global string `json:"global"`
	// ReadOnly: it is mounted so.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Taken names the machine's start since when the disk is the pods': before,
	// somebody else could have had it.
	Taken string `json:"taken,omitempty"`
	// InUse is the disk's name in the Node's status, by which the cluster gives it to one
	// node at a time; "" for a disk that the pod itself names.
	InUse corev1.UniqueVolumeName `json:"inUse,omitempty"`
	// Searches are the portals for which the agent made a record of how to ask them
	// for their targets.
	Searches []string `json:"searches,omitempty"`
}

// diskSource is a disk as a volume names it.
type diskSource struct {
	// key is the same for all that name the same disk.
	key string
	// dir is where upstream mounts it, below plugins/kubernetes.io, by plugin.
	plugin, dir string
	fsType      string
	readOnly    bool
	// invalid tells what is wrong with it.
	invalid error
}

// diskOf is the disk behind a volume, nil where it has none.
func diskOf(s Source) *diskSource {
	if i := iscsiOf(s); i != nil {
		return i.disk()
	}
	if f := fcOf(s); f != nil {
		return f.disk()
	}
	return nil
}

// ofNode tells whether the volume is made ready once for all pods of the node.
func (s Source) ofNode() bool { return s.Persistent != nil || diskOf(s) != nil }

// joinDisk finds where the disk of a volume is mounted, or is to be. Who uses the disk
// does not change meanwhile.
func (m *Manager) joinDisk(v *Volume) error {
	d := diskOf(v.Source)
	if d == nil {
		return nil
	}
	if d.invalid != nil {
		return d.invalid
	}
	name := m.nameInStatus(v)
	if old := m.recorded(v.Pod.UID, v.Volume.Name); old != nil && old.Disk != nil && v.same(old) {
		v.Disk = old.Disk
		m.mu.Lock()
		v.Disk.InUse = name // one of an agent that did not tell it
		m.mu.Unlock()
		return nil
	}
	only := v.readsOnly(d)
	others := m.using(v, func(o Source) bool { return diskOf(o) != nil && diskOf(o).key == d.key })
	if len(others) == 0 {
		dir := filepath.Join(m.RootDir, "plugins", "kubernetes.io", d.plugin)
		if v.block() {
			dir = filepath.Join(dir, "volumeDevices")
		}
		v.Disk = &Disk{Global: filepath.Join(dir, d.dir), ReadOnly: only, InUse: name}
		return nil
	}
	o := others[0]
	switch {
	case o.block() != v.block():
		return fmt.Errorf("pod %s/%s of this node has the same disk with another volumeMode",
			o.Pod.Namespace, o.Pod.Name)
	case o.Disk.ReadOnly && !only:
		return fmt.Errorf("pod %s/%s of this node has the same disk, which is mounted read-only for it; "+
			"it can be written when that pod is gone", o.Pod.Namespace, o.Pod.Name)
	}
	v.Disk = &Disk{Global: o.Disk.Global, ReadOnly: o.Disk.ReadOnly, InUse: name}
	return nil
}

// nameInStatus is what the Node's status calls the disk of a PersistentVolume.
func (m *Manager) nameInStatus(v *Volume) corev1.UniqueVolumeName {
	if m.Storage == nil { // a node without an API: nobody would list it
		return ""
	}
	return storagenet.Name(v.Persistent)
}

// readsOnly tells whether the pod only reads the disk: many nodes may do that at once.
func (v *Volume) readsOnly(d *diskSource) bool {
	if d.readOnly || v.Volume.PersistentVolumeClaim != nil && v.Volume.PersistentVolumeClaim.ReadOnly {
		return true
	}
	return v.Persistent != nil && len(v.Persistent.Spec.AccessModes) > 0 &&
		!slices.ContainsFunc(v.Persistent.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return m != corev1.ReadOnlyMany
		})
}

// using lists the other records on disks whose source is so.
func (m *Manager) using(v *Volume, is func(Source) bool) []*Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*Volume
	for _, e := range m.pods {
		for _, o := range e.volumes {
			if o.key() != v.key() && o.Disk != nil && is(o.Source) {
				list = append(list, o)
			}
		}
	}
	return list
}

// LeaveDisks undoes, from the records alone, the volumes on disks of a storage network:
// for a machine that no agent is to run on any more. Nothing has them by now.
func (m *Manager) LeaveDisks(ctx context.Context) error {
	if err := m.Restore(nil); err != nil {
		return err
	}
	all, err := m.records().All()
	if err != nil {
		return err
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if v := all[key]; v.Disk != nil {
			errs = append(errs, m.undo(ctx, m.recorded(v.Pod.UID, v.Volume.Name)))
		}
	}
	return errors.Join(errs...)
}

// diskUsers is who has disks of this node (Manager).
type diskUsers interface {
	// using lists the other records whose source is so.
	using(v *Volume, is func(Source) bool) []*Volume
	// exclusive has something of that name to itself until done is called.
	exclusive(ctx context.Context, name string) (done func(), err error)
	// take has the record say, in time, that the disk is the pods'.
	take(v *Volume) error
	// searches has the record say, in time, that a portal is asked by a record of the
	// agent's.
	searches(v *Volume, portal string) error
	// taken tells whether the disk is the pods' since the machine started.
	taken(v *Volume) bool
}

func (m *Manager) start() string { return "start " + m.Boot }

// take implements diskUsers.
func (m *Manager) take(v *Volume) error {
	m.mu.Lock()
	v.Disk.Taken = m.start()
	m.mu.Unlock()
	return m.keep(v)
}

// searches implements diskUsers.
func (m *Manager) searches(v *Volume, portal string) error {
	m.mu.Lock()
	v.Disk.Searches = append(slices.Clone(v.Disk.Searches), portal)
	m.mu.Unlock()
	return m.keep(v)
}

// taken implements diskUsers.
func (m *Manager) taken(v *Volume) bool {
	key := diskOf(v.Source).key
	others := m.using(v, func(s Source) bool { return diskOf(s).key == key })
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(append(others, v), func(o *Volume) bool { return o.Disk.Taken == m.start() })
}

// finder brings a disk to the node, and takes it away.
type finder interface {
	// find returns the disk's device. The error tells what is to be done.
	find(ctx context.Context, v *Volume) (device string, err error)
	// lose undoes find. Nothing of the node has the disk any more.
	lose(ctx context.Context, v *Volume) error
}

// diskDriver makes the volumes of one kind of disks.
type diskDriver struct {
	fixed
	finder
	plugin string // the type's name in upstream's paths
	users  diskUsers
	mounts mounter
	log    *slog.Logger
}

// Supports implements driver.
func (d diskDriver) Supports(s Source) bool {
	disk := diskOf(s)
	return disk != nil && disk.plugin == d.plugin && !s.block()
}

// Path implements driver.
func (d diskDriver) Path(podDir string, s Source) string {
	return filepath.Join(podDir, "volumes", "kubernetes.io~"+d.plugin, s.name())
}

// Stage implements driver.
func (d diskDriver) Stage(ctx context.Context, v *Volume) error {
	device, err := d.ready(ctx, v)
	if err != nil {
		return &Error{Step: "WaitForAttach", Err: err}
	}
	disk := diskOf(v.Source)
	if err := os.MkdirAll(v.Disk.Global, 0o750); err != nil {
		return &Error{Step: "MountDevice", Err: err}
	}
	err = d.mounts.Format(ctx, disk.fsType, device, v.Disk.Global,
		v.labelled(mountOptions(v.Source, v.Disk.ReadOnly)))
	if err != nil {
		return &Error{Step: "MountDevice", Err: fmt.Errorf("%s: failed to mount device %s at %s (fstype: %s): %w",
			d.plugin, device, v.Disk.Global, disk.fsType, err)}
	}
	return nil
}

// ready finds the disk, and sees once that nobody else has it: what the node itself
// has mounted is not for pods.
func (d diskDriver) ready(ctx context.Context, v *Volume) (device string, err error) {
	if v.Disk == nil {
		return "", fmt.Errorf("%s: the volume's record tells nothing of its disk", d.plugin)
	}
	if device, err = d.find(ctx, v); err != nil || d.users.taken(v) {
		return device, err
	}
	if err := idle(device); err != nil {
		return "", fmt.Errorf("%s: %w", d.plugin, err)
	}
	return device, d.users.take(v)
}

// Mount implements driver. The volume is given to the pod's group, once: containers may
// set other rights afterwards.
func (d diskDriver) Mount(ctx context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	if is, err := v.stands(d.mounts); is || err != nil {
		return time.Time{}, err
	}
	if err := os.MkdirAll(v.Path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return time.Time{}, err
	}
	readOnly := v.Disk.ReadOnly || v.readsOnly(diskOf(v.Source))
	options := append([]string{"bind"}, mountOptions(v.Source, readOnly)...)
	if err := d.mounts.Mount(ctx, "none", v.Disk.Global, v.Path, options); err != nil {
		return time.Time{}, err
	}
	if group := fsGroup(p); group != nil && !readOnly {
		return time.Time{}, own(v.Path, int(*group), changePolicy(p), d.log)
	}
	return time.Time{}, nil
}

// Grow implements grower. That the disk has grown is the node's to notice.
func (d diskDriver) Grow(ctx context.Context, v *Volume) error {
	device, err := d.find(ctx, v)
	if err != nil {
		return fmt.Errorf("%s: %w", d.plugin, err)
	}
	return d.mounts.Resize(ctx, device, v.Disk.Global)
}

// Unmount implements driver. Only an empty directory is removed.
func (d diskDriver) Unmount(ctx context.Context, v *Volume) error { return d.unmounted(ctx, v.Path) }

// Unstage implements driver.
func (d diskDriver) Unstage(ctx context.Context, v *Volume) error {
	if v.Disk == nil {
		return nil
	}
	if err := d.unmounted(ctx, v.Disk.Global); err != nil {
		return err
	}
	return d.lost(ctx, v)
}

// lost undoes what ready found.
func (d diskDriver) lost(ctx context.Context, v *Volume) error {
	_ = os.Remove(filepath.Dir(v.Disk.Global)) // another disk may be in it
	if err := d.lose(ctx, v); err != nil {
		return fmt.Errorf("UnmountDevice failed for volume %q : %s: %w", v.name(), d.plugin, err)
	}
	return nil
}

func (d diskDriver) unmounted(ctx context.Context, path string) error {
	if err := d.mounts.Unmount(ctx, path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// diskBlockDriver gives pods such disks as devices. Below plugins/kubernetes.io a link
// tells which device the disk is.
type diskBlockDriver struct{ diskDriver }

// Supports implements driver.
func (d diskBlockDriver) Supports(s Source) bool {
	disk := diskOf(s)
	return disk != nil && disk.plugin == d.plugin && s.block()
}

// Path implements driver.
func (d diskBlockDriver) Path(podDir string, s Source) string { return devicePath(podDir, d.plugin, s) }

// Stage implements driver.
func (d diskBlockDriver) Stage(ctx context.Context, v *Volume) error {
	device, err := d.ready(ctx, v)
	if err != nil {
		return inStep(stepSetUpDevice, err)
	}
	return inStep(stepSetUpDevice, linkDevice(v.Disk.Global, device))
}

// Grow implements grower. A device shows its size by itself.
func (d diskBlockDriver) Grow(context.Context, *Volume) error { return nil }

// Mount implements driver.
func (d diskBlockDriver) Mount(_ context.Context, _ *corev1.Pod, v *Volume) (time.Time, error) {
	device, err := os.Readlink(v.Disk.Global)
	if err != nil {
		return time.Time{}, inStep(stepMap, err)
	}
	return time.Time{}, inStep(stepMap, linkDevice(v.Path, device))
}

// Unmount implements driver.
func (diskBlockDriver) Unmount(_ context.Context, v *Volume) error { return unlinkDevice(v.Path) }

// Unstage implements driver.
func (d diskBlockDriver) Unstage(ctx context.Context, v *Volume) error {
	if v.Disk == nil {
		return nil
	}
	if err := os.Remove(v.Disk.Global); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.lost(ctx, v)
}

// idle tells whether nobody has a device: it is not mounted anywhere, in no mount
// namespace, and no part of another.
func idle(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY|os.O_EXCL|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("the disk %s is in use by something that is no pod's volume: see lsblk and findmnt", device)
	}
	if errors.Is(err, unix.ENOMEDIUM) || errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("the disk %s cannot be read: %w", device, err)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// safeName tells whether a name of a volume can be part of a path, and of nothing else
// than one name.
func safeName(name string) bool {
	return name != "" && len(name) <= 223 && name != "." && name != ".." &&
		strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:_-") == ""
}
