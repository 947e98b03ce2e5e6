package quota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/csi/btrfs"
	"github.com/shoal-project/shoal/csi/btrfs/btrfstest"
)

const mib = 1 << 20

// fake is a kernel with project quotas that notes what it is asked.
type fake struct {
	use map[uint32]Usage
	of  map[string]uint32 // by a directory's base name
	did []string
	err error
}

// On implements edge.
func (f *fake) On(*os.File) (bool, error) { return true, nil }

// Of implements edge.
func (f *fake) Of(dir *os.File) (uint32, error) { return f.of[filepath.Base(dir.Name())], f.err }

// Set implements edge.
func (f *fake) Set(dir *os.File, project uint32) error {
	f.did = append(f.did, fmt.Sprintf("set %s %d", filepath.Base(dir.Name()), project))
	return f.err
}

// Limit implements edge.
func (f *fake) Limit(project uint32, bytes int64) error {
	f.did = append(f.did, fmt.Sprintf("limit %d %d", project, bytes))
	u := f.use[project]
	u.Limit = bytes
	f.use[project] = u
	return nil
}

// Use implements edge.
func (f *fake) Use(project uint32) (Usage, error) { return f.use[project], nil }

func TestProjects(t *testing.T) {
	dir := t.TempDir()
	kernel := &fake{use: map[uint32]Usage{
		firstProject: {Inodes: 1}, firstProject + 1: {Bytes: 4096}, firstProject + 2: {Limit: 1}}}
	d := &Disk{projects: newProjects(kernel)}
	d.projects.files = []string{filepath.Join(dir, "projects"), filepath.Join(dir, "projid"), filepath.Join(dir, "none")}
	for i, text := range []string{"# ours\n1048579:/srv/a\n\n1048580:/srv/b:c\n", "a:1048579\nlogs:1048581\n"} {
		if err := os.WriteFile(d.projects.files[i], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first = firstProject + 6 // the others are somebody's
	if again, err := d.Take(first + 1); err != nil || again != first+1 {
		t.Error(again, err)
	}
	a, err := d.Take(0)
	if err != nil || a != first {
		t.Error(a, err)
	}
	b, err := d.Take(0)
	if err != nil || b != first+2 {
		t.Error(b, err)
	}
	path := filepath.Join(dir, "volume")
	if err := d.Mkdir(path, a, 32*mib); err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprint("limit ", first, " ", 32*mib), fmt.Sprint("set volume ", first)}
	if !slices.Equal(kernel.did, want) {
		t.Errorf("got %q, want %q", kernel.did, want)
	}
	kernel.use[a] = Usage{Bytes: mib, Inodes: 3, Limit: 32 * mib}
	if got, err := d.Used(path, a, true); err != nil || got != kernel.use[a] {
		t.Error(got, err)
	}
	if got, err := d.Used(path, a, false); !errors.Is(err, ErrNone) {
		t.Error("a pod that can leave its project is believed:", got, err)
	}
	if err := os.WriteFile(filepath.Join(path, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Remove(path, a); err != nil {
			t.Error(err)
		}
	}
	if kernel.use[a].Limit != 0 {
		t.Error(kernel.use[a])
	}
	if got, err := d.Used(path, a, true); !errors.Is(err, ErrNone) {
		t.Error(got, err)
	}
	kernel.use[a] = Usage{}
	d.Give(a)
	if got, err := d.Take(0); err != nil || got != a {
		t.Error("a project that was given back:", got, err)
	}
}

func TestProjectsOfBrokenFile(t *testing.T) {
	d := &Disk{projects: newProjects(&fake{})}
	d.projects.files = []string{filepath.Join(t.TempDir(), "projid")}
	for _, text := range []string{"a", "a:b", "a:4294967296", strings.Repeat("#", maxProjectFile+1)} {
		if err := os.WriteFile(d.projects.files[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Take(0); err == nil {
			t.Errorf("%.10q: project %d may be another's", text, got)
		}
	}
}

func FuzzProjects(f *testing.F) {
	f.Add("1:/a\nb:2\n# c\n")
	f.Add("3:4")
	f.Fuzz(func(t *testing.T, text string) {
		named := map[uint32]bool{}
		err := parseProjects(strings.NewReader(text), "file", named)
		if err == nil && len(named) > strings.Count(text, ":") {
			t.Errorf("%q names %v", text, named)
		}
	})
}

// disk is a new file system, mounted with options.
func disk(t *testing.T, options string, mkfs ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	file, at := filepath.Join(dir, "disk"), filepath.Join(dir, "mnt")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 512*mib), os.Mkdir(at, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{append(slices.Clone(mkfs), file), {"mount", "-o", "loop" + options, file, at}} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Skipf("this machine has no such file system: %q: %v: %s", c, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return at
}

// TestProjectQuota is on a real kernel, where it has project quotas: what is written
// beyond the limit fails, and what is there is counted.
func TestProjectQuota(t *testing.T) {
	for name, mkfs := range map[string][]string{
		"ext4": {"mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota"},
		"xfs":  {"mkfs.xfs", "-q"},
	} {
		t.Run(name, func(t *testing.T) { projectQuota(t, disk(t, ",prjquota", mkfs...)) })
	}
}

func projectQuota(t *testing.T, at string) {
	d, why, err := Open(at)
	if err != nil || d == nil {
		t.Fatal(why, err)
	}
	d.projects.files = nil
	project, err := d.Take(0)
	if err != nil || project != firstProject {
		t.Fatal(project, err)
	}
	path := filepath.Join(at, "volume")
	if err := d.Mkdir(path, project, 32*mib); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(path, "own")
	err = errors.Join(os.Mkdir(own, 0o755), os.Chown(own, 1000, 1000), os.Chmod(path, 0o777), openUp(at))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := other("dd", "if=/dev/zero", "of="+filepath.Join(own, "f"), "bs=1M", "count=64"); err == nil {
		t.Errorf("64 MiB are written: %s", out)
	}
	if got, err := d.Used(path, project, true); err != nil || got.Bytes < 30*mib || got.Bytes > 32*mib || got.Inodes < 3 {
		t.Error(got, err)
	}
	if again, err := d.Take(0); err != nil || again == project {
		t.Error(again, err)
	}
	// Why the limit binds pods with a user namespace of their own alone.
	if out, err := leave(own, true); err == nil {
		t.Errorf("who has its own user namespace leaves the project: %s", out)
	}
	if out, err := leave(own, false); err != nil {
		t.Errorf("who owns a directory cannot leave the project, so that Used may be believed: %v: %s", err, out)
	}
	if err := d.Remove(path, project); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); ; time.Sleep(50 * time.Millisecond) { // XFS takes its time
		u, err := d.projects.kernel.Use(project)
		if err == nil && u == (Usage{}) {
			return
		}
		if err != nil || time.Since(begin) > time.Minute {
			t.Fatal("left:", u, err)
		}
	}
}

// leaveHelper is the environment of the process that takes a directory out of its
// project.
const leaveHelper = "QUOTA_TEST_LEAVE"

// TestLeaveHelper is that process.
func TestLeaveHelper(t *testing.T) {
	path := os.Getenv(leaveHelper)
	if path == "" {
		t.Skip("TestProjectQuota runs it")
	}
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := (kernel{}).Set(dir, 0); err != nil {
		t.Fatal(err)
	}
}

func leave(path string, ownUsers bool) ([]byte, error) {
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestLeaveHelper$")
	cmd.Env = append(os.Environ(), leaveHelper+"="+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	if ownUsers {
		ids := []syscall.SysProcIDMap{{ContainerID: 1000, HostID: 1000, Size: 1}}
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = ids, ids
	}
	out, err := cmd.CombinedOutput()
	if err == nil && !strings.Contains(string(out), "PASS") {
		err = errors.New("the helper did nothing")
	}
	return out, err
}

// openUp lets other users into a test's directory.
func openUp(dir string) error {
	var err error
	for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		err = errors.Join(err, os.Chmod(dir, 0o755))
	}
	return err
}

// other has another user run a program: root may pass limits.
func other(program string, args ...string) ([]byte, error) {
	cmd := exec.Command(program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
	return cmd.CombinedOutput()
}

func TestOpenSaysWhatLacks(t *testing.T) {
	plain := disk(t, "", "mkfs.ext4", "-q", "-F")
	for dir, want := range map[string]string{plain: "is mounted without prjquota", "/proc": "has no quotas of directories"} {
		if d, why, err := Open(dir); err != nil || d != nil || !strings.Contains(why, want) {
			t.Errorf("%s: %v %q %v", dir, d, why, err)
		}
	}
	if _, _, err := Open(filepath.Join(plain, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestBtrfs(t *testing.T) {
	at := btrfstest.Disk(t, 512*mib)
	if !btrfs.KernelHasSimple() {
		t.Skip("the kernel has no simple quotas (Linux 6.7)")
	}
	f, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d, why, err := Open(at); err != nil || d != nil || !strings.Contains(why, "`btrfs quota enable --simple`") {
		t.Error(d, why, err)
	}
	if err := btrfs.Enable(f); err != nil {
		t.Fatal(err)
	}
	d, why, err := Open(at)
	if err != nil || d == nil {
		t.Fatal(why, err)
	}
	if project, err := d.Take(0); err != nil || project != 0 {
		t.Error(project, err)
	}
	path, other := filepath.Join(at, "volume"), filepath.Join(at, "other")
	if err := errors.Join(d.Mkdir(path, 0, 32*mib), os.Mkdir(other, 0o700)); err != nil {
		t.Fatal(err)
	}
	err = os.WriteFile(filepath.Join(path, "f"), make([]byte, 64*mib), 0o600)
	if !errors.Is(err, unix.EDQUOT) {
		t.Error(err)
	}
	got, err := d.Used(path, 0, false)
	if err != nil || got.Bytes < 24*mib || got.Bytes > 32*mib || got.Inodes != Uncounted {
		t.Error(got, err)
	}
	if got, err := d.Used(other, 0, true); !errors.Is(err, ErrNone) {
		t.Error(got, err)
	}
	shareOnBtrfs(t, d, at)
	for _, dir := range []string{path, other, path} {
		if err := d.Remove(dir, 0); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Error(dir, err)
		}
	}
}

// shareOnBtrfs limits directories that are there: an empty one with its mode, one that is
// a subvolume already; what has files stays as it is.
func shareOnBtrfs(t *testing.T, d *Disk, at string) {
	t.Helper()
	logs := filepath.Join(at, "pod")
	err := errors.Join(os.MkdirAll(filepath.Join(logs, "a"), 0o755), os.MkdirAll(filepath.Join(logs, "b"), 0o755),
		os.WriteFile(filepath.Join(logs, "b", "f"), nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	parent, err := os.Open(logs)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	for range 2 {
		if err := d.Share(parent, "a", 0, 8*mib); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := os.Stat(filepath.Join(logs, "a")); err != nil || st.Mode() != os.ModeDir|0o755 {
		t.Error(st, err)
	}
	if err := os.WriteFile(filepath.Join(logs, "a", "f"), make([]byte, 16*mib), 0o600); !errors.Is(err, unix.EDQUOT) {
		t.Error(err)
	}
	if err := d.Share(parent, "b", 0, 8*mib); !errors.Is(err, unix.ENOTEMPTY) {
		t.Error(err)
	}
	if err := RemoveTree(logs); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(logs); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := RemoveTree(logs); err != nil {
		t.Error(err)
	}
	elsewhere, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	if err := d.Share(elsewhere, "self", 0, 8*mib); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

// TestProjectsWithoutRecord removes a directory whose record is lost: it tells its project
// itself, where it has not that of its parent.
func TestProjectsWithoutRecord(t *testing.T) {
	const own, parents = firstProject + 1, firstProject + 2
	kernel := &fake{use: map[uint32]Usage{}, of: map[string]uint32{"own": own, "deep": parents, "top": parents, "low": 7}}
	d := &Disk{projects: newProjects(kernel)}
	top := filepath.Join(t.TempDir(), "top")
	for _, name := range []string{"own", "deep", "low"} {
		path := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(path, 0o700), d.Remove(path, 0)); err != nil {
			t.Error(err)
		}
	}
	if want := []string{fmt.Sprint("limit ", own, " 0")}; !slices.Equal(kernel.did, want) {
		t.Errorf("got %q, want %q", kernel.did, want)
	}
	if err := os.Mkdir(filepath.Join(top, "logs"), 0o700); err != nil {
		t.Fatal(err)
	}
	parent, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	kernel.did = nil
	if err := d.Share(parent, "logs", own, mib); err != nil {
		t.Error(err)
	}
	if want := []string{fmt.Sprint("set logs ", own)}; !slices.Equal(kernel.did, want) {
		t.Errorf("got %q, want %q", kernel.did, want)
	}
}
