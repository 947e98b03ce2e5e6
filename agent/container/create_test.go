package container

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A container whose record cannot be written when it is made is undone: what took
// the disk's space would else take more with each try.
func TestRecordFailsAfterPrepare(t *testing.T) {
	r := newRig(t)
	r.scripts["a"] = "true"
	req := r.request("a", nil)
	// Missing directories of mounts are made: this one is in the way of the second record.
	blocked := filepath.Join(r.cfg.DataDir, "a.json.tmp")
	req.Config.Mounts = []*criv1.Mount{{HostPath: blocked, ContainerPath: "/mnt"}}
	if _, err := r.m.Create(t.Context(), req); err == nil || !strings.Contains(err.Error(), "a.json.tmp") {
		t.Fatalf("created: %v", err)
	}
	if err := os.Remove(blocked); err != nil {
		t.Error(err)
	}
	if list := r.m.List(); len(list) > 0 {
		t.Errorf("still known: %+v", list[0])
	}
	for _, dir := range []string{r.cfg.DataDir, r.cfg.RunDir} {
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range left {
			if e.Name() != "exits" {
				t.Errorf("left in %s: %s", dir, e.Name())
			}
		}
	}
}
