package container

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/agent/quota"
	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

const mib = 1 << 20

// onBtrfs is a rig whose containers write to btrfs with simple quotas, and the open disk.
func onBtrfs(t *testing.T) (*rig, *os.File) {
	t.Helper()
	at := btrfstest.Disk(t, 512*mib)
	if !btrfs.KernelHasSimple() {
		t.Skip("the kernel has no simple quotas (Linux 6.7)")
	}
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	t.Cleanup(func() { f.Close() })
	if err := btrfs.Enable(f); err != nil {
		t.Fatal(err)
	}
	disk, why, err := quota.Open(at)
	if err != nil || disk == nil {
		t.Fatal(why, err)
	}
	r.close()
	r.cfg.DataDir, r.cfg.Quotas = filepath.Join(at, "data"), disk
	r.open()
	return r, f
}

// createLimited makes a container that may write so much.
func (r *rig) createLimited(name string, limit int64) {
	r.t.Helper()
	r.scripts[name] = "read code < GATE\nexit $code\n"
	if err := unix.Mkfifo(r.gate(name), 0o600); err != nil {
		r.t.Fatal(err)
	}
	req := r.request(name, nil)
	req.Limit = limit
	if _, err := r.m.Create(r.t.Context(), req); err != nil {
		r.t.Fatal(err)
	}
}

// noGroups proves that no subvolume is left: its group would be. Those of the last ones go
// when btrfs has cleaned up after them.
func (r *rig) noGroups(f *os.File) {
	r.t.Helper()
	r.doing = "look for groups"
	r.until("no group is left", func() bool {
		groups, err := btrfs.Groups(f)
		return errors.Join(err, btrfs.Sweep(f)) == nil && len(groups) == 0
	})
}

// TestLayerLimit writes into the root file systems of two containers: one is limited, also
// after the agent has started anew, and is not walked to be measured; the other is not.
func TestLayerLimit(t *testing.T) {
	r, f := onBtrfs(t)
	r.createLimited("small", 16*mib)
	r.createLimited("free", 0)
	r.agent("restarts")
	write := func(name string, bytes int) error {
		return os.WriteFile(filepath.Join(r.m.rootfs(name), "f"), make([]byte, bytes), 0o600)
	}
	if err := write("small", 15*mib); err != nil {
		t.Errorf("what is allowed: %v", err)
	}
	u, err := r.m.Usage(t.Context(), "small")
	if err != nil || u.Bytes < 15*mib || u.Bytes > 21*mib || u.Inodes != quota.Uncounted {
		t.Errorf("%+v %v", u, err)
	}
	if err := write("small", 40*mib); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("beyond its limit: %v", err)
	}
	if err := write("free", 40*mib); err != nil {
		t.Error(err)
	}
	if u, err := r.m.Usage(t.Context(), "free"); err != nil || u.Bytes < 40*mib || u.Inodes < 1 {
		t.Errorf("%+v %v", u, err)
	}
	if bytes, err := r.m.Files(t.Context(), "small"); err != nil || bytes < 1*mib || bytes > 21*mib {
		t.Error(bytes, err)
	}
	for _, name := range []string{"small", "free"} {
		if err := r.m.Remove(t.Context(), name); err != nil { // the first is full
			t.Error(err)
		}
	}
	r.noGroups(f)
}

// TestLayerLimitKilled kills the agent at each point at which there is something of a limit:
// what it leaves is removed with the container's record, and without.
func TestLayerLimitKilled(t *testing.T) {
	r, f := onBtrfs(t)
	c := &Container{ID: "recorded", State: Created, Config: r.request("recorded", nil).Config, Handler: "runc",
		Cgroup: r.group + "/pod/recorded"}
	r.m.takeProject(c, 16*mib)
	if err := r.m.records.Put(c.ID, &record{c}); err != nil { // and no more
		t.Fatal(err)
	}
	r.createLimited("made", 16*mib)
	if err := os.WriteFile(filepath.Join(r.m.rootfs("made"), "f"), make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	r.createLimited("lost", 16*mib)
	if err := r.m.records.Delete("lost"); err != nil { // as by a crash of the machine
		t.Fatal(err)
	}
	r.agent("restarts")
	for _, name := range []string{"recorded", "made"} {
		if err := r.m.Remove(t.Context(), name); err != nil {
			t.Error(err)
		}
	}
	if err := r.m.RemoveUnknown("lost", nil); err != nil {
		t.Error(err)
	}
	r.noGroups(f)
}

// TestLayerLimitGone starts an agent where quotas cannot be opened any more: what containers
// wrote is measured, and removed.
func TestLayerLimitGone(t *testing.T) {
	r, f := onBtrfs(t)
	r.createLimited("a", 16*mib)
	if err := os.WriteFile(filepath.Join(r.m.rootfs("a"), "f"), make([]byte, mib), 0o600); err != nil {
		t.Fatal(err)
	}
	r.cfg.Quotas = nil
	r.agent("restarts")
	if u, err := r.m.Usage(t.Context(), "a"); err != nil || u.Bytes < mib || u.Inodes < 2 {
		t.Errorf("%+v %v", u, err)
	}
	if err := r.m.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	r.noGroups(f)
}
