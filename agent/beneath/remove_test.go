package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fix makes a file or a directory one that nobody can remove.
func fix(t *testing.T, path string, attributes int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, attributes); err != nil {
		t.Skipf("the file system has no such attributes: %v", err)
	}
}

// TestRemoveFixed: what a privileged container made immutable in its volume goes, and what is
// elsewhere keeps what it has.
func TestRemoveFixed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes files immutable")
	}
	const immutable, appendOnly = 0x10, 0x20
	root := t.TempDir()
	dir, elsewhere := filepath.Join(root, "volume"), filepath.Join(root, "elsewhere")
	steps := []error{os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755), os.MkdirAll(filepath.Join(dir, "empty"), 0o755)}
	for _, f := range []string{elsewhere, dir + "/a/b/f", dir + "/a/g", dir + "/h"} {
		steps = append(steps, os.WriteFile(f, nil, 0o600))
	}
	if err := errors.Join(append(steps, os.Symlink(elsewhere, dir+"/a/link"))...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fix(t, elsewhere, 0) })
	fix(t, elsewhere, immutable)
	for _, f := range []string{"a/b/f", "a/b", "a/g", "empty", "a"} {
		fix(t, filepath.Join(dir, f), immutable)
	}
	fix(t, dir+"/h", appendOnly)
	fix(t, dir, immutable)

	if err := RemoveAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is there: %v", err)
	}
	if err := os.Remove(elsewhere); !errors.Is(err, unix.EPERM) {
		t.Errorf("a file elsewhere is not immutable any more: %v", err)
	}
}

// TestRemoveFixedLink: a file with another name keeps its attributes, and the error names it.
func TestRemoveFixedLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes files immutable")
	}
	root := t.TempDir()
	dir, elsewhere := filepath.Join(root, "volume"), filepath.Join(root, "elsewhere")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(elsewhere, nil, 0o600),
		os.Link(elsewhere, dir+"/f")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fix(t, elsewhere, 0) })
	fix(t, elsewhere, 0x10)
	err := RemoveAll(dir)
	if err == nil || !strings.Contains(err.Error(), "remove "+dir+": unlink f: operation not permitted") {
		t.Errorf("%v", err)
	}
}
