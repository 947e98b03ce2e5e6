package host

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOpenFiles: descriptors of several processes are counted together, and bounded.
func TestOpenFiles(t *testing.T) {
	dir := t.TempDir()
	for pid, targets := range map[int][]string{
		7: {"/dev/null", "socket:[12]", "pipe:[3]"}, 8: {"socket:[13]", "/socket:[x]"}, 9: {},
	} {
		fd := filepath.Join(dir, strconv.Itoa(pid), "fd")
		if err := os.MkdirAll(fd, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, target := range targets {
			if err := os.Symlink(target, filepath.Join(fd, strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		pids []int
		most int
		want Files
	}{
		{[]int{7, 8, 9, 10}, 100, Files{Open: 5, Sockets: 2}},
		{[]int{7}, 3, Files{Open: 3, Sockets: 1}},
		{nil, 100, Files{}},
	} {
		if got := openFiles(dir, tt.pids, tt.most); got != tt.want {
			t.Errorf("%v, %d at most: %+v, want %+v", tt.pids, tt.most, got, tt.want)
		}
	}
	if got := openFiles(dir, []int{7, 8}, 4); got.Open != 4 {
		t.Errorf("not bounded: %+v", got)
	}
}

// TestOwnFiles: the kernel tells of this process what was opened in it.
func TestOwnFiles(t *testing.T) {
	before := OpenFiles([]int{os.Getpid()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	after := OpenFiles([]int{os.Getpid()})
	if after.Sockets != before.Sockets+1 || after.Open <= before.Open {
		t.Errorf("before: %+v, after: %+v", before, after)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	got, known := FileLimit(os.Getpid())
	if !known || uint64(got) != limit.Cur {
		t.Errorf("%d, %v; want %d", got, known, limit.Cur)
	}
}

// TestFileLimit reads what proc(5) may say.
func TestFileLimit(t *testing.T) {
	for line, want := range map[string]struct {
		n     int64
		known bool
	}{
		"Max open files            1024                 524288               files": {1024, true},
		"Max open files            unlimited            unlimited            files": {-1, true},
		"Max open files            ": {0, false},
		"Max open files            many                 many                 files": {0, false},
		"Max file locks            7                    7                    locks": {0, false},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "5"), 0o755); err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("Limit                     Soft Limit           Hard Limit           Units\n%s\n", line)
		if err := os.WriteFile(filepath.Join(dir, "5", "limits"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, known := fileLimit(dir, 5); n != want.n || known != want.known {
			t.Errorf("%q: %d, %v", line, n, known)
		}
	}
	if _, known := fileLimit(t.TempDir(), 5); known {
		t.Error("the limit of no process is known")
	}
}
