package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstalled: an installation has all that is in systemd.
func TestInstalled(t *testing.T) {
	script, err := os.ReadFile("../hack/install.sh")
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("../systemd")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, f := range files {
		if name := f.Name(); !strings.Contains(string(script), name) {
			t.Errorf("hack/install.sh does not install systemd/%s", name)
		}
	}
}

// TestSysctls: the kernel knows what an installation sets, and the kubelet's settings that
// containers depend on are among it.
func TestSysctls(t *testing.T) {
	data, err := os.ReadFile("../systemd/sysctl.conf")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		name = strings.TrimPrefix(name, "-") // it may be missing, as in a container
		set[name] = value
		if _, err := os.Stat(filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))); err != nil {
			t.Error(err)
		}
	}
	for name, want := range map[string]string{
		"vm.overcommit_memory": "1", "kernel.panic": "10", "kernel.panic_on_oops": "1",
		"fs.inotify.max_user_instances": "8192", "net.ipv4.neigh.default.gc_thresh3": "32768",
		"net.ipv4.tcp_mtu_probing": "1",
	} {
		if set[name] != want {
			t.Errorf("%s is %q, want %s", name, set[name], want)
		}
	}
}
