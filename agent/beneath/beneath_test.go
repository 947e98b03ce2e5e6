package beneath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// victim is a directory outside, with a secret in it that must stay as it is.
func victim(t *testing.T) (dir string, check func()) {
	t.Helper()
	dir = t.TempDir()
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir, func() {
		t.Helper()
		for path, mode := range map[string]fs.FileMode{dir: 0o700, file: 0o600} {
			st, err := os.Stat(path)
			if err != nil || st.Mode().Perm() != mode {
				t.Errorf("%s was changed: %v, %v", path, st, err)
			}
		}
		if data, err := os.ReadFile(file); err != nil || string(data) != "root's" {
			t.Errorf("the secret was changed: %q, %v", data, err)
		}
	}
}

func open(t *testing.T, dir string) *Dir {
	t.Helper()
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// soon fails when f waits for what an attacker would never do.
func soon(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("it hangs")
		return nil
	}
}

func TestReadFile(t *testing.T) {
	out, check := victim(t)
	dir := t.TempDir()
	d := open(t, dir)
	steps := []error{
		os.MkdirAll(filepath.Join(dir, "etc/d"), 0o755),
		os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("12345678"), 0o644),
		os.Symlink("passwd", filepath.Join(dir, "etc/near")),
		os.Symlink("/etc/passwd", filepath.Join(dir, "etc/absolute")),
		os.Symlink(filepath.Join(out, "secret"), filepath.Join(dir, "etc/far")),
		os.Symlink(out, filepath.Join(dir, "away")),
		os.Symlink("../../../../../../../../../etc/passwd", filepath.Join(dir, "etc/up")),
		os.Symlink("/proc/self/environ", filepath.Join(dir, "etc/proc")),
		unix.Mkfifo(filepath.Join(dir, "etc/fifo"), 0o644),
		unix.Mknod(filepath.Join(dir, "etc/zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))),
		unix.Mknod(filepath.Join(dir, "etc/socket"), unix.S_IFSOCK|0o666, 0),
	}
	if err := errors.Join(steps...); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		links Links
		limit int64
		want  error // nil: the content is read
	}{
		{"etc/passwd", NoLinks, 8, nil},
		{"etc/passwd", NoLinks, 7, ErrTooLarge},
		{"etc/near", NoLinks, 8, unix.ELOOP},
		{"etc/near", LinksInside, 8, nil},
		{"etc/absolute", LinksInside, 8, unix.EXDEV},
		{"etc/absolute", LinksOfRoot, 8, nil},
		{"etc/up", LinksInside, 8, unix.EXDEV},
		{"etc/up", LinksOfRoot, 8, nil},
		{"etc/far", LinksInside, 8, unix.EXDEV},
		{"etc/far", LinksOfRoot, 8, unix.ENOENT},
		{"away/secret", LinksInside, 8, unix.EXDEV},
		{"etc/proc", LinksOfRoot, 8, unix.ENOENT},
		{"../" + filepath.Base(out) + "/secret", LinksInside, 8, unix.EXDEV},
		{"etc/d", LinksOfRoot, 8, ErrNotRegular},
		{"etc/fifo", LinksOfRoot, 8, ErrNotRegular},
		{"etc/zero", LinksOfRoot, 8, ErrNotRegular},
		{"etc/socket", LinksOfRoot, 8, ErrNotRegular},
	} {
		t.Run(fmt.Sprintf("%s/%x", strings.ReplaceAll(c.name, "/", "_"), uint64(c.links)), func(t *testing.T) {
			var data []byte
			err := soon(t, func() (err error) { data, err = d.ReadFile(c.name, c.limit, c.links); return err })
			if !errors.Is(err, c.want) || c.want == nil && string(data) != "12345678" {
				t.Errorf("got %q, %v; want %v", data, err, c.want)
			}
		})
	}
	check()
}

// TestMkdirAll: no link makes it change the mode of what lies elsewhere, also
// when directories are swapped for links all the time.
func TestMkdirAll(t *testing.T) {
	out, check := victim(t)
	dir := t.TempDir()
	d := open(t, dir)
	if err := errors.Join(os.Symlink(out, filepath.Join(dir, "away")), os.MkdirAll(filepath.Join(dir, "in"), 0o755),
		os.Symlink("in", filepath.Join(dir, "near"))); err != nil {
		t.Fatal(err)
	}
	if err := d.MkdirAll("away/new", 0o777); !errors.Is(err, unix.EXDEV) {
		t.Errorf("through a link to outside: %v", err)
	}
	if err := d.MkdirAll("near/a/b", 0o777); err != nil {
		t.Error(err)
	}
	for _, made := range []string{"in/a", "in/a/b"} {
		if st, err := os.Stat(filepath.Join(dir, made)); err != nil || st.Mode().Perm() != 0o777 {
			t.Errorf("%s: %v, %v", made, st, err)
		}
	}
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				name := filepath.Join(dir, "race")
				_ = os.Remove(name)
				_ = os.Symlink(out, name)
				_ = os.Remove(name)
			}
		}
	}()
	for range 500 {
		_ = d.MkdirAll("race", 0o777)
		_ = os.Remove(filepath.Join(dir, "race"))
	}
	close(stop)
	<-ended
	check()
}

// TestWalk: files are changed by descriptor, links themselves only, and what is
// swapped for a link meanwhile stays untouched.
func TestWalk(t *testing.T) {
	out, check := victim(t)
	dir := t.TempDir()
	d := open(t, dir)
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/b/f"), nil, 0o600),
		os.Symlink(out, filepath.Join(dir, "a/away")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	err := soon(t, func() error {
		return d.Walk(".", func(e *Entry) error {
			seen[e.Path] = true
			if e.Path == "a/b" { // swapped between its discovery and its change
				if err := errors.Join(os.Rename(filepath.Join(dir, "a/b"), filepath.Join(dir, "a/c")),
					os.Symlink(out, filepath.Join(dir, "a/b"))); err != nil {
					return err
				}
			}
			if err := e.Chown(-1, 4711); err != nil || e.IsLink() {
				return err
			}
			return e.Chmod(e.Stat.Mode | 0o060)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a", "a/b", "a/b/f", "a/away", "fifo"} {
		if !seen[want] {
			t.Errorf("%s was not visited", want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "a/c/f")); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("a/c/f: %v, %v", st, err)
	}
	if err := unix.Mount("tmpfs", filepath.Join(dir, "a/c"), "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Detach(filepath.Join(dir, "a/c")); err != nil {
			t.Error(err)
		}
	})
	err = d.Walk(".", func(e *Entry) error {
		if e.Path == "a/c" {
			return errors.New("a mount was entered")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := RemoveAll(filepath.Join(dir, "a")); !errors.Is(err, ErrMounted) {
		t.Errorf("a tree with a mount in it is removed: %v", err)
	}
	check()
}

// deep makes a tree that no path can name the end of.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	for range levels {
		if err != nil {
			t.Fatal(err)
		}
		if err = unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, openErr := unix.Openat(fd, "d", unix.O_PATH|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		fd, err = next, openErr
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Mknodat(fd, "end", unix.S_IFREG|0o600, 0); err != nil {
		t.Fatal(err)
	}
}

// What a walk found is read as exactly that file: a link tells where it leads and is not
// gone through, what is no regular file is not opened.
func TestEntryIsRead(t *testing.T) {
	outside, check := victim(t)
	defer check()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, err := range []error{
		os.WriteFile(at("file"), []byte("text"), 0o600), unix.Setxattr(at("file"), "user.note", []byte("x"), 0),
		os.Symlink(filepath.Join(outside, "secret"), at("link")), unix.Mkfifo(at("fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got := map[string]string{}
	err = d.Walk(".", func(e *Entry) error {
		said := ""
		f, err := e.Open()
		switch {
		case errors.Is(err, ErrNotRegular):
			said = "not regular"
		case err != nil:
			return err
		default:
			b := make([]byte, 16)
			n, _ := f.Read(b)
			said = string(b[:n])
			f.Close()
		}
		if target, err := e.Readlink(); err == nil {
			said += ", leads to " + filepath.Base(target)
		}
		attributes, err := e.Xattrs(64)
		if err != nil {
			return err
		}
		got[e.Path] = fmt.Sprint(said, " ", attributes["user.note"])
		return nil
	})
	want := map[string]string{"file": "text x", "link": "not regular, leads to secret ", "fifo": "not regular "}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%q %v", got, err)
	}
	if err := d.Walk(".", func(e *Entry) error { _, err := e.Xattrs(4); return err }); !errors.Is(err, unix.ERANGE) {
		t.Errorf("attributes beyond the limit: %v", err)
	}
}

func TestRemoveAll(t *testing.T) {
	out, check := victim(t)
	dir := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(dir, "x"), 0); err != nil {
		t.Fatal(err)
	}
	deep(t, dir, 5*maxDepth)
	if err := errors.Join(os.Symlink(out, filepath.Join(dir, "away")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Usage(t.Context(), dir); !errors.Is(err, ErrTooDeep) {
		t.Errorf("a tree that is too deep to measure: %v", err)
	}
	for range 2 {
		if err := soon(t, func() error { return RemoveAll(dir) }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree is still there: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(out, link); err != nil {
		t.Fatal(err)
	}
	if err := RemoveAll(link); err != nil {
		t.Error(err)
	}
	if err := RemoveAll(filepath.Join(out, "not/there")); err != nil {
		t.Error(err)
	}
	check()
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1<<20), 0o600),
		os.Link(filepath.Join(dir, "f"), filepath.Join(dir, "g")),
		os.Symlink("/usr", filepath.Join(dir, "usr"))); err != nil {
		t.Fatal(err)
	}
	bytes, inodes, err := Usage(t.Context(), dir)
	if err != nil || inodes != 3 || bytes < 1<<20 || bytes > 2<<20 {
		t.Errorf("%d bytes, %d inodes, %v", bytes, inodes, err)
	}
	// Beyond what is told apart, each link counts its part.
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if shared, _, err := d.usage(t.Context(), 0); err != nil || shared < bytes-1024 || shared > bytes {
		t.Errorf("%d bytes by parts, %d at once, %v", shared, bytes, err)
	}
}

// TestUsageBelow: what somebody put in the place of a directory leads nowhere else.
func TestUsageBelow(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "pod", "c"), 0o700),
		os.WriteFile(filepath.Join(dir, "pod", "c", "f"), make([]byte, 1<<20), 0o600),
		os.WriteFile(filepath.Join(other, "g"), make([]byte, 1<<20), 0o600),
		os.Symlink(other, filepath.Join(dir, "link")), os.Symlink("..", filepath.Join(dir, "pod", "up"))); err != nil {
		t.Fatal(err)
	}
	if bytes, inodes, err := UsageBelow(t.Context(), dir, filepath.Join(dir, "pod", "c")); err != nil || inodes != 2 ||
		bytes < 1<<20 {
		t.Errorf("%d bytes, %d inodes, %v", bytes, inodes, err)
	}
	for _, path := range []string{"link", "pod/up", "pod/up/pod/c", "../" + filepath.Base(other)} {
		if bytes, _, err := UsageBelow(t.Context(), dir, filepath.Join(dir, path)); err == nil {
			t.Errorf("%s has %d bytes", path, bytes)
		}
	}
	if _, _, err := UsageBelow(t.Context(), dir, filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestDetach: a mount is taken away, a path that became a link is refused.
func TestDetach(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	point := filepath.Join(dir, "real/point")
	if err := errors.Join(os.MkdirAll(point, 0o700), unix.Mount("tmpfs", point, "tmpfs", 0, ""),
		os.Symlink("real", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	if err := Detach(filepath.Join(dir, "link/point")); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v", err)
	}
	for range 2 {
		if err := Detach(point); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(point); err != nil {
		t.Errorf("it is still mounted: %v", err)
	}
}
