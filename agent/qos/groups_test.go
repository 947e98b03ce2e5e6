package qos

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
)

func TestTree(t *testing.T) {
	for _, tt := range []struct {
		driver cgroup.Driver
		root   string
		class  corev1.PodQOSClass
		want   string
	}{
		{cgroup.Cgroupfs, "", corev1.PodQOSGuaranteed, "/kubepods/podu-1"},
		{cgroup.Cgroupfs, "/", corev1.PodQOSBurstable, "/kubepods/burstable/podu-1"},
		{cgroup.Cgroupfs, "/a/b", corev1.PodQOSBestEffort, "/a/b/kubepods/besteffort/podu-1"},
		{cgroup.Systemd, "", corev1.PodQOSBurstable, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu_1.slice"},
	} {
		if got := (Tree{Driver: tt.driver, Root: tt.root}).Pod(tt.class, "u-1"); got != tt.want {
			t.Errorf("%s below %q, %s: %s, want %s", tt.driver, tt.root, tt.class, got, tt.want)
		}
	}
}

// TestGroups makes a pod's group in the kernel, changes and removes it.
func TestGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes control groups")
	}
	if root, err := cgroup.Open(""); err != nil || root.Mode() == cgroup.V1 {
		t.Skipf("no cgroup2 to look at: %v", err)
	}
	tree := Tree{Driver: cgroup.Cgroupfs, Root: fmt.Sprintf("/shoal-qos-%d", os.Getpid())}
	each := int64(100)
	g, err := Open(Config{
		Tree:        tree,
		CPUShares:   1024,
		MemoryBytes: 1 << 30,
		Tasks:       10000,
		PodPids:     &each,
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, path := range []string{tree.Class(corev1.PodQOSBurstable),
			tree.Class(corev1.PodQOSBestEffort), tree.Kubepods()} {
			if err := g.Delete(path); err != nil {
				t.Error(err)
			}
		}
		if err := tree.RemoveTop(); err != nil || g.cgroups.HasFile(tree.Top(), "cgroup.procs") {
			t.Errorf("the parent of kubepods is left: %v", err)
		}
	})
	path := tree.Pod(corev1.PodQOSBurstable, "u")
	if err := g.Ensure(path, Limits{CPUShares: 512, MemoryBytes: 64 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := g.Set(path, Limits{CPUShares: 256, MemoryBytes: 32 << 20}); err != nil {
		t.Error(err)
	}
	if err := tree.RemoveTop(); err != nil || !g.cgroups.HasFile(path, "cgroup.procs") {
		t.Errorf("a group in use is removed: %v", err)
	}
	if err := g.Delete(path); err != nil || g.cgroups.HasFile(path, "cgroup.procs") {
		t.Errorf("the pod's group is left: %v", err)
	}
}
