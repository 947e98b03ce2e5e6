package volume

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// What is mounted at a directory goes, over itself and below itself too, and what is
// mounted below one with files in it. Only where nothing is left, the mount table
// need not be read.
func TestUnmountUnder(t *testing.T) {
	file := func(path string) {
		t.Helper()
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := func(elem ...string) string {
		t.Helper()
		dir := filepath.Join(elem...)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, c := range map[string]struct {
		make   func(dir string)
		unread bool // the mount table
	}{
		"nothing":          {func(string) {}, true},
		"files":            {func(dir string) { file(filepath.Join(dir, "a")) }, false},
		"a file":           {func(dir string) { os.Remove(dir); file(dir) }, false},
		"one":              {func(dir string) { file(filepath.Join(at(dir), "a")) }, true},
		"over each other":  {func(dir string) { at(dir); at(dir) }, true},
		"below":            {func(dir string) { at(at(dir), "a", "b") }, true},
		"beside files":     {func(dir string) { at(dir, "a", "b"); file(filepath.Join(dir, "c")) }, false},
		"over what it hid": {func(dir string) { at(dir, "a"); at(dir) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "v")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			c.make(dir)
			if got := detached(dir); got != c.unread {
				t.Errorf("nothing is left there: %t", got)
			}
			if err := UnmountUnder(dir); err != nil {
				t.Error(err)
			}
			left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
			if err != nil || len(left) > 0 {
				t.Errorf("%d mounts are left, %v", len(left), err)
			}
		})
	}
}
