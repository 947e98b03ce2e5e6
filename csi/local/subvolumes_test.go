package local

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

// simpleQuotas is a directory on a disk with simple quotas.
func simpleQuotas(t *testing.T) string {
	t.Helper()
	at := btrfstest.Disk(t, 1<<30)
	if !btrfs.KernelHasSimple() {
		t.Skip("the kernel has no simple quotas (Linux 6.7)")
	}
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := btrfs.Enable(f); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(at, "volumes")
}

func subvolumeUse() *csipb.VolumeCapability {
	how := mountUse()
	how.GetMount().FsType = "btrfs"
	return how
}

// quotaEnds fills a volume to its limit.
func quotaEnds(t *testing.T, dir string, least, most int64) {
	t.Helper()
	f, err := os.CreateTemp(dir, "full")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var size int64
	for part := make([]byte, mib); err == nil && size < 2*most; {
		var n int
		n, err = f.Write(part)
		size += int64(n)
	}
	if !errors.Is(err, unix.EDQUOT) || size < least || size > most {
		t.Errorf("%s took %d bytes, want %d to %d: %v", dir, size, least, most, err)
	}
}

func stats(t *testing.T, d *Driver, volume, path string) (*csipb.VolumeUsage, *csipb.VolumeCondition) {
	t.Helper()
	r, err := d.NodeGetVolumeStats(context.Background(),
		&csipb.NodeGetVolumeStatsRequest{VolumeId: volume, VolumePath: path})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetUsage()[0], r.GetVolumeCondition()
}

func expand(t *testing.T, d *Driver, volume string, size int64) {
	t.Helper()
	r, err := d.ControllerExpandVolume(context.Background(), &csipb.ControllerExpandVolumeRequest{
		VolumeId: volume, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}})
	if err != nil || r.GetCapacityBytes() != size || r.GetNodeExpansionRequired() {
		t.Fatal(r, err)
	}
}

// TestSubvolume has a volume that is a subvolume beside one that is an image.
func TestSubvolume(t *testing.T) {
	home := simpleQuotas(t)
	d := newDriver(t, home)
	v, other := create(t, d, "pvc-1", 32*mib, subvolumeUse()), create(t, d, "pvc-2", 32*mib, mountUse())
	staged, dir := use(t, d, v, subvolumeUse())
	_, at := use(t, d, other, mountUse())
	quotaEnds(t, dir, 24*mib, 32*mib)
	if got := fill(t, at); got < 16*mib {
		t.Errorf("the other volume took %d bytes", got)
	}
	if u, c := stats(t, d, v, dir); u.GetTotal() != 32*mib || u.GetUsed() < 24*mib || u.GetAvailable() > 8*mib ||
		c.GetAbnormal() {
		t.Error(u, c)
	}
	expand(t, d, v, 64*mib) // mounted, full, and at once
	quotaEnds(t, dir, 24*mib, 32*mib)
	_, err := d.DeleteVolume(context.Background(), &csipb.DeleteVolumeRequest{VolumeId: v})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a volume in use was deleted: %v", err)
	}
	if err := os.WriteFile(filepath.Join(staged, "data"), nil, 0o600); !errors.Is(err, unix.EDQUOT) {
		t.Logf("there is room for an empty file: %v", err)
	}
	stop(t, d, v, staged, dir)
	d = newDriver(t, home) // another process
	_, dir = use(t, d, v, subvolumeUse())
	if u, _ := stats(t, d, v, dir); u.GetTotal() != 64*mib || u.GetUsed() < 48*mib {
		t.Error(u)
	}
}

// TestSubvolumeIsKept makes subvolumes in a volume: they count for it, are in nobody's
// way when it is deleted, and no group of it is left.
func TestSubvolumeIsKept(t *testing.T) {
	home := simpleQuotas(t)
	d := newDriver(t, home)
	v := create(t, d, "pvc-1", 32*mib, subvolumeUse())
	staged, dir := use(t, d, v, subvolumeUse())
	inner := filepath.Join(dir, "inner")
	if err := btrfs.Create(inner); err != nil {
		t.Fatal(err)
	}
	f, err := btrfs.Open(inner)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, target := range []string{filepath.Join(staged, "a"), filepath.Join(inner, "b")} {
		if err := btrfs.Snapshot(f, target, true); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	quotaEnds(t, inner, 24*mib, 32*mib)
	stop(t, d, v, staged, dir)
	if _, err := d.DeleteVolume(context.Background(), &csipb.DeleteVolumeRequest{VolumeId: v}); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(d.volumes.dir)
	if err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	disk, err := os.Open(home)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		groups, err := btrfs.Groups(disk)
		if err != nil || time.Since(begin) > time.Minute {
			t.Fatal(groups, err)
		}
		if len(groups) == 0 {
			return
		}
		if err := btrfs.Sweep(disk); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPurge deletes what files alone are not: a snapshot cannot be written to.
func TestPurge(t *testing.T) {
	home := simpleQuotas(t)
	d := newDriver(t, home)
	v := create(t, d, "pvc-1", 32*mib, subvolumeUse())
	create(t, d, "pvc-2", 32*mib, mountUse())
	staged, dir := use(t, d, v, subvolumeUse())
	f, err := btrfs.Open(filepath.Join(d.volumes.path(v), data))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), nil, 0o600),
		btrfs.Snapshot(f, filepath.Join(dir, "fixed"), true)); err != nil {
		t.Fatal(err)
	}
	_, err = d.CreateSnapshot(context.Background(), &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: v})
	if err != nil {
		t.Fatal(err)
	}
	stop(t, d, v, staged, dir)
	for range 2 {
		if err := Purge(home); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(home); err != nil {
		t.Error(err)
	}
}

// TestSubvolumeAttack has root in a volume make a subvolume that counts for nobody: the
// volume is full when that was found, and says so.
func TestSubvolumeAttack(t *testing.T) {
	d := newDriver(t, simpleQuotas(t))
	v := create(t, d, "pvc-1", 32*mib, subvolumeUse())
	_, dir := use(t, d, v, subvolumeUse())
	stray := filepath.Join(dir, "stray")
	if err := btrfstest.Stray(stray); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(stray, "f"), make([]byte, 48*mib), 0o600); err != nil {
		t.Fatal(err)
	}
	unix.Sync()
	if u, c := stats(t, d, v, dir); u.GetUsed() < 48*mib || u.GetAvailable() != 0 || !c.GetAbnormal() ||
		!strings.Contains(c.GetMessage(), "more of the disk than it may") {
		t.Error(u, c)
	}
	f, err := os.Create(filepath.Join(dir, "more"))
	if err != nil {
		t.Log("no more files:", err)
		return
	}
	defer f.Close()
	if n, err := f.Write(make([]byte, 4*mib)); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("a volume that is too full takes %d bytes: %v", n, err)
	}
}

// TestSubvolumeCopies has a snapshot keep what is in a full volume: that can be written
// anew all the same, and room is taken for it.
func TestSubvolumeCopies(t *testing.T) {
	ctx := context.Background()
	d := newDriver(t, simpleQuotas(t))
	v := create(t, d, "pvc-1", 64*mib, subvolumeUse())
	_, dir := use(t, d, v, subvolumeUse())
	write := func(dir string, b byte) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "data"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.Write(bytes.Repeat([]byte{b}, 48*mib))
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			t.Errorf("write %q: %v", b, err)
		}
	}
	holds := func(dir string, b byte) {
		t.Helper()
		got, err := os.ReadFile(filepath.Join(dir, "data"))
		if err != nil || !bytes.Equal(got, bytes.Repeat([]byte{b}, 48*mib)) {
			t.Errorf("%s has %d bytes, not of %q: %v", dir, len(got), b, err)
		}
	}
	room := func() int64 {
		t.Helper()
		r, err := d.GetCapacity(ctx, &csipb.GetCapacityRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetAvailableCapacity()
	}
	write(dir, 'a')
	before := room()
	s, err := d.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: v})
	if err != nil {
		t.Fatal(err)
	}
	if taken := before - room(); taken < 40*mib || taken > 72*mib {
		t.Errorf("a snapshot of 48 MiB takes %d bytes of room", taken)
	}
	write(dir, 'b')
	clone := copyOf(t, d, "clone", 64*mib, &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{
		Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshot().GetSnapshotId()}}})
	_, copied := use(t, d, clone, subvolumeUse())
	holds(copied, 'a')
	write(copied, 'c')
	holds(dir, 'b')
	holds(copied, 'c')
	quotaEnds(t, copied, 8*mib, 64*mib)
	if _, err := d.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: "s"}); err != nil {
		t.Fatal(err)
	}
	write(dir, 'd') // at once, while the kernel has not given back what the snapshot had
	holds(dir, 'd')
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		u, c := stats(t, d, v, dir)
		if u.GetUsed() < 64*mib && !c.GetAbnormal() {
			break
		}
		if time.Since(begin) > time.Minute {
			t.Fatal("what a snapshot had is not given back:", u, c)
		}
	}
	third := copyOf(t, d, "third", 64*mib, &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{
		Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: v}}})
	_, copied = use(t, d, third, subvolumeUse())
	holds(copied, 'd')
	write(dir, 'e')
	holds(copied, 'd')
}

func copyOf(t *testing.T, d *Driver, name string, size int64, from *csipb.VolumeContentSource) string {
	t.Helper()
	r, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
		Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csipb.VolumeCapability{subvolumeUse()}, VolumeContentSource: from,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetVolume().GetVolumeId()
}

// TestSubvolumesNeedSimpleQuotas: where a size would be no limit, there are none, and
// it is said what to do.
func TestSubvolumesNeedSimpleQuotas(t *testing.T) {
	at := btrfstest.Disk(t, 512*mib)
	shared := filepath.Join(at, "shared")
	for path, want := range map[string]string{
		shared:      "`btrfs quota enable --simple`",
		t.TempDir(): "has another file system",
	} {
		d := newDriver(t, path)
		_, err := d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
			Name: "pvc-1", VolumeCapabilities: []*csipb.VolumeCapability{subvolumeUse()}})
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
		room, err := d.GetCapacity(context.Background(), &csipb.GetCapacityRequest{
			VolumeCapabilities: []*csipb.VolumeCapability{subvolumeUse()}})
		if err != nil || room.GetAvailableCapacity() != 0 {
			t.Error(room, err)
		}
		_, err = New(Config{Directory: path, NodeID: "n1", FSType: "btrfs", Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if out, err := exec.Command("btrfs", "quota", "enable", at).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	d := newDriver(t, shared)
	if !strings.Contains(d.subvolumes.lacks, "not simple ones") {
		t.Error(d.subvolumes.lacks)
	}
}

// TestWholeDisk: on a disk of its own the driver turns simple quotas on, with the first
// volume that needs them.
func TestWholeDisk(t *testing.T) {
	at := btrfstest.Disk(t, 512*mib)
	d := newDriver(t, at)
	if d.subvolumes.lacks != "" && !btrfs.KernelHasSimple() {
		t.Skip(d.subvolumes.lacks)
	}
	part := filepath.Join(at, "part")
	other := t.TempDir()
	if err := errors.Join(btrfs.Create(part), unix.Mount(part, other, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	shared := newDriver(t, at)
	if err := unix.Unmount(other, 0); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(shared.subvolumes.lacks, "others use too") {
		t.Error(shared.subvolumes.lacks)
	}
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	create(t, d, "image", 16*mib, mountUse())
	if on, err := btrfs.Simple(f); err != nil || on {
		t.Error("simple quotas are on, and nobody needs them:", on, err)
	}
	v := create(t, d, "pvc-1", 32*mib, subvolumeUse())
	staged, dir := use(t, d, v, subvolumeUse())
	quotaEnds(t, dir, 24*mib, 32*mib)
	stop(t, d, v, staged, dir)
	if out, err := exec.Command("btrfs", "quota", "disable", at).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	_, err = d.NodeStageVolume(context.Background(), &csipb.NodeStageVolumeRequest{
		VolumeId: v, StagingTargetPath: staged, VolumeCapability: subvolumeUse()})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no size") {
		t.Errorf("a volume without a limit is used: %v", err)
	}
}

func TestSubvolumeOptions(t *testing.T) {
	d := newDriver(t, simpleQuotas(t))
	v := create(t, d, "pvc-1", 32*mib, subvolumeUse())
	for _, c := range []struct{ options, want string }{
		{"ro,noexec,nosuid,nodev", "ro,nosuid,nodev,noexec,relatime"},
		{"ro,rw,noatime", "rw,noatime"},
		{"", "rw,relatime"},
		{"sync", ""},
		{"compress=zstd", ""},
	} {
		how := subvolumeUse()
		if c.options != "" {
			how.GetMount().MountFlags = strings.Split(c.options, ",")
		}
		path := filepath.Join(t.TempDir(), "staged")
		_, err := d.NodeStageVolume(context.Background(), &csipb.NodeStageVolumeRequest{
			VolumeId: v, StagingTargetPath: path, VolumeCapability: how})
		if c.want == "" {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", c.options, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		list, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
		if err != nil || len(list) != 1 || list[0].Options != c.want {
			t.Errorf("%s: %v, %v", c.options, list[0], err)
		}
		if err := unmount(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSubvolumesRoom has a disk of 512 MiB: what one volume may grow to, no other gets,
// of whatever kind.
func TestSubvolumesRoom(t *testing.T) {
	d := newDriver(t, simpleQuotas(t))
	room, err := d.GetCapacity(context.Background(), &csipb.GetCapacityRequest{
		VolumeCapabilities: []*csipb.VolumeCapability{subvolumeUse()}})
	if err != nil || room.GetMinimumVolumeSize().GetValue() != 16*mib {
		t.Fatal(room, err)
	}
	all := room.GetAvailableCapacity()
	create(t, d, "pvc-1", all-64*mib, subvolumeUse())
	for _, how := range []*csipb.VolumeCapability{subvolumeUse(), blockUse()} {
		_, err = d.CreateVolume(context.Background(), &csipb.CreateVolumeRequest{
			Name: "pvc-2", CapacityRange: &csipb.CapacityRange{RequiredBytes: 80 * mib},
			VolumeCapabilities: []*csipb.VolumeCapability{how},
		})
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
	}
	create(t, d, "pvc-3", 32*mib, blockUse())
}
