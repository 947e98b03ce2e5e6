package oci

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// What a device plugin gave a container is in its specification: annotations, and the
// devices of the container device interface by either way to name them.
func TestDevicesOfPlugins(t *testing.T) {
	dir := t.TempDir()
	spec := `{"cdiVersion": "0.6.0", "kind": "vendor.example/dev", "devices": [
{"name": "a", "containerEdits": {"env": ["FROM_A=1"]}}, {"name": "b", "containerEdits": {"env": ["FROM_B=1"]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "v.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	before := cdi.DefaultSpecDirs
	cdi.DefaultSpecDirs = []string{dir}
	t.Cleanup(func() { cdi.DefaultSpecDirs = before })
	s, err := Spec(input(func(in *Input) {
		in.Config.CDIDevices = []*criv1.CDIDevice{{Name: "vendor.example/dev=a"}}
		in.Config.Annotations = map[string]string{"cdi.k8s.io/v": "vendor.example/dev=b,vendor.example/dev=a", "note": "x"}
		in.Config.Devices = []*criv1.Device{{ContainerPath: "/dev/v", HostPath: "/dev/zero", Permissions: "r"}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	env := strings.Join(s.Process.Env, " ")
	if strings.Count(env, "FROM_A=1") != 1 || strings.Count(env, "FROM_B=1") != 1 {
		t.Errorf("variables %s", env)
	}
	if s.Annotations["note"] != "x" || s.Annotations["io.kubernetes.cri.container-type"] != "container" {
		t.Errorf("annotations %v", s.Annotations)
	}
	if !slices.ContainsFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == "/dev/v" && d.Minor == 5 }) {
		t.Errorf("devices %v", s.Linux.Devices)
	}
	for _, bad := range []string{"vendor.example/dev=none", "nonsense"} {
		if _, err := Spec(input(func(in *Input) {
			in.Config.Annotations = map[string]string{"cdi.k8s.io/v": bad}
		})); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
