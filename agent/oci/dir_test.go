package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestPrivateDir: whatever a directory's mode and group were, nobody enters it
// but root, and the root of the container's user namespace.
func TestPrivateDir(t *testing.T) {
	mapped := IDs{GIDs: []specs.LinuxIDMapping{{ContainerID: 0, HostID: 65536, Size: 65536}}}
	for _, c := range []struct {
		ids   IDs
		group uint32
		mode  uint32
	}{{IDs{}, 0, 0o700}, {mapped, 65536, 0o710}} {
		path := filepath.Join(t.TempDir(), "d")
		for _, before := range []os.FileMode{0, 0o755, 0o700, 0o710} {
			if before != 0 {
				if err := errors.Join(os.Chown(path, -1, 4711), os.Chmod(path, before)); err != nil {
					t.Fatal(err)
				}
			}
			var st unix.Stat_t
			if err := errors.Join(PrivateDir(path, c.ids), unix.Lstat(path, &st)); err != nil || st.Gid != c.group ||
				st.Mode&0o7777 != c.mode {
				t.Errorf("%+v, before %o: group %d, mode %o, %v", c.ids, before, st.Gid, st.Mode&0o7777, err)
			}
		}
	}
}

func TestLastErrorOfHugeLog(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	lines := `{"level":"error","msg":"it failed"}` + "\n" + strings.Repeat("x\n", 10)
	if err := errors.Join(os.WriteFile(file, []byte(lines), 0o600), os.Truncate(file, 1<<40)); err != nil {
		t.Fatal(err)
	}
	if got := LastError(file); got != "it failed" {
		t.Errorf("got %q", got)
	}
}
