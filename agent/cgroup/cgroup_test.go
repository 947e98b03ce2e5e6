package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/host"
)

func open(t testing.TB) *Root {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("control groups need root: run the tests as root")
	}
	r, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// enter puts a process into the group in every hierarchy, as an OCI runtime
// does.
func enter(t *testing.T, r *Root, path string, pid int) {
	t.Helper()
	for _, h := range r.v1 {
		if err := write(h.(hierarchy).Path(path), "cgroup.procs", fmt.Sprint(pid)); err != nil {
			t.Fatal(err)
		}
	}
	if r.unified != "" {
		if err := write(r.unified+path, "cgroup.procs", fmt.Sprint(pid)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 102: 17, 1024: 100, 2048: 174, 262144: 10000, 1 << 40: 10000} {
		if got := Weight(shares); got != want {
			t.Errorf("Weight(%d) = %d, want %d", shares, got, want)
		}
	}
}

func TestLifeOfAGroup(t *testing.T) {
	r := open(t)
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
	enter(t, r, child, cmd.Process.Pid)
	s, err := r.Stat(child)
	if err != nil || s.MemoryLimit != uint64(limit) || s.Pids != 1 {
		t.Fatalf("Stat = %+v, %v", s, err)
	}
	use, err := r.Use(child)
	if after, _ := r.Stat(child); err != nil || use.CPUNanos < s.CPUNanos || use.CPUNanos > after.CPUNanos ||
		(use.Memory == 0) != (s.Memory == 0) || (use.WorkingSet == 0) != (s.WorkingSet == 0) {
		t.Fatalf("Use = %+v, %v, beside %+v and %+v", use, err, s, after)
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
		{Cgroupfs, "/root-a/kubepods/burstable/pod1234-abcd", "/root-a/kubepods/burstable/pod1234-abcd/c1",
			"/root-a/kubepods/burstable/pod1234-abcd/c1", "/x/y"},
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
	for _, p := range properties(Resources{CPUQuota: &quota, CPUPeriod: &period,
		MemoryLimit: &memory, MemoryMin: &memory, PidsLimit: &none, CpusetCpus: "0-2,8", CpusetMems: "1",
		Unified: map[string]string{"memory.swap.max": "0", "memory.high": "max", "memory.oom.group": "1"}}) {
		got[p.Name] = p.Value.Value()
	}
	want := map[string]any{"CPUQuotaPeriodUSec": uint64(100000), "CPUQuotaPerSecUSec": uint64(150000),
		"MemoryMax": uint64(64 << 20), "MemoryMin": uint64(64 << 20), "TasksMax": uint64(1<<64 - 1),
		"AllowedCPUs": []byte{7, 1}, "AllowedMemoryNodes": []byte{2},
		"MemorySwapMax": uint64(0), "MemoryHigh": uint64(1<<64 - 1)}
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
		if h, _ := Open(""); h != nil && h.Mode() != V2 && strings.Contains(err.Error(), "it needs v2") {
			return
		}
		t.Fatal(err)
	}
	top := r.Driver().Child("", fmt.Sprintf("shoaltest%d", os.Getpid()))
	path := r.Driver().Child(top, "burstable", "pod1")
	t.Cleanup(func() {
		_ = r.Kill(top)
		_ = r.Delete(top)
		if r.units.conn != nil { // an agent's lives as long as the agent
			r.units.conn.Close()
		}
	})
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

// TestStatOfV2 reads files as a v2 host has them.
func TestStatOfV2(t *testing.T) {
	mount := t.TempDir()
	r := &Root{mode: V2, unified: mount, controllers: []string{"cpu", "memory", "pids"}}
	psi := "some avg10=1.50 avg60=0.25 avg300=0.00 total=1234\nfull avg10=0.10 avg60=0.00 avg300=0.00 total=99\n"
	groupFiles(t, mount+"/g", map[string]string{
		"cpu.stat":    "usage_usec 7\nuser_usec 4\nsystem_usec 3\nnr_periods 5\nnr_throttled 2\nthrottled_usec 6\n",
		"memory.stat": "anon 100\nfile 300\nfile_mapped 40\ninactive_file 250\npgfault 11\npgmajfault 1\n",
		"memory.peak": "500\n", "memory.current": "400\n", "memory.max": "4096\n",
		"memory.swap.current": "8\n", "memory.events": "low 0\nmax 9\noom 3\noom_kill 2\n", "memory.pressure": psi,
		"pids.current": "4\n", "pids.max": "max\n",
	})
	got, err := r.Stat("/g")
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		Time: got.Time, CPUNanos: 7000, UserNanos: 4000, SystemNanos: 3000,
		ThrottledNanos: 6000, Periods: 5, Throttled: 2, Memory: 400, MemoryLimit: 4096,
		WorkingSet: 150, RSS: 100, Cache: 300, MappedFile: 40, MaxMemory: 500, MemoryFailures: 9,
		Swap: 8, PageFaults: 11, MajorPageFaults: 1, Pids: 4, OOMKills: 2, MemoryStall: got.MemoryStall,
	}
	if got != want ||
		*got.MemoryStall != (host.Pressure{Some: host.PSI{Avg10: 1.5, Avg60: 0.25, Total: 1234},
			Full: host.PSI{Avg10: 0.1, Total: 99}}) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if use, err := r.Use("/g"); err != nil || use != brief(want, use.Time) {
		t.Errorf("Use = %+v, %v, want that of %+v", use, err, want)
	}
	if _, err := r.Use("/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the use of a group that does not exist: %v", err)
	}
	if n, err := r.OOMKills("/g"); n != 2 || err != nil {
		t.Errorf("OOMKills = %d, %v", n, err)
	}
	if _, err := r.Stat("/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that does not exist: %v", err)
	}
	if _, err := r.OOMKills("/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that does not exist: %v", err)
	}
}

// brief is what Use tells of what Stat tells.
func brief(s Stats, at time.Time) Stats {
	return Stats{Time: at, CPUNanos: s.CPUNanos, Memory: s.Memory, WorkingSet: s.WorkingSet, Swap: s.Swap}
}

// TestDisksOfV2 reads io.stat as a v2 host has it.
func TestDisksOfV2(t *testing.T) {
	mount := t.TempDir()
	r := &Root{mode: V2, unified: mount, controllers: []string{"io"}}
	groupFiles(t, mount+"/g", map[string]string{
		"io.stat": "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n7:0 rbytes=10 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n",
	})
	want := []Disk{
		{Major: 7, ReadBytes: 10, Reads: 1},
		{Major: 8, Minor: 16, ReadBytes: 1, WrittenBytes: 2, Reads: 3, Writes: 4},
	}
	if got := r.Disks("/g"); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := r.Disks("/gone"); got != nil {
		t.Errorf("a group that does not exist uses %+v", got)
	}
}

// TestDisksOfV1 sums up what the files of a v1 host tell by operation.
func TestDisksOfV1(t *testing.T) {
	mount := t.TempDir()
	r := &Root{mode: V1, v1: []cgroup1.Subsystem{cgroup1.NewBlkio(mount)}}
	texts := map[string]string{
		"bytes": "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\n7:1 Read 5\n7:1 Total 5\nTotal 35\n",
		"d":     "8:0 Read 1\n8:0 Write 2\n8:0 Sync 3\n8:0 Total 3\nTotal 3\n",
	}
	groupFiles(t, mount+"/blkio/g", map[string]string{
		"blkio.throttle.io_service_bytes_recursive": texts["bytes"], "blkio.throttle.io_serviced_recursive": texts["d"],
	})
	want := []Disk{
		{Major: 7, Minor: 1, ReadBytes: 5},
		{Major: 8, ReadBytes: 10, WrittenBytes: 20, Reads: 1, Writes: 2},
	}
	if got := r.Disks("/g"); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := r.Disks("/gone"); got != nil {
		t.Errorf("a group that does not exist uses %+v", got)
	}
}

// TestStatOfV1 reads files as a v1 host has them.
func TestStatOfV1(t *testing.T) {
	mount := t.TempDir()
	r := &Root{mode: V1, v1: []cgroup1.Subsystem{
		cgroup1.NewCpu(mount), cgroup1.NewCpuacct(mount), cgroup1.NewMemory(mount), cgroup1.NewPids(mount),
	}}
	for hierarchy, content := range map[string]map[string]string{
		"cpu":     {"cpu.stat": "nr_periods 5\nnr_throttled 2\nthrottled_time 6\n"},
		"cpuacct": {"cpuacct.usage": "7000\n", "cpuacct.stat": "user 4\nsystem 3\n"},
		"pids":    {"pids.current": "4\n", "pids.max": "max\n"},
		"memory": {
			"memory.stat": "cache 1\nrss 2\ninactive_file 3\ntotal_cache 300\ntotal_rss 100\ntotal_mapped_file 40\n" +
				"total_swap 8\ntotal_pgfault 11\ntotal_pgmajfault 1\ntotal_inactive_file 250\n",
			"memory.usage_in_bytes": "400\n", "memory.max_usage_in_bytes": "500\n", "memory.failcnt": "9\n",
			"memory.limit_in_bytes": "9223372036854771712\n",
			"memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		},
	} {
		groupFiles(t, mount+"/"+hierarchy+"/g", content)
	}
	got, err := r.Stat("/g")
	want := Stats{
		Time: got.Time, CPUNanos: 7000, UserNanos: 40e6, SystemNanos: 30e6, ThrottledNanos: 6, Periods: 5, Throttled: 2,
		Memory: 400, WorkingSet: 150, RSS: 100, Cache: 300, MappedFile: 40, MaxMemory: 500, MemoryFailures: 9,
		Swap: 8, PageFaults: 11, MajorPageFaults: 1, Pids: 4, OOMKills: 2,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if use, err := r.Use("/g"); err != nil || use.CPUNanos != 7000 || use.WorkingSet != 150 || use.Swap != 8 {
		t.Errorf("Use = %+v, %v", use, err)
	}
	if n, err := r.OOMKills("/g"); n != 2 || err != nil {
		t.Errorf("OOMKills = %d, %v", n, err)
	}
	if _, err := r.OOMKills("/gone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that does not exist: %v", err)
	}
}

func TestLimitsAreSetAndLifted(t *testing.T) {
	r := open(t)
	path := fmt.Sprintf("/shoal-test-limits-%d", os.Getpid())
	if err := r.Ensure(path, Resources{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Delete(path) })
	for _, step := range []struct {
		value             int64
		memory, processes uint64
	}{{64 << 20, 64 << 20, 64 << 20}, {1 << 20, 1 << 20, 1 << 20}, {-1, 0, 0}} {
		res := Resources{MemoryLimit: &step.value}
		if r.Controls("pids") {
			res.PidsLimit = ptr.To(min(step.value, 1<<20))
			step.processes = min(step.processes, 1<<20)
		}
		if err := r.Set(path, res); err != nil {
			t.Fatal(err)
		}
		if s, err := r.Stat(path); err != nil || s.MemoryLimit != step.memory || s.PidsLimit != step.processes {
			t.Errorf("%d: memory %d, pids %d, %v", step.value, s.MemoryLimit, s.PidsLimit, err)
		}
	}
	limit := int64(1 << 20)
	if err := r.Set(path+"-gone", Resources{MemoryLimit: &limit}); !errors.Is(err, fs.ErrNotExist) || r.Exists(path+"-gone") {
		t.Errorf("a group that does not exist: %v", err)
	}
	less := &Root{mode: V2, unified: t.TempDir(), controllers: []string{"memory"}}
	err := less.Set("/g", Resources{PidsLimit: &limit})
	if err == nil || !strings.Contains(err.Error(), "the host has no pids controller") {
		t.Errorf("a controller that the host does not have: %v", err)
	}
}

// TestMonitorsPayToThePod: a monitor and a pause process count as the pod's
// memory, beside its containers' groups, and are found again.
func TestMonitorsPayToThePod(t *testing.T) {
	r := open(t)
	pod := fmt.Sprintf("/shoal-test-monitor-%d", os.Getpid())
	t.Cleanup(func() { _ = r.Kill(pod); _ = r.Delete(pod) })
	if err := r.Ensure(pod+"/c1", Resources{}); err != nil {
		t.Fatal(err)
	}
	var want []int
	for _, add := range []func(container string, pid int) error{r.AddMonitor, r.AddPause} {
		cmd := exec.Command("sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go cmd.Wait()
		if err := add(pod+"/c1", cmd.Process.Pid); err != nil {
			t.Fatal(err)
		}
		want = append(want, cmd.Process.Pid)
	}
	got, err := r.Pids(pod)
	if slices.Sort(want); err != nil || !slices.Equal(got, want) {
		t.Errorf("Pids = %v, %v, want %v", got, err, want)
	}
	if got, err := r.Pids(pod + "/c1"); err != nil || len(got) > 0 {
		t.Errorf("the container's: %v, %v", got, err)
	}
	if err := errors.Join(r.Kill(pod), r.Delete(pod)); err != nil || r.Exists(pod) {
		t.Error(err)
	}
}

// TestExpectMove: nothing moves, and it ends.
func TestExpectMove(t *testing.T) {
	r := open(t)
	here, err := os.ReadFile(filepath.Join(r.home(), "cgroup.procs"))
	if err != nil || !slices.Contains(strings.Fields(string(here)), strconv.Itoa(os.Getpid())) {
		t.Errorf("this process is not in %q: %v", r.home(), err)
	}
	before, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r.ExpectMove()
	}
	for range 1000 {
		if r.expected.Load() == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if r.expected.Load() != 0 {
		t.Error("a move is expected for ever")
	}
	if after, err := os.ReadFile("/proc/self/cgroup"); err != nil || string(after) != string(before) {
		t.Errorf("the process is in\n%swas in\n%s(%v)", after, before, err)
	}
}

// TestIOWeight: where the host shares out a disk by weight, the group has its own.
func TestIOWeight(t *testing.T) {
	r := open(t)
	group := fmt.Sprintf("/shoal-io-%d", os.Getpid())
	t.Cleanup(func() { _ = r.Delete(group) })
	if err := r.Ensure(group, Resources{IOWeight: ptr.To[uint64](10)}); err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		found := 0
		for _, dir := range r.dirs(group) {
			for _, file := range []string{"io.weight", "io.bfq.weight", "blkio.bfq.weight"} {
				got, err := os.ReadFile(filepath.Join(dir, file))
				if err != nil {
					continue // the host has no such thing
				}
				found++
				if f := strings.Fields(string(got)); f[len(f)-1] != want { // "default 10" in some
					t.Errorf("%s says %q, want %s", file, got, want)
				}
			}
		}
		if found == 0 {
			t.Skip("the kernel shares out no disk by weight")
		}
	}
	check("10")
	if err := r.Set(group, Resources{}); err != nil {
		t.Fatal(err)
	}
	check("10")
	if err := r.Set(group, Resources{IOWeight: ptr.To[uint64](200)}); err != nil {
		t.Fatal(err)
	}
	check("200")
	if err := r.Set(group, Resources{IOWeight: ptr.To[uint64](0)}); err == nil {
		t.Error("a weight of 0 was taken")
	}
}
