package beneath

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSockets: one that is made is for root alone and takes the place of an old one, in
// directories with long names too; only sockets of the directory itself are dialled.
func TestSockets(t *testing.T) {
	at := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.Mkdir(at, 0o750); err != nil {
		t.Fatal(err)
	}
	d := open(t, at)
	for range 2 { // the second in place of the first
		l, err := d.Listen("s")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if c, err := l.Accept(); err == nil {
				_ = c.Close()
			}
		}()
		if st, err := d.Root.Lstat("s"); err != nil || st.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%v %v", st, err)
		}
		c, err := d.Dial(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("somebody else answers")
		}
		_ = c.Close()
	}
	outside := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", outside)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, err := range []error{
		os.Symlink(outside, filepath.Join(at, "link")),
		os.Symlink("s", filepath.Join(at, "inner")),
		os.WriteFile(filepath.Join(at, "file"), nil, 0o600),
		unix.Mkfifo(filepath.Join(at, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]error{"link": unix.ELOOP, "inner": unix.ELOOP, "file": ErrNotSocket,
		"fifo": ErrNotSocket, "none": fs.ErrNotExist, "../" + filepath.Base(at) + "/s": unix.EXDEV, outside: unix.EXDEV} {
		if c, err := d.Dial(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
			if c != nil {
				_ = c.Close()
			}
		}
	}
	if l, err := d.Listen("../s"); err == nil {
		t.Error("listens elsewhere")
		_ = l.Close()
	}
}
