package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAnew(t *testing.T) {
	for _, c := range []struct {
		name               string
		volumes, snapshots []extent
		want               int64
	}{
		{"nothing", nil, nil, 0},
		{"alone", []extent{{0, 10}, {20, 30}}, nil, 0},
		{"beside each other", []extent{{0, 10}, {10, 20}}, nil, 0},
		{"two volumes share: one of them writes elsewhere", []extent{{0, 10}, {0, 10}}, nil, 10},
		{"three", []extent{{0, 10}, {0, 10}, {0, 10}}, nil, 20},
		{"a snapshot keeps it", []extent{{0, 10}}, []extent{{0, 10}}, 10},
		{"two snapshots keep it once", []extent{{0, 10}}, []extent{{0, 10}, {0, 10}}, 10},
		{"two volumes and a snapshot", []extent{{0, 10}, {0, 10}}, []extent{{0, 10}}, 20},
		{"a snapshot whose volume is gone", nil, []extent{{0, 10}}, 0},
		{"a part", []extent{{0, 30}}, []extent{{10, 20}}, 10},
		{"parts of one another", []extent{{0, 20}, {10, 30}}, []extent{{15, 40}}, 5 + 2*5 + 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := anew(c.volumes, c.snapshots); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// TestExtents has a file in more parts than the kernel tells at once.
func TestExtents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const parts, size = 600, 4096
	for i := range int64(parts) {
		if _, err := f.WriteAt(make([]byte, size), 2*i*size); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	list, err := extents(file)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var sum uint64
	for _, e := range list {
		sum += e.end - e.begin
	}
	if sum < parts*size || sum > parts*size+mib { // a file system may have more at the end
		t.Errorf("%d extents have %d bytes, want %d", len(list), sum, parts*size)
	}
	if list, err := extents(file + "-gone"); err != nil || list != nil {
		t.Errorf("a file that is gone has %v, %v", list, err)
	}
}

// TestSnapshotTakesRoom has a volume whose snapshot keeps what is on it: the room to
// write it anew is the volume's, and no other gets it.
func TestSnapshotTakesRoom(t *testing.T) {
	d := newDriver(t, sharing(t))
	ctx := context.Background()
	v := create(t, d, "pvc-1", 128*mib, mountUse())
	_, dir := use(t, d, v, mountUse())
	f, err := os.Create(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, 64*mib)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	room := func() int64 {
		t.Helper()
		r, err := d.GetCapacity(ctx, &csipb.GetCapacityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetAvailableCapacity()
	}
	snapshot := func(name string) error {
		_, err := d.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: name, SourceVolumeId: v})
		return err
	}
	before := room()
	for i, name := range []string{"s1", "s2"} { // the second keeps the same
		if err := snapshot(name); err != nil {
			t.Fatal(err)
		}
		if taken := before - room(); taken < 60*mib || taken > 80*mib {
			t.Errorf("%d snapshots of 64 MiB take %d bytes", i+1, taken)
		}
	}
	clone, err := d.CreateVolume(ctx, &csipb.CreateVolumeRequest{
		Name: "clone", CapacityRange: &csipb.CapacityRange{RequiredBytes: 128 * mib},
		VolumeCapabilities: []*csipb.VolumeCapability{mountUse()},
		VolumeContentSource: &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{
			Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: v}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if taken := before - room(); taken < (60+124)*mib || taken > (80+132)*mib {
		t.Errorf("snapshots of 64 MiB and a clone of 128 MiB take %d bytes", taken)
	}
	for _, call := range []func() error{
		func() error {
			_, err := d.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: clone.GetVolume().GetVolumeId()})
			return err
		},
		func() error {
			_, err := d.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: "s1"})
			return err
		},
		func() error {
			_, err := d.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: "s2"})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	create(t, d, "other", room()-16*mib, blockUse()) // the disk takes a little for itself
	if err := snapshot("s3"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a snapshot without room for what the volume may write: %v", err)
	}
}

// TestOthersFillTheDisk has something else take the room that a volume was promised.
func TestOthersFillTheDisk(t *testing.T) {
	disk := newDriver(t, t.TempDir())
	_, dir := use(t, disk, create(t, disk, "disk", 128*mib, mountUse()), mountUse())
	d := newDriver(t, filepath.Join(dir, "volumes"))
	v := create(t, d, "pvc-1", 64*mib, mountUse())
	_, at := use(t, d, v, mountUse())
	abnormal := func() bool {
		t.Helper()
		r, err := d.NodeGetVolumeStats(context.Background(),
			&csipb.NodeGetVolumeStatsRequest{VolumeId: v, VolumePath: at})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetVolumeCondition().GetAbnormal()
	}
	if abnormal() {
		t.Error("the disk has room for the volume")
	}
	free, err := d.volumes.free()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, free-24*mib); err != nil { // enough for what is on the volume
		t.Fatal(err)
	}
	if !abnormal() {
		t.Error("the volume may hold more than the disk has room for, and is well")
	}
	if err := errors.Join(f.Truncate(0), f.Sync()); err != nil {
		t.Fatal(err)
	}
	if abnormal() {
		t.Error("the disk has room for the volume again")
	}
}

// TestSmallest asks for less than a file system can have.
func TestSmallest(t *testing.T) {
	d := newDriver(t, t.TempDir())
	how := mountUse()
	how.GetMount().FsType = "xfs"
	r, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
		Name: "pvc-1", CapacityRange: &csipb.CapacityRange{RequiredBytes: 1},
		VolumeCapabilities: []*csipb.VolumeCapability{how},
	})
	if status.Code(err) == codes.FailedPrecondition {
		t.Skip(err)
	}
	if err != nil || r.GetVolume().GetCapacityBytes() != 300*mib {
		t.Fatal(r, err)
	}
	_, err = d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
		Name: "pvc-2", CapacityRange: &csipb.CapacityRange{RequiredBytes: 1, LimitBytes: 100 * mib},
		VolumeCapabilities: []*csipb.VolumeCapability{how},
	})
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("got %v", err)
	}
	for _, c := range []struct {
		use  *csipb.VolumeCapability
		want int64
	}{{how, 300 * mib}, {mountUse(), 16 * mib}, {blockUse(), 16 * mib}} {
		room, err := d.GetCapacity(context.Background(), &csipb.GetCapacityRequest{
			VolumeCapabilities: []*csipb.VolumeCapability{c.use}})
		if err != nil || room.GetMinimumVolumeSize().GetValue() != c.want {
			t.Errorf("got %v, %v; want at least %d", room, err, c.want)
		}
	}
}
