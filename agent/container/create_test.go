package container

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/oci"
)

// A container whose record cannot be written when it is made is undone: what took
// the disk's space would else take more with each try.
func TestRecordFailsAfterPrepare(t *testing.T) {
	r := newRig(t)
	r.scripts["a"] = "true"
	req := r.request("a", nil)
	// Missing directories of mounts are made: these are in the way of the second record.
	blocked := filepath.Join(r.cfg.DataDir, "a.json.tmp")
	req.Config.Mounts = []*criv1.Mount{{HostPath: filepath.Join(blocked, "in"), ContainerPath: "/mnt"}}
	if _, err := r.m.Create(t.Context(), req); err == nil || !strings.Contains(err.Error(), "a.json.tmp") {
		t.Fatalf("created: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(blocked, "in")), os.Remove(blocked)); err != nil {
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

// TestWayToContainer refuses a container whose users cannot reach it, with the directory
// that is closed to them.
func TestWayToContainer(t *testing.T) {
	r := newRig(t)
	r.scripts["a"] = "exit 0\n"
	req := r.request("a", nil)
	id := specs.LinuxIDMapping{HostID: 1 << 20, Size: 1 << 16}
	req.IDs = oci.IDs{UIDs: []specs.LinuxIDMapping{id}, GIDs: []specs.LinuxIDMapping{id}}
	closed := filepath.Join(r.dir, "run")
	r.names = append(r.names, "a")
	for path, mode := range map[string]os.FileMode{r.dir: 0o711, closed: 0o710} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	want := "its users may not go through " + closed + " (mode 0710)"
	if _, err := r.m.Create(t.Context(), req); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := os.Chmod(closed, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := checkWay(closed); err != nil {
		t.Error(err)
	}
}
