package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000} {
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
