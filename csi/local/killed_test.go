package local

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// life is all that happens to two volumes and a snapshot. Each call is right after
// any of them, and what there is not any more is made again.
func life(ctx context.Context, d *Driver, dir, fsType string) error {
	kinds := map[string]*csipb.VolumeCapability{"mounted": mountUse(), "device": blockUse()}
	kinds["mounted"].GetMount().FsType = fsType
	for _, name := range []string{"mounted", "device"} {
		how, staged, target := kinds[name], filepath.Join(dir, name+"-staged"), filepath.Join(dir, name+"-target")
		_, err := d.CreateVolume(ctx, &csipb.CreateVolumeRequest{
			Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: 16 * mib},
			VolumeCapabilities: []*csipb.VolumeCapability{how},
		})
		if err != nil {
			return err
		}
		_, err = d.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{VolumeId: name, StagingTargetPath: staged,
			VolumeCapability: how})
		if err != nil {
			return err
		}
		_, err = d.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{VolumeId: name, StagingTargetPath: staged,
			TargetPath: target, VolumeCapability: how})
		if err != nil {
			return err
		}
		if name == "mounted" && d.shares {
			_, err := d.CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{Name: "snapshot", SourceVolumeId: name})
			if err != nil {
				return err
			}
		}
		if name == "mounted" {
			_, err := d.ControllerExpandVolume(ctx, &csipb.ControllerExpandVolumeRequest{VolumeId: name,
				CapacityRange: &csipb.CapacityRange{RequiredBytes: 32 * mib}})
			if err != nil {
				return err
			}
		}
		_, err = d.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: name, TargetPath: target})
		if err != nil {
			return err
		}
		_, err = d.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: name, StagingTargetPath: staged})
		if err != nil {
			return err
		}
	}
	_, err := d.DeleteSnapshot(ctx, &csipb.DeleteSnapshotRequest{SnapshotId: "snapshot"})
	for name := range kinds {
		err = errors.Join(err, deleted(ctx, d, name))
	}
	return err
}

// deleted deletes a volume as its users do, who ask again. A namespace of mounts that
// another process made meanwhile keeps a volume in use until it is gone.
func deleted(ctx context.Context, d *Driver, name string) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := d.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: name})
		if status.Code(err) != codes.FailedPrecondition || time.Now().After(end) {
			return err
		}
	}
}

// TestKilled kills a driver's process after each step that lasts: the next driver has
// each volume whole, or not at all, holds no writes, and goes on with the same calls
// until there is nothing left.
func TestKilled(t *testing.T) {
	t.Run("image", func(t *testing.T) { killedEverywhere(t, sharing(t), "ext4") })
	t.Run("subvolume", func(t *testing.T) { killedEverywhere(t, simpleQuotas(t), "btrfs") })
}

func killedEverywhere(t *testing.T, home, fsType string) {
	for step, dir := 1, t.TempDir(); ; step++ {
		last, killed := untilKilled(t, home, dir, fsType, step)
		d := newDriver(t, home)
		for _, s := range []shelf{d.volumes, d.snapshots} {
			all, err := os.ReadDir(s.dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range all {
				if _, size, err := s.get(e.Name()); err != nil || size != 16*mib && size != 32*mib {
					t.Errorf("killed when %s: %s has %d bytes, %v", last, e.Name(), size, err)
				}
			}
		}
		if mount, err := os.Open(filepath.Join(dir, "mounted-staged")); err == nil {
			if err := unix.IoctlSetInt(int(mount.Fd()), thaw, 0); !errors.Is(err, unix.EINVAL) {
				t.Errorf("killed when %s: the volume could not be written to: %v", last, err)
			}
			mount.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := life(ctx, d, dir, fsType); err != nil {
			t.Fatalf("killed when %s: %v", last, err)
		}
		cancel()
		for _, s := range []shelf{d.volumes, d.snapshots} {
			if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
				t.Errorf("killed when %s: %v is left, %v", last, left, err)
			}
		}
		if t.Failed() {
			return
		}
		if !killed {
			if step < 20 {
				t.Errorf("there were %d steps only", step)
			}
			return
		}
	}
}

// untilKilled has a process live the life until a step.
func untilKilled(t *testing.T, home, dir, fsType string, step int) (last string, killed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestLife$")
	cmd.Env = append(os.Environ(), "LIFE_HOME="+home, "LIFE_DIR="+dir, "LIFE_STEP="+strconv.Itoa(step),
		"LIFE_FS="+fsType)
	out, err := cmd.CombinedOutput()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err == nil {
		return "it was over", false
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL || ctx.Err() != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return lines[len(lines)-1], true
}

// TestLife is the process that TestKilled kills.
func TestLife(t *testing.T) {
	home := os.Getenv("LIFE_HOME")
	if home == "" {
		t.Skip("TestKilled runs it")
	}
	step, err := strconv.Atoi(os.Getenv("LIFE_STEP"))
	if err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, home)
	d.volumes.did = func(name string) {
		if step--; step == 0 {
			_, _ = os.Stdout.WriteString(name + "\n")
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal is there
		}
	}
	d.snapshots.did = d.volumes.did
	if err := life(context.Background(), d, os.Getenv("LIFE_DIR"), os.Getenv("LIFE_FS")); err != nil {
		t.Fatal(err)
	}
}
