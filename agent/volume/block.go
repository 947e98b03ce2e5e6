package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/csi"
)

// block tells whether containers get the volume as a device.
func (s Source) block() bool {
	return s.Persistent != nil && s.Persistent.Spec.VolumeMode != nil &&
		*s.Persistent.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// devicePath is where a device of a pod is: a link to it, named as the kubelet's.
func devicePath(podDir, plugin string, s Source) string {
	return filepath.Join(podDir, "volumeDevices", "kubernetes.io~"+plugin, s.Persistent.Name)
}

// linkDevice makes the link to a device.
func linkDevice(path, device string) error {
	if is, err := os.Readlink(path); err == nil && is == device {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(device, path)
}

// unlinkDevice removes the link, and the directories that are empty then.
func unlinkDevice(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	_ = os.Remove(dir)               // another device may be in it
	_ = os.Remove(filepath.Dir(dir)) // the same
	return nil
}

// localBlockDriver gives pods devices of the node, behind claims.
type localBlockDriver struct{ fixed }

// Supports implements driver.
func (localBlockDriver) Supports(s Source) bool { return s.block() && s.Persistent.Spec.Local != nil }

// Path implements driver.
func (localBlockDriver) Path(podDir string, s Source) string {
	return devicePath(podDir, "local-volume", s)
}

// Mount implements driver.
func (localBlockDriver) Mount(_ context.Context, _ *corev1.Pod, v *Volume) (time.Time, error) {
	device := v.Persistent.Spec.Local.Path
	st, err := os.Stat(device)
	if err != nil {
		return time.Time{}, inStep(stepMap, err)
	}
	if st.Mode()&(fs.ModeDevice|fs.ModeCharDevice) != fs.ModeDevice {
		return time.Time{}, inStep(stepMap, fmt.Errorf("local volume %q is no block device", device))
	}
	return time.Time{}, inStep(stepMap, linkDevice(v.Path, device))
}

// Grow implements grower. A device shows its size by itself.
func (localBlockDriver) Grow(context.Context, *Volume) error { return nil }

// Unmount implements driver.
func (localBlockDriver) Unmount(_ context.Context, v *Volume) error { return unlinkDevice(v.Path) }

// Steps of devices, in upstream's words.
const (
	stepSetUpDevice = "MapVolume.SetUpDevice"
	stepMap         = "MapVolume.MapPodDevice"
)

// csiBlockDriver has storage drivers bring devices. Below DIR, which is
// plugins/kubernetes.io/csi/volumeDevices, the driver stages at staging/NAME and
// publishes at publish/NAME/UID, a file; NAME/data/vol_data.json is there before
// the driver is called first, and goes when it has undone all. The link to the
// device is made before the driver publishes it, so that it tells what to undo.
type csiBlockDriver struct{ csiDriver }

// Supports implements driver.
func (csiBlockDriver) Supports(s Source) bool { return s.block() && csiOf(s) != nil }

// Path implements driver.
func (csiBlockDriver) Path(podDir string, s Source) string { return devicePath(podDir, "csi", s) }

// Follows implements driver.
func (csiBlockDriver) Follows(Source) bool { return false }

// blockPaths are those of one volume.
type blockPaths struct{ staging, publish, data string }

func (d csiBlockDriver) paths(v *Volume) blockPaths {
	dir, name := filepath.Join(d.root, "plugins", csi.Plugin, "volumeDevices"), v.Persistent.Name
	return blockPaths{
		staging: filepath.Join(dir, "staging", name),
		publish: filepath.Join(dir, "publish", name),
		data:    filepath.Join(dir, name, "data"),
	}
}

// target is where the device is published for its pod.
func (d csiBlockDriver) target(v *Volume) string {
	return filepath.Join(d.paths(v).publish, string(v.Pod.UID))
}

func (d csiBlockDriver) useBlock(v *Volume) csi.Use {
	return csi.Use{Block: true, Access: v.use(false).Access}
}

// Stage implements driver.
func (d csiBlockDriver) Stage(ctx context.Context, v *Volume) error {
	c, at := v.Persistent.Spec.CSI, d.paths(v)
	client, err := d.drivers.Client(c.Driver)
	if err != nil {
		return inStep(stepSetUpDevice,
			fmt.Errorf("kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: %w", err))
	}
	can, err := client.Capabilities(ctx)
	if err != nil {
		return inStep(stepSetUpDevice, err)
	}
	secrets, err := d.secrets(ctx, "NodeStageSecretRef", c.NodeStageSecretRef, "")
	if err != nil {
		return inStep(stepSetUpDevice, err)
	}
	if err := os.MkdirAll(at.data, 0o750); err != nil {
		return inStep(stepSetUpDevice, err)
	}
	data := d.publishData(v, c.Driver)
	delete(data, "volumeLifecycleMode")
	if err := writeData(filepath.Join(at.data, "beside"), data); err != nil || !can.Stages {
		return inStep(stepSetUpDevice, err)
	}
	_, known := os.Lstat(at.staging)
	if err := os.MkdirAll(at.staging, 0o750); err != nil {
		return inStep(stepSetUpDevice, err)
	}
	err = client.Stage(ctx, csi.Stage{
		Volume:         c.VolumeHandle,
		Path:           at.staging,
		Use:            d.useBlock(v),
		PublishContext: v.CSI.PublishContext,
		VolumeContext:  c.VolumeAttributes,
		Secrets:        secrets,
	})
	if err != nil && csi.Final(err) && known != nil {
		// Nothing came of the first try, so there is nothing to undo.
		return errors.Join(inStep(stepSetUpDevice, err), inStep(stepSetUpDevice, os.Remove(at.staging)))
	}
	return inStep(stepSetUpDevice, err)
}

// Mount implements driver.
func (d csiBlockDriver) Mount(ctx context.Context, p *corev1.Pod, v *Volume) (time.Time, error) {
	if v.CSI.published {
		return time.Time{}, nil
	}
	if err := d.publish(ctx, p, v); err != nil {
		return time.Time{}, inStep(stepMap, err)
	}
	v.CSI.published = true
	return time.Time{}, nil
}

func (d csiBlockDriver) publish(ctx context.Context, p *corev1.Pod, v *Volume) error {
	src, at := csiOf(v.Source), d.paths(v)
	client, err := d.drivers.Client(src.driver)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: blockMapper.MapPodDevice failed to get CSI client: %w", err)
	}
	can, err := client.Capabilities(ctx)
	if err != nil {
		return err
	}
	secrets, err := d.secrets(ctx, "NodePublishSecretRef", src.publishSecret, p.Namespace)
	if err != nil {
		return err
	}
	attributes := maps.Clone(src.attributes)
	if v.CSI.Spec != nil {
		about := &storagev1.CSIDriverSpec{PodInfoOnMount: v.CSI.Spec.PodInfoOnMount} // devices get no tokens
		if attributes, secrets, err = d.podInfo(ctx, p, v, about, attributes, secrets); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(at.publish, 0o750); err != nil {
		return err
	}
	target := d.target(v)
	_, known := os.Lstat(v.Path)
	if err := linkDevice(v.Path, target); err != nil {
		return err
	}
	call := csi.Publish{
		Volume:         v.handle(),
		Path:           target,
		Use:            d.useBlock(v),
		ReadOnly:       src.readOnly,
		PublishContext: v.CSI.PublishContext,
		VolumeContext:  attributes,
		Secrets:        secrets,
	}
	if can.Stages {
		call.StagingPath = at.staging
	}
	err = client.Publish(ctx, call)
	if err != nil && csi.Final(err) && known != nil {
		err = errors.Join(err, unlinkDevice(v.Path))
	}
	return err
}

// Unmount implements driver.
func (d csiBlockDriver) Unmount(ctx context.Context, v *Volume) error {
	if _, err := os.Lstat(v.Path); errors.Is(err, fs.ErrNotExist) {
		return nil // the driver was never called
	}
	failed := func(err error) error {
		return fmt.Errorf("UnmapVolume.UnmapPodDevice failed for volume %q : %w", v.Persistent.Name, err)
	}
	client, err := d.drivers.Client(v.Persistent.Spec.CSI.Driver)
	if err != nil {
		return failed(err)
	}
	target := d.target(v)
	if err := client.Unpublish(ctx, v.handle(), target); err != nil {
		return failed(err)
	}
	v.CSI.published = false
	if err := d.mounts.UnmountUnder(target); err != nil {
		return failed(err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	return unlinkDevice(v.Path)
}

// Unstage implements driver.
func (d csiBlockDriver) Unstage(ctx context.Context, v *Volume) error {
	at := d.paths(v)
	failed := func(err error) error {
		return fmt.Errorf("UnmapVolume.TearDownDevice failed for volume %q : %w", v.Persistent.Name, err)
	}
	if _, err := os.Lstat(at.staging); err == nil {
		client, err := d.drivers.Client(v.Persistent.Spec.CSI.Driver)
		if err != nil {
			return failed(err)
		}
		if err := client.Unstage(ctx, v.handle(), at.staging); err != nil {
			return failed(err)
		}
		if err := d.mounts.UnmountUnder(at.staging); err != nil {
			return failed(err)
		}
		// What the driver wrote there about the device; no content of a volume.
		if err := beneath.RemoveAll(at.staging); err != nil {
			return failed(err)
		}
	}
	file := dataFile(filepath.Join(at.data, "beside"))
	for _, name := range []string{at.publish, file + ".new", file, at.data, filepath.Dir(at.data)} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(err)
		}
	}
	return nil
}
