package container

import (
	"testing"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// A pod's CPU limit can shrink below that of a container that has ended: control
// groups of version 1 would not have it.
func TestEndedContainerFreesItsQuota(t *testing.T) {
	r := newRig(t)
	if !r.cfg.Cgroups.Controls("cpu") {
		t.Skip("the host has no cpu controller of control groups")
	}
	r.scripts["a"] = "read code < GATE\nexit $code\n"
	period := uint64(100000)
	limit := func(path string, quota int64) {
		t.Helper()
		if err := r.cfg.Cgroups.Set(path, cgroup.Resources{CPUQuota: &quota, CPUPeriod: &period}); err != nil {
			t.Error(err)
		}
	}
	do := func(words ...string) {
		t.Helper()
		if _, err := r.do(words); err != nil {
			t.Fatal(err)
		}
	}
	do("create", "a", "limited")
	do("start", "a")
	c, err := r.m.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	limit(r.group+"/pod", 5000)
	limit(c.Cgroup, 5000)
	do("end", "a", "0")
	r.until("the end of the container", func() bool {
		c, err := r.m.Get("a")
		return err == nil && c.State == Exited
	})
	limit(r.group+"/pod", 3000)
}
