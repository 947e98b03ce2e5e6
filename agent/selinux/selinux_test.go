package selinux

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLevel(t *testing.T) {
	seen := map[string]bool{}
	for _, uid := range []string{"", "a", "b", "b3f5-1"} {
		level := Level(uid)
		if level != Level(uid) || seen[level] {
			t.Errorf("%q has %s", uid, level)
		}
		seen[level] = true
	}
	if got := Level("a"); got != "s0:c306,c663" {
		t.Errorf("the level of a pod has changed to %s: its volumes would be relabelled", got)
	}
}

// TestRelabel: all of a directory gets the label, a link and not what it leads to; what
// is beside it gets none.
func TestRelabel(t *testing.T) {
	top := t.TempDir()
	if err := unix.Mount("tmpfs", top, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mounting needs root: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	for _, name := range []string{"volume/sub/file", "volume/file", "outside"} {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(top, "volume/link")); err != nil {
		t.Fatal(err)
	}
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	if err := Relabel(filepath.Join(top, "volume"), label); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"volume": label, "volume/sub": label, "volume/sub/file": label, "volume/file": label, "volume/link": label,
		"outside": "", ".": "",
	} {
		if got := labelOf(t, filepath.Join(top, name)); got != want {
			t.Errorf("%s has %q", name, got)
		}
	}
	file := filepath.Join(top, "outside")
	if err := Relabel(file, label); err != nil || labelOf(t, file) != label {
		t.Errorf("a file: %v", err)
	}
	if err := Relabel(filepath.Join(top, "missing"), label); err == nil {
		t.Error("nothing was relabelled")
	}
}

func labelOf(t *testing.T, path string) string {
	t.Helper()
	value := make([]byte, 200)
	n, err := unix.Lgetxattr(path, attribute, value)
	if err == unix.ENODATA {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(value[:n])
}
