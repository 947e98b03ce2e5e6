package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 102: 17, 1024: 100, 2048: 174, 262144: 10000, 1 << 40: 10000} {
		if got := Weight(shares); got != want {
			t.Errorf("Weight(%d) = %d, want %d", shares, got, want)
		}
	}
}

func TestParsePressure(t *testing.T) {
	p := parsePressure([]byte("some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=99\n"))
	want := Pressure{Some: PSI{1.5, 0.25, 0, 1234}, Full: PSI{0.1, 0, 0, 99}}
	if p != want {
		t.Errorf("got %+v, want %+v", p, want)
	}
}

func TestLifeOfAGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("control groups need root: run the tests as root")
	}
	r, err := New("")
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/shoal-test-cgroup-%d", os.Getpid())
	child := path + "/burstable/pod1"
	t.Cleanup(func() { _ = r.Kill(path); _ = r.Delete(path) })
	limit, shares := int64(64<<20), uint64(512)
	for range 2 { // the second time changes nothing
		if err := r.Ensure(child, Resources{MemoryLimit: &limit, CPUShares: &shares}); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	if err := r.Add(child, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	s, err := r.Stat(child)
	if err != nil || s.MemoryLimit != uint64(limit) || s.Pids != 1 {
		t.Fatalf("Stat = %+v, %v", s, err)
	}
	if pids, _ := r.Pids(path); len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Fatalf("Pids = %v", pids)
	}
	if err := r.Kill(path); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(path); err != nil {
		t.Fatal(err)
	}
	if r.Exists(path) {
		t.Error("the group is still there")
	}
}

func TestNamesOfGroups(t *testing.T) {
	uid := "pod1234-abcd"
	for _, tt := range []struct {
		driver                      Driver
		pod, container, oci, expand string
	}{
		{Cgroupfs, "/root-a/kubepods/burstable/pod1234-abcd", "/root-a/kubepods/burstable/pod1234-abcd/c1", "/root-a/kubepods/burstable/pod1234-abcd/c1", "/x/y"},
		{Systemd, "/root_a.slice/root_a-kubepods.slice/root_a-kubepods-burstable.slice/root_a-kubepods-burstable-pod1234_abcd.slice",
			"/root_a.slice/root_a-kubepods.slice/root_a-kubepods-burstable.slice/root_a-kubepods-burstable-pod1234_abcd.slice/shoal-c1.scope",
			"root_a-kubepods-burstable-pod1234_abcd.slice:shoal:c1", "/x.slice/x-y.slice"},
	} {
		pod := tt.driver.Child(tt.driver.Child("", "root-a"), "kubepods", "burstable", uid)
		container := tt.driver.Container(pod, "c1")
		if pod != tt.pod || container != tt.container || tt.driver.OCIPath(container) != tt.oci {
			t.Errorf("%s: %s %s %s", tt.driver, pod, container, tt.driver.OCIPath(container))
		}
		name := "/x/y"
		if tt.driver == Systemd {
			name = "x-y.slice"
		}
		if got, err := tt.driver.Expand(name); got != tt.expand || err != nil {
			t.Errorf("%s: Expand(%s) = %s, %v", tt.driver, name, got, err)
		}
	}
	for _, bad := range []string{"x", "-.slice", "a--b.slice", "", "/"} {
		if got, err := Systemd.Expand(bad); err == nil {
			t.Errorf("Expand(%q) = %s", bad, got)
		}
	}
}

func TestPropertiesOfUnits(t *testing.T) {
	quota, period, memory, none := int64(15000), uint64(100000), int64(64<<20), int64(-1)
	got := map[string]any{}
	for _, p := range properties(Resources{CPUQuota: &quota, CPUPeriod: &period, MemoryLimit: &memory, PidsLimit: &none}) {
		got[p.Name] = p.Value.Value()
	}
	want := map[string]any{"CPUQuotaPeriodUSec": uint64(100000), "CPUQuotaPerSecUSec": uint64(150000), "MemoryMax": uint64(64 << 20), "TasksMax": uint64(1<<64 - 1)}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := quotaPerSecond(1000, 100000); got != 10000 {
		t.Errorf("quota is %d, want it not below 1 %%", got)
	}
}

// TestSystemdMakesGroups needs a machine whose first process is systemd and
// whose groups are v2; elsewhere Open says so.
func TestSystemdMakesGroups(t *testing.T) {
	r, err := Open(Systemd)
	if err != nil {
		if h, _ := New(""); h != nil && h.Mode() != V2 && strings.Contains(err.Error(), "it needs v2") {
			return
		}
		t.Fatal(err)
	}
	top := r.Driver().Child("", fmt.Sprintf("shoaltest%d", os.Getpid()))
	path := r.Driver().Child(top, "burstable", "pod1")
	t.Cleanup(func() { _ = r.Kill(top); _ = r.Delete(top) })
	limit, shares := int64(64<<20), uint64(1024)
	for range 2 {
		if err := r.Ensure(path, Resources{MemoryLimit: &limit, CPUShares: &shares}); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	container := r.Driver().Container(path, "c1")
	if err := r.AddMonitor(container, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pids, _ := r.Pids(path); len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Fatalf("Pids = %v", pids)
	}
	if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	limit = 128 << 20
	if err := r.Set(path, Resources{MemoryLimit: &limit}); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Stat(path); err != nil || s.MemoryLimit != uint64(limit) || s.Pids != 1 {
		t.Fatalf("Stat = %+v, %v", s, err)
	}
	out, _ := exec.Command("systemctl", "show", "-P", "MemoryMax", unitName(path)).Output()
	if strings.TrimSpace(string(out)) != fmt.Sprint(limit) {
		t.Errorf("systemd thinks that the limit is %s", out)
	}
	if err := r.Kill(top); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(top); err != nil {
		t.Fatal(err)
	}
	if r.Exists(top) {
		t.Error("the slice is still there")
	}
}
