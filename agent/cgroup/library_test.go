package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"
)

// These tests show what containerd/cgroups does not do, and who makes up for it
// here (in brackets). When one fails after an update, that can go.

// groupFiles makes a directory that looks like a control group.
func groupFiles(t *testing.T, dir string, content map[string]string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// read is a control file's content.
func read(t *testing.T, dir, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestLibraryPids1: a limit of processes is not lifted (pids).
func TestLibraryPids1(t *testing.T) {
	mount := t.TempDir()
	dir := groupFiles(t, mount+"/pids/g", map[string]string{"pids.max": "100"})
	lifted := &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: ptr.To[int64](-1)}}
	if err := cgroup1.NewPids(mount).Create("g", lifted); err != nil || read(t, dir, "pids.max") != "100" {
		t.Errorf("pids.max = %s, %v", read(t, dir, "pids.max"), err)
	}
	if err := (pids{cgroup1.NewPids(mount)}).Create("g", lifted); err != nil || read(t, dir, "pids.max") != "max" {
		t.Errorf("ours: pids.max = %s, %v", read(t, dir, "pids.max"), err)
	}
}

// TestLibraryDelete1: deletion tells success and leaves the group where a
// group below it disappears while it looks for processes (Delete).
func TestLibraryDelete1(t *testing.T) {
	mount := t.TempDir()
	dir := groupFiles(t, mount+"/freezer/g", nil)
	groupFiles(t, dir+"/a", nil)
	groupFiles(t, dir+"/b", nil)
	procs := dir + "/a/cgroup.procs" // whose reader waits for a writer
	if err := syscall.Mkfifo(procs, 0o600); err != nil {
		t.Fatal(err)
	}
	cg, err := cgroup1.Load(everywhere("g"), cgroup1.WithHierarchy(func() ([]cgroup1.Subsystem, error) {
		return []cgroup1.Subsystem{cgroup1.NewFreezer(mount)}, nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- cg.Delete() }()
	w, err := os.OpenFile(procs, os.O_WRONLY, 0) // the list of names in g has been read
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir + "/b"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := <-result; err != nil {
		t.Errorf("Delete = %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the group was deleted: %v", err)
	}
}

// TestLibraryThreaded2: a group with a threaded one below it has no list of
// processes and cannot be deleted (Pids, Delete).
func TestLibraryThreaded2(t *testing.T) {
	r, m := group2(t)
	top := filepath.Join("/", filepath.Base(m))
	if err := os.MkdirAll(m+"/domain/threads", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := write(m+"/domain/threads", "cgroup.type", "threaded"); err != nil {
		t.Fatal(err)
	}
	theirs, err := r.group2(top)
	if err != nil {
		t.Fatal(err)
	}
	if pids, err := theirs.Procs(true); err == nil {
		t.Errorf("Procs = %v", pids)
	}
	if err := theirs.Delete(); err == nil {
		t.Error("the group was deleted")
	}
	if pids, err := r.Pids(top); err != nil || len(pids) > 0 {
		t.Errorf("ours: Pids = %v, %v", pids, err)
	}
	if err := r.Delete(top); err != nil || r.HasFile(top, "cgroup.procs") {
		t.Errorf("ours: Delete = %v", err)
	}
}

// TestLibraryControllers2: one controller that cannot be passed down keeps the
// others (passControllers).
func TestLibraryControllers2(t *testing.T) {
	r, dir := group2(t)
	if len(r.controllers) == 0 {
		t.Skip("cgroup2 has no controller here")
	}
	one := r.controllers[0]
	parent, err := r.group2("/" + filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.passControllers(parent); err != nil { // so that it has some to pass on
		t.Fatal(err)
	}
	m, err := parent.NewChild("child", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ToggleControllers([]string{one, "none-such"}, cgroup2.Enable); err == nil {
		t.Error("a controller that does not exist was passed down")
	}
	if on, err := m.Controllers(); err != nil || slices.Contains(on, one) {
		t.Errorf("%v, %v", on, err)
	}
	r.controllers = []string{one, "none-such"}
	if err := r.passControllers(m); err != nil {
		t.Fatal(err)
	}
	if on, err := m.Controllers(); err != nil || !slices.Contains(on, one) {
		t.Errorf("ours: %v, %v", on, err)
	}
}

// TestLibraryLimits2: limits that are lifted are written as "-1", which the
// kernel takes for none of them (v2).
func TestLibraryLimits2(t *testing.T) {
	dir := groupFiles(t, t.TempDir()+"/g", nil)
	m, err := cgroup2.Load("/g", cgroup2.WithMountpoint(filepath.Dir(dir)))
	if err != nil {
		t.Fatal(err)
	}
	res := Resources{CPUQuota: ptr.To[int64](-1), CPUPeriod: ptr.To[uint64](100000), MemoryLimit: ptr.To[int64](-1)}
	show := func(res *cgroup2.Resources) string {
		t.Helper()
		for _, file := range []string{"cpu.max", "memory.max"} {
			groupFiles(t, dir, map[string]string{file: ""})
		}
		if err := m.Update(res); err != nil {
			t.Fatal(err)
		}
		return read(t, dir, "cpu.max") + ", " + read(t, dir, "memory.max")
	}
	if got := show(cgroup2.ToResources(res.spec())); got != "-1 100000, -1" {
		t.Errorf("the library writes %s", got)
	}
	if got := show(res.v2(func(string) bool { return true })); got != "max 100000, 9223372036854775807" {
		t.Errorf("ours: %s", got)
	}
}

// group2 is a group of cgroup2's alone, with its directory.
func group2(t *testing.T) (*Root, string) {
	t.Helper()
	r := open(t)
	if r.unified == "" {
		t.Skip("the host has no cgroup2")
	}
	dir := fmt.Sprintf("%s/shoal-test-library-%d", r.unified, os.Getpid())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = removeTree(dir) })
	return r, dir
}

// TestKillFindsProcessesOfEitherSide: an OCI runtime may leave cgroup2 out on a
// hybrid host, and a process in a threaded group counts.
func TestKillFindsProcessesOfEitherSide(t *testing.T) {
	r := open(t)
	path := fmt.Sprintf("/shoal-test-sides-%d", os.Getpid())
	if err := r.Ensure(path, Resources{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Kill(path); _ = r.Delete(path) })
	var want []int
	for _, dir := range r.memberships(path) {
		cmd := exec.Command("sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		go cmd.Wait()
		if err := write(dir, "cgroup.procs", fmt.Sprint(cmd.Process.Pid)); err != nil {
			t.Fatal(err)
		}
		want = append(want, cmd.Process.Pid)
	}
	slices.Sort(want)
	if got, err := r.Pids(path); err != nil || !slices.Equal(got, want) {
		t.Errorf("Pids = %v, %v, want %v", got, err, want)
	}
	if err := r.Kill(path); err != nil {
		t.Fatal(err)
	}
	for _, pid := range want {
		if err := unix.Kill(pid, 0); err == nil {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if f := strings.Fields(string(b)); len(f) > 2 && f[2] != "Z" {
				t.Errorf("process %d is alive: %s", pid, f[2])
			}
		}
	}
	if err := r.Delete(path); err != nil {
		t.Error(err)
	}
}

// A group that somebody froze ends as any other, also one below it.
func TestKillFrozen(t *testing.T) {
	r := open(t)
	for _, below := range []string{"", "/container"} {
		path := fmt.Sprintf("/shoal-test-frozen-%d", os.Getpid())
		if err := r.Ensure(path+below, Resources{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Kill(path); _ = r.Delete(path) })
		cmd := exec.Command("sleep", "100")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		frozen := false
		for _, dir := range r.dirs(path + below) {
			if err := write(dir, "cgroup.procs", fmt.Sprint(cmd.Process.Pid)); err != nil {
				t.Fatal(err)
			}
			for file, state := range map[string]string{freezerState: "FROZEN", "cgroup.freeze": "1"} {
				frozen = write(dir, file, state) == nil || frozen
			}
		}
		if !frozen {
			t.Fatal("nothing here freezes")
		}
		if err := r.Kill(path); err != nil {
			t.Error(err)
		}
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Errorf("%q: the process does not end", below)
		}
		if err := r.Delete(path); err != nil {
			t.Error(err)
		}
	}
}
