package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// newDriver is a driver with a directory of its own; its mounts and loop devices
// end with the test.
func newDriver(t *testing.T, dir string) *Driver {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	d, err := New(Config{Directory: dir, NodeID: "n1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mountUse() *csipb.VolumeCapability {
	return &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
	}
}

func blockUse() *csipb.VolumeCapability {
	c := mountUse()
	c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	return c
}

const mib = 1 << 20

func create(t *testing.T, d *Driver, name string, size int64, use *csipb.VolumeCapability) string {
	t.Helper()
	r, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
		Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csipb.VolumeCapability{use},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetVolume().GetVolumeId()
}

// use stages and publishes a volume, and returns where.
func use(t *testing.T, d *Driver, volume string, how *csipb.VolumeCapability) (staged, published string) {
	t.Helper()
	dir := t.TempDir()
	staged, published = filepath.Join(dir, "staged"), filepath.Join(dir, "published")
	t.Cleanup(func() { stop(t, d, volume, staged, published) })
	_, err := d.NodeStageVolume(context.Background(), &csipb.NodeStageVolumeRequest{
		VolumeId: volume, StagingTargetPath: staged, VolumeCapability: how})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.NodePublishVolume(context.Background(), &csipb.NodePublishVolumeRequest{
		VolumeId: volume, StagingTargetPath: staged, TargetPath: published, VolumeCapability: how})
	if err != nil {
		t.Fatal(err)
	}
	return staged, published
}

func stop(t *testing.T, d *Driver, volume, staged, published string) {
	t.Helper()
	_, err := d.NodeUnpublishVolume(context.Background(), &csipb.NodeUnpublishVolumeRequest{
		VolumeId: volume, TargetPath: published})
	if err != nil {
		t.Error(err)
	}
	_, err = d.NodeUnstageVolume(context.Background(), &csipb.NodeUnstageVolumeRequest{
		VolumeId: volume, StagingTargetPath: staged})
	if err != nil {
		t.Error(err)
	}
}

// fill writes until the volume is full, and returns how much it took.
func fill(t *testing.T, dir string) int64 {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var size int64
	for part := make([]byte, mib); size < 1<<30; {
		n, err := f.Write(part)
		size += int64(n)
		if errors.Is(err, unix.ENOSPC) {
			return size
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the volume has no end")
	return 0
}

func TestSizeIsAHardLimit(t *testing.T) {
	d := newDriver(t, t.TempDir())
	v := create(t, d, "pvc-1", 64*mib, mountUse())
	_, dir := use(t, d, v, mountUse())
	if got := fill(t, dir); got > 64*mib || got < 48*mib {
		t.Errorf("a volume of 64 MiB took %d bytes", got)
	}
	_, err := d.DeleteVolume(context.Background(), &csipb.DeleteVolumeRequest{VolumeId: v})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a volume in use was deleted: %v", err)
	}
}

func TestDataStays(t *testing.T) {
	home := t.TempDir()
	d := newDriver(t, home)
	v := create(t, d, "pvc-1", 32*mib, mountUse())
	staged, dir := use(t, d, v, mountUse())
	if err := os.WriteFile(filepath.Join(dir, "data"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	stop(t, d, v, staged, dir)
	d = newDriver(t, home) // another process
	_, dir = use(t, d, v, mountUse())
	if got, err := os.ReadFile(filepath.Join(dir, "data")); err != nil || string(got) != "kept" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestExpandStaged expands a volume that nobody uses: it has its size where it is
// staged the next time. Not every machine lets ext4 grow while it is mounted.
func TestExpandStaged(t *testing.T) {
	d := newDriver(t, t.TempDir())
	v := create(t, d, "pvc-1", 32*mib, mountUse())
	r, err := d.ControllerExpandVolume(context.Background(), &csipb.ControllerExpandVolumeRequest{
		VolumeId: v, CapacityRange: &csipb.CapacityRange{RequiredBytes: 96 * mib}, VolumeCapability: mountUse()})
	if err != nil || r.GetCapacityBytes() != 96*mib || !r.GetNodeExpansionRequired() {
		t.Fatal(r, err)
	}
	staged, dir := use(t, d, v, mountUse())
	e, err := d.NodeExpandVolume(context.Background(), &csipb.NodeExpandVolumeRequest{
		VolumeId: v, VolumePath: dir, StagingTargetPath: staged,
		CapacityRange: &csipb.CapacityRange{RequiredBytes: 96 * mib}})
	if err != nil || e.GetCapacityBytes() != 96*mib {
		t.Fatal(e, err)
	}
	if got := fill(t, dir); got < 64*mib || got > 96*mib {
		t.Errorf("a volume of 96 MiB took %d bytes", got)
	}
}

func TestExpandMounted(t *testing.T) {
	d := newDriver(t, t.TempDir())
	v := create(t, d, "pvc-1", 32*mib, mountUse())
	staged, dir := use(t, d, v, mountUse())
	expand := func(size int64) error {
		_, err := d.NodeExpandVolume(context.Background(), &csipb.NodeExpandVolumeRequest{
			VolumeId: v, VolumePath: dir, StagingTargetPath: staged,
			CapacityRange: &csipb.CapacityRange{RequiredBytes: size}})
		return err
	}
	if err := expand(96 * mib); status.Code(err) != codes.OutOfRange {
		t.Errorf("the node expanded what the controller has not: %v", err)
	}
	_, err := d.ControllerExpandVolume(context.Background(), &csipb.ControllerExpandVolumeRequest{
		VolumeId: v, CapacityRange: &csipb.CapacityRange{RequiredBytes: 96 * mib}, VolumeCapability: mountUse()})
	if err != nil {
		t.Fatal(err)
	}
	switch err := expand(96 * mib); {
	case status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "CAP_SYS_RESOURCE"):
		t.Log("this machine does not let ext4 grow while it is mounted")
	case err != nil:
		t.Error(err)
	default:
		if got := fill(t, dir); got < 64*mib {
			t.Errorf("a volume of 96 MiB took %d bytes", got)
		}
	}
}

func TestDevice(t *testing.T) {
	d := newDriver(t, t.TempDir())
	v := create(t, d, "pvc-1", 32*mib, blockUse())
	staged, path := use(t, d, v, blockUse())
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		t.Fatalf("mode %o, %v", st.Mode, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|os.O_SYNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if end, err := f.Seek(0, 2); err != nil || end != 32*mib {
		t.Errorf("the device has %d bytes, %v", end, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// Twice the same call is once.
	use := &csipb.NodeStageVolumeRequest{VolumeId: v, StagingTargetPath: staged, VolumeCapability: blockUse()}
	if _, err := d.NodeStageVolume(context.Background(), use); err != nil {
		t.Error(err)
	}
	if list, err := attached(d.volumes.image(v)); err != nil || len(list) != 1 {
		t.Errorf("devices %q, %v", list, err)
	}
	stop(t, d, v, staged, path)
	if list, err := attached(d.volumes.image(v)); err != nil || len(list) != 0 {
		t.Errorf("devices %q are left, %v", list, err)
	}
}

// TestRoomIsPromisedOnce has a disk of 96 MiB: what one volume may grow to, no other
// gets.
func TestRoomIsPromisedOnce(t *testing.T) {
	disk := newDriver(t, t.TempDir())
	_, dir := use(t, disk, create(t, disk, "disk", 96*mib, mountUse()), mountUse())
	d := newDriver(t, filepath.Join(dir, "volumes"))
	create(t, d, "pvc-1", 48*mib, blockUse())
	_, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
		Name: "pvc-2", CapacityRange: &csipb.CapacityRange{RequiredBytes: 48 * mib},
		VolumeCapabilities: []*csipb.VolumeCapability{blockUse()},
	})
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "no room for 50331648 bytes") {
		t.Errorf("got %v", err)
	}
	room, err := d.GetCapacity(context.Background(), &csipb.GetCapacityRequest{})
	if err != nil || room.GetAvailableCapacity() > 48*mib || room.GetAvailableCapacity() < 20*mib {
		t.Error(room, err)
	}
	create(t, d, "pvc-3", room.GetAvailableCapacity()-mib, blockUse()) // the disk takes a little for itself
}

// TestNamesAreNoPaths has volumes with names that would lead elsewhere.
func TestNamesAreNoPaths(t *testing.T) {
	d := newDriver(t, t.TempDir())
	for _, name := range []string{"../x", "a/b", ".", "..", ".making-x", strings.Repeat("n", 128), "ü", "-x"} {
		v := create(t, d, name, 16*mib, blockUse())
		if filepath.Base(v) != v || !plain.MatchString(v) {
			t.Errorf("%q has the directory %q", name, v)
		}
		if again := create(t, d, name, 16*mib, blockUse()); again != v {
			t.Errorf("%q is %q, then %q", name, v, again)
		}
	}
	for _, v := range []string{"../../etc", "/", "..", ".making-x"} {
		_, err := d.NodeStageVolume(context.Background(), &csipb.NodeStageVolumeRequest{
			VolumeId: v, StagingTargetPath: t.TempDir(), VolumeCapability: mountUse()})
		if status.Code(err) != codes.NotFound {
			t.Errorf("%q: %v", v, err)
		}
		if _, err := d.DeleteVolume(context.Background(), &csipb.DeleteVolumeRequest{VolumeId: v}); err != nil {
			t.Error(err)
		}
	}
}

// sharing is a directory on a disk of 512 MiB whose files can share blocks.
func sharing(t *testing.T) string {
	t.Helper()
	return sharingOf(t, 512*mib)
}

// sharingOf is sharing on a disk of that size. The disk is a volume of a driver too.
func sharingOf(t *testing.T, size int64) string {
	t.Helper()
	disk := newDriver(t, t.TempDir())
	how := mountUse()
	how.GetMount().FsType = "xfs"
	r, err := disk.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
		Name: "disk", CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csipb.VolumeCapability{how},
	})
	if err != nil && strings.Contains(err.Error(), "the node has no program mkfs.xfs") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, dir := use(t, disk, r.GetVolume().GetVolumeId(), how)
	return filepath.Join(dir, "volumes")
}

// TestCloneBesideItsSource mounts both at once: they have one UUID.
func TestCloneBesideItsSource(t *testing.T) {
	d := newDriver(t, sharingOf(t, 2<<30))
	for fsType, size := range map[string]int64{"ext4": 32 * mib, "xfs": 300 * mib} {
		how := mountUse()
		how.GetMount().FsType = fsType
		v := create(t, d, fsType, size, how)
		_, at := use(t, d, v, how)
		if err := os.WriteFile(filepath.Join(at, "file"), []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
			Name: "clone-" + fsType, CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
			VolumeCapabilities: []*csipb.VolumeCapability{how},
			VolumeContentSource: &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{
				Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: v}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, clone := use(t, d, r.GetVolume().GetVolumeId(), how)
		if got, err := os.ReadFile(filepath.Join(clone, "file")); err != nil || string(got) != "kept" {
			t.Errorf("%s: got %q, %v", fsType, got, err)
		}
	}
}

func TestCopies(t *testing.T) {
	dir := sharing(t)
	d := newDriver(t, dir)
	v := create(t, d, "pvc-1", 32*mib, mountUse())
	_, at := use(t, d, v, mountUse())
	text := bytes.Repeat([]byte("before"), 1000)
	if err := os.WriteFile(filepath.Join(at, "data"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := d.CreateSnapshot(context.Background(), &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: v})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "data"), []byte("after"), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, from := range []*csipb.VolumeContentSource{
		{Type: &csipb.VolumeContentSource_Snapshot{Snapshot: &csipb.VolumeContentSource_SnapshotSource{
			SnapshotId: s.GetSnapshot().GetSnapshotId()}}},
		{Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: v}}},
	} {
		made, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
			Name: fmt.Sprint("copy-", i), CapacityRange: &csipb.CapacityRange{RequiredBytes: 48 * mib},
			VolumeCapabilities: []*csipb.VolumeCapability{mountUse()}, VolumeContentSource: from,
		})
		if err != nil {
			t.Fatal(err)
		}
		_, copied := use(t, d, made.GetVolume().GetVolumeId(), mountUse())
		want := [][]byte{text, []byte("after")}[i]
		if got, err := os.ReadFile(filepath.Join(copied, "data")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("copy %d has %.20q, %v", i, got, err)
		}
		if got := fill(t, copied); got < 32*mib {
			t.Errorf("a copy of 48 MiB took %d bytes", got)
		}
	}
}

// TestDeviceOfFiles: a volume that is made of a snapshot of a file system, to be a device,
// is one like any other.
func TestDeviceOfFiles(t *testing.T) {
	d := newDriver(t, sharing(t))
	ctx := context.Background()
	v := create(t, d, "pvc-1", 32*mib, mountUse())
	s, err := d.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: v})
	if err != nil {
		t.Fatal(err)
	}
	made, err := d.CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: "pvc-2", CapacityRange: &csipb.CapacityRange{RequiredBytes: 48 * mib},
		VolumeCapabilities: []*csipb.VolumeCapability{blockUse()},
		VolumeContentSource: &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{
			Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshot().GetSnapshotId()}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	device := made.GetVolume().GetVolumeId()
	staged, path := use(t, d, device, blockUse())
	stats, err := d.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: device, VolumePath: path})
	if err != nil || len(stats.GetUsage()) != 1 || stats.GetUsage()[0].GetTotal() != 48*mib {
		t.Errorf("measured: %v, %v", stats, err)
	}
	larger := &csipb.CapacityRange{RequiredBytes: 64 * mib}
	_, err = d.ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{VolumeId: device, CapacityRange: larger})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.NodeExpandVolume(ctx, &csipb.NodeExpandVolumeRequest{VolumeId: device, VolumePath: path,
		StagingTargetPath: staged, CapacityRange: larger, VolumeCapability: blockUse()})
	if err != nil {
		t.Error(err)
	}
	stop(t, d, device, staged, path)
	if _, err := d.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: device}); err != nil {
		t.Error(err)
	}
}

// TestParameters: a class's are refused by name, and those with which sidecars tell for
// what they ask are not.
func TestParameters(t *testing.T) {
	d := newDriver(t, sharing(t))
	ctx := context.Background()
	v := create(t, d, "pvc-1", 16*mib, blockUse())
	for key, want := range map[string]codes.Code{
		"speed": codes.InvalidArgument, "csi.storage.k8s.io/pvc/name": codes.OK,
	} {
		parameters := map[string]string{key: "a"}
		_, err := d.CreateVolume(ctx, &csipb.CreateVolumeRequest{
			Name: "pvc-2", Parameters: parameters, CapacityRange: &csipb.CapacityRange{RequiredBytes: 16 * mib},
			VolumeCapabilities: []*csipb.VolumeCapability{blockUse()}})
		if status.Code(err) != want || err != nil && !strings.Contains(err.Error(), key) {
			t.Errorf("a volume with %s: %v", key, err)
		}
		_, err = d.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: v, Parameters: parameters})
		if status.Code(err) != want || err != nil && !strings.Contains(err.Error(), key) {
			t.Errorf("a snapshot with %s: %v", key, err)
		}
	}
}

// TestSnapshotTellsItsNode: the handle of a snapshot names the node that has it. What was
// taken before handles did, by its id alone, is found as well.
func TestSnapshotTellsItsNode(t *testing.T) {
	d := newDriver(t, sharing(t))
	ctx := context.Background()
	v := create(t, d, "pvc-1", 16*mib, blockUse())
	take := func(name string) string {
		t.Helper()
		s, err := d.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: v})
		if err != nil {
			t.Fatal(err)
		}
		return s.GetSnapshot().GetSnapshotId()
	}
	for _, handle := range []string{"s@n1", "s"} {
		if got := take("s"); got != "s@n1" {
			t.Errorf("the snapshot is %q", got)
		}
		list, err := d.ListSnapshots(ctx, &csipb.ListSnapshotsRequest{SnapshotId: handle})
		if err != nil || len(list.GetEntries()) != 1 || list.GetEntries()[0].GetSnapshot().GetSnapshotId() != "s@n1" {
			t.Errorf("%s is listed as %v, %v", handle, list, err)
		}
		made, err := d.CreateVolume(ctx, &csipb.CreateVolumeRequest{
			Name: "copy", CapacityRange: &csipb.CapacityRange{RequiredBytes: 16 * mib},
			VolumeCapabilities: []*csipb.VolumeCapability{blockUse()},
			VolumeContentSource: &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{
				Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: handle}}},
		})
		if err != nil || made.GetVolume().GetVolumeId() != "copy" {
			t.Errorf("a copy of %s: %v, %v", handle, made, err)
		}
		if _, err := d.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: handle}); err != nil {
			t.Error(err)
		}
		if left, err := d.snapshots.ids(); err != nil || len(left) != 0 {
			t.Errorf("%s deleted: %q is left, %v", handle, left, err)
		}
	}
	d.node = strings.Repeat("n", 64) // no label can name it
	if got := take("s"); got != "s" {
		t.Errorf("the snapshot is %q", got)
	}
}

func TestOpenRefusesBrokenRecord(t *testing.T) {
	d := newDriver(t, t.TempDir())
	v := create(t, d, "pvc-1", 16*mib, blockUse())
	if err := os.WriteFile(filepath.Join(d.volumes.dir, v, "volume.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.volumes.get(v); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestSingleWriter: a volume for one pod is not shown to another. That what it is
// staged at is seen by a second name, as where the kubelet's directory lies
// elsewhere, makes no second writer.
func TestSingleWriter(t *testing.T) {
	home := t.TempDir()
	d := newDriver(t, filepath.Join(home, "volumes"))
	how := mountUse()
	how.AccessMode.Mode = csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	v := create(t, d, "pvc-1", 16*mib, how)
	kubelet, name := filepath.Join(home, "kubelet"), filepath.Join(home, "second")
	staged := filepath.Join("plugins", v, "globalmount")
	for _, dir := range []string{kubelet, name} {
		if err := os.MkdirAll(filepath.Join(dir, staged), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	stage := &csipb.NodeStageVolumeRequest{
		VolumeId: v, StagingTargetPath: filepath.Join(kubelet, staged), VolumeCapability: how}
	if _, err := d.NodeStageVolume(context.Background(), stage); err != nil {
		t.Fatal(err)
	}
	alias := filepath.Join(name, staged)
	if err := unix.Mount(stage.StagingTargetPath, alias, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	publish := func(pod string) error {
		_, err := d.NodePublishVolume(context.Background(), &csipb.NodePublishVolumeRequest{VolumeId: v,
			StagingTargetPath: stage.StagingTargetPath, TargetPath: filepath.Join(home, pod), VolumeCapability: how})
		return err
	}
	t.Cleanup(func() {
		if err := unix.Unmount(alias, 0); err != nil {
			t.Error(err)
		}
		stop(t, d, v, stage.StagingTargetPath, filepath.Join(home, "a"))
	})
	if err := publish("a"); err != nil {
		t.Error(err)
	}
	if err := publish("a"); err != nil {
		t.Errorf("the second call for one pod: %v", err)
	}
	if err := publish("b"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a second pod: %v", err)
	}
}

// TestDetachNothing: who cleans up is not stopped by what is in a directory's place.
func TestDetachNothing(t *testing.T) {
	for _, at := range []string{".", "volumes", "volumes/a"} {
		dir := t.TempDir()
		at = filepath.Join(dir, "local", at)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Detach(filepath.Join(dir, "local")); err != nil {
			t.Errorf("a file %s: %v", at, err)
		}
	}
}
