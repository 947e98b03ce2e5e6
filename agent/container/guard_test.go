package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-project/shoal/agent/oci"
)

// root makes a root file system with the links that are given.
func root(t *testing.T, links map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"data", "etc"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for from, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// SEC: CVE-2024-21626 and its like.
func TestWorkingDir(t *testing.T) {
	dir := root(t,
		map[string]string{"link": "/proc/self/fd/7", "second": "link", "third": "data/../second/../../x",
			"out": "../../../..", "circle": "circle"})
	for _, good := range []string{"/", "/data", "data", "/none/yet", "/proc", "/proc/sys/net", "/out",
		"/procfs/self/fd", "/dev/shm", "/dev"} {
		if err := checkWorkingDir(dir, good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"/proc/self/fd/7", "/proc/self/fd/7/", "proc/1/fd", "/data/../proc//thread-self/cwd",
		"/proc/self/root/etc", "/proc/1/task/1/fd/9",
		"/dev/fd/8", "/dev/stdin", "/link", "/second", "/third", "/link/../../x", "/proc/self/fd/../../../x", "/circle"} {
		if err := checkWorkingDir(dir, bad); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestExecDir(t *testing.T) {
	f, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := root(t, map[string]string{"link": "/proc/self/fd/7"})
	for p, want := range map[string]bool{"/": true, filepath.Join(dir, "data"): true, filepath.Join(dir, "none"): true,
		filepath.Join(dir, "link"): false, "/proc/self/cwd": false} {
		if err := checkExecDir(os.Getpid(), p); (err == nil) != want {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// SEC: CVE-2026-41579, CVE-2019-19921.
func TestKernelDirsOfImages(t *testing.T) {
	if err := checkRoot(root(t, nil)); err != nil {
		t.Error(err)
	}
	for _, name := range kernelDirs {
		if err := checkRoot(root(t, map[string]string{name: "/etc"})); err == nil {
			t.Errorf("an image whose /%s is a link is taken", name)
		}
	}
}

// SEC: CVE-2025-31133, CVE-2025-52881.
func TestMountsOverKernelDirs(t *testing.T) {
	dir := root(t, map[string]string{"devices": "/dev", "processes": "proc"})
	for to, from := range map[string]string{"/data": "/v", "/dev/shm": "/v", "/dev": "/dev", "/sys": "/sys",
		"/sys/fs/bpf": "/sys/fs/bpf", "/proc/cpuinfo": "/v", "/host/proc": "/proc"} {
		if err := checkMounts(dir, []oci.Mount{{Host: from, Container: to}}); err != nil {
			t.Errorf("%s at %s: %v", from, to, err)
		}
	}
	for _, to := range []string{"/dev", "/dev/", "dev", "/proc", "/sys", "/x/../proc", "/proc/self/attr", "/devices",
		"/processes", "/processes/sys"} {
		if err := checkMounts(dir, []oci.Mount{{Host: "/v", Container: to}}); err == nil {
			t.Errorf("a volume at %s is taken", to)
		}
	}
}
