package volume

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// TestGroupOfWhatCannotChange: a file that cannot be given to the pod's group keeps no pod
// from starting, and no other file from being given to it.
func TestGroupOfWhatCannotChange(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "fixed", "z"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(filepath.Join(dir, "fixed"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
		t.Skipf("the file system has no immutable files: %v", err)
	}
	defer func() {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0); err != nil {
			t.Error(err)
		}
	}()
	var log bytes.Buffer
	if err := own(dir, 4711, corev1.FSGroupChangeAlways, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Fatal(err)
	}
	for name, group := range map[string]uint32{"a": 4711, "fixed": uint32(os.Getgid()), "z": 4711, ".": 4711} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err != nil || st.Gid != group {
			t.Errorf("%s is of group %d, %v", name, st.Gid, err)
		}
	}
	if !strings.Contains(log.String(), "fixed") {
		t.Errorf("told %q", &log)
	}
}
