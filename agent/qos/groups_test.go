package qos

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
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

// open makes the groups of a test, whose parent is the test's own.
func open(t *testing.T, tree Tree, reserve bool) *Groups {
	t.Helper()
	each := int64(100)
	g, err := Open(Config{
		Tree:        tree,
		CPUShares:   1024,
		MemoryBytes: 1 << 30,
		Tasks:       10000,
		PodPids:     &each,
		Reserve:     reserve,
		Log:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func remove(t *testing.T, g *Groups) {
	for _, path := range []string{g.Class(corev1.PodQOSBurstable), g.Class(corev1.PodQOSBestEffort), g.Kubepods()} {
		if err := g.Delete(path); err != nil {
			t.Error(err)
		}
	}
	if err := g.RemoveTop(); err != nil || g.cgroups.HasFile(g.Top(), "cgroup.procs") {
		t.Errorf("the parent of kubepods is left: %v", err)
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
	g := open(t, tree, false)
	t.Cleanup(func() { remove(t, g) })
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

// A process that is left in a pod's group does not keep the pod; those of other groups are not ours.
func TestLeftoversEndWithThePod(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes control groups")
	}
	tree := Tree{Driver: cgroup.Cgroupfs, Root: fmt.Sprintf("/shoal-qos-left-%d", os.Getpid())}
	g := open(t, tree, false)
	t.Cleanup(func() { remove(t, g) })
	pod := tree.Pod(corev1.PodQOSBurstable, "u")
	if err := g.cgroups.Ensure(pod+"/c", cgroup.Resources{}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "300")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := g.cgroups.AddMonitor(pod+"/c", cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if pids, err := g.cgroups.Pids(pod); err != nil || len(pids) != 1 {
		t.Errorf("the group has %v, %v", pids, err)
	}
	if err := g.Delete(pod); err != nil || g.cgroups.HasFile(pod, "cgroup.procs") {
		t.Errorf("the pod's group is left: %v", err)
	}
	_ = cmd.Process.Kill()
	<-ended
	for _, path := range []string{"/", "", tree.Root, g.Kubepods(), g.Class(corev1.PodQOSBurstable),
		g.Class(corev1.PodQOSBestEffort), pod + "/c", "/pod"} {
		if g.isPod(path) {
			t.Errorf("%q is taken for a pod's", path)
		}
	}
}

// TestReservations: parents are protected as much as the pods below them, also by an agent that
// comes later, and not at all when nothing is to be (KEP-2570). What is above kubepods is
// somebody else's too, and never lowered.
func TestReservations(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes control groups")
	}
	root, err := cgroup.Open("")
	if err != nil {
		t.Fatal(err)
	}
	tree := Tree{Driver: cgroup.Cgroupfs, Root: fmt.Sprintf("/shoal-kept-%d", os.Getpid())}
	if root.Mode() != cgroup.V2 {
		r := reservations{cgroups: root, tree: tree, on: true}
		if err := r.adopt(); err == nil {
			t.Error("memory is said to be kept where control groups are v1")
		}
		t.Skip("control groups are v1")
	}
	const mi = 1 << 20
	g := open(t, tree, true)
	t.Cleanup(func() { remove(t, g) })
	has := func(when string, want ...int64) {
		t.Helper()
		for i, of := range []string{tree.Top(), tree.Kubepods(), tree.Class(corev1.PodQOSBurstable)} {
			got := [2]int64{root.Value(of, "memory.min"), root.Value(of, "memory.low")}
			if got != [2]int64{want[2*i] * mi, want[2*i+1] * mi} {
				t.Errorf("%s: %s has %v", when, of, got)
			}
		}
	}
	one, two := tree.Pod(corev1.PodQOSGuaranteed, "1"), tree.Pod(corev1.PodQOSBurstable, "2")
	if err := errors.Join(g.Ensure(one, Limits{CPUShares: 2, MemoryMin: 8 * mi}),
		g.Ensure(two, Limits{CPUShares: 2, MemoryLow: 16 * mi})); err != nil {
		t.Fatal(err)
	}
	has("two pods", 8, 16, 8, 16, 0, 16)
	if err := g.Set(two, Limits{CPUShares: 2, MemoryLow: 4 * mi}); err != nil {
		t.Error(err)
	}
	has("one was resized", 8, 16, 8, 4, 0, 4)
	g = open(t, tree, true)
	if err := g.Delete(one); err != nil {
		t.Error(err)
	}
	has("the next agent ended one", 8, 16, 0, 4, 0, 4)
	g = open(t, tree, false)
	has("nothing is to be kept", 8, 16, 0, 0, 0, 0)
	if err := g.Delete(two); err != nil {
		t.Error(err)
	}
}
