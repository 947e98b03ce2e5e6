package volume

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// outside is a directory that no volume has to do with.
func outside(t *testing.T) (dir string, untouched func(when string)) {
	t.Helper()
	dir = t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("root's"), 0o600),
		os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir, func(when string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		data, readErr := os.ReadFile(filepath.Join(dir, "a"))
		st, statErr := os.Stat(dir)
		if err := errors.Join(err, readErr, statErr); err != nil || len(entries) != 1 || string(data) != "root's" ||
			st.Mode().Perm() != 0o700 {
			t.Errorf("%s: the directory outside was changed: %v %q %v %v", when, entries, data, st, err)
		}
	}
}

// soon fails when f waits for what an attacker would never do.
func soon(t *testing.T, f func() error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
		return nil
	}
}

// replaced puts something else in a file's place.
func replaced(path string, put func(string) error) error {
	return errors.Join(os.RemoveAll(path), put(path))
}

// TestWriterFollowsNothing: whatever a container made of a projected volume,
// the next write changes nothing outside, does not wait and shows what it
// should.
func TestWriterFollowsNothing(t *testing.T) {
	link := func(to string) func(string) error { return func(p string) error { return os.Symlink(to, p) } }
	fifo := func(p string) error { return unix.Mkfifo(p, 0o666) }
	dirWith := func(p string) error {
		return errors.Join(os.MkdirAll(filepath.Join(p, "x"), 0o755), os.WriteFile(filepath.Join(p, "x/y"), nil, 0o600))
	}
	for _, c := range []struct {
		name  string
		plant func(dir, data, out string) error
	}{
		{"data leads out", func(dir, _, out string) error {
			up := strings.Repeat("../", 40)
			return replaced(filepath.Join(dir, "..data"), link(up+out))
		}},
		{"data is absolute", func(dir, _, out string) error { return replaced(filepath.Join(dir, "..data"), link(out)) }},
		{"data is the parent", func(dir, _, _ string) error { return replaced(filepath.Join(dir, "..data"), link("..")) }},
		{"data is itself", func(dir, _, _ string) error { return replaced(filepath.Join(dir, "..data"), link("..data")) }},
		{"data is a link to a link", func(dir, _, out string) error {
			return errors.Join(os.Symlink(out, filepath.Join(dir, "..x")), replaced(filepath.Join(dir, "..data"), link("..x")))
		}},
		{"data is a directory", func(dir, _, _ string) error { return replaced(filepath.Join(dir, "..data"), dirWith) }},
		{"data is a fifo", func(dir, _, _ string) error { return replaced(filepath.Join(dir, "..data"), fifo) }},
		{"data is missing", func(dir, _, _ string) error { return os.Remove(filepath.Join(dir, "..data")) }},
		{"new data is a directory", func(dir, _, _ string) error { return dirWith(filepath.Join(dir, "..data_tmp")) }},
		{"new data is a link", func(dir, _, out string) error { return os.Symlink(out, filepath.Join(dir, "..data_tmp")) }},
		{"files are a link", func(_, data, out string) error { return replaced(data, link(out)) }},
		{"a file is a fifo", func(_, data, _ string) error { return replaced(filepath.Join(data, "a"), fifo) }},
		{"a file is a link", func(_, data, out string) error {
			return replaced(filepath.Join(data, "a"), link(filepath.Join(out, "a")))
		}},
		{"a file is huge", func(_, data, _ string) error { return os.Truncate(filepath.Join(data, "a"), 1<<40) }},
		{"a name is a directory", func(dir, _, _ string) error { return replaced(filepath.Join(dir, "a"), dirWith) }},
		{"a name leads out", func(dir, _, out string) error {
			return replaced(filepath.Join(dir, "a"), link(filepath.Join(out, "a")))
		}},
		{"a deep directory leads out",
			func(_, data, out string) error { return replaced(filepath.Join(data, "deep"), link(out)) }},
		{"the directory is closed", func(dir, _, _ string) error { return os.Chmod(dir, 0) }},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			out, untouched := outside(t)
			dir := t.TempDir()
			for _, text := range []string{"1", "2"} {
				files := map[string]file{"a": {data: []byte(text), mode: 0o640},
					"deep/a": {data: []byte(text), mode: 0o644}}
				const group = 4711
				if err := writeAtomic(dir, files, group, nil); err != nil {
					t.Fatal(err)
				}
				data, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
				if err != nil {
					t.Fatal(err)
				}
				if err := c.plant(dir, data, out); err != nil {
					t.Fatal(err)
				}
				// First with the same content, then in the next round with another.
				if err := soon(t, func() error { return writeAtomic(dir, files, group, nil) }); err != nil {
					t.Error(err)
				}
				for _, name := range []string{"a", "deep/a"} {
					if got := read(t, dir, name); got != text {
						t.Errorf("%s shows %q", name, got)
					}
				}
				untouched(c.name)
			}
			if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o755 {
				t.Errorf("the volume's mode: %v, %v", st, err)
			}
		})
	}
}

// TestWriterAgainstRace: another process swaps what the writer works with all
// the time.
func TestWriterAgainstRace(t *testing.T) {
	out, untouched := outside(t)
	dir := t.TempDir()
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !stop.Load() {
			names, _ := filepath.Glob(filepath.Join(dir, "..*"))
			for _, n := range names {
				_ = os.Rename(n, filepath.Join(dir, "..moved"))
				_ = os.Symlink(out, n)
			}
			_ = os.RemoveAll(filepath.Join(dir, "..moved"))
		}
	}()
	for i := range 100 {
		text := []byte{byte('0' + i%10)}
		// It may fail, but never elsewhere.
		_ = soon(t, func() error {
			return writeAtomic(dir, map[string]file{"a": {data: text, mode: 0o777}, "b/c": {data: text, mode: 0o777}},
				4711, nil)
		})
	}
	stop.Store(true)
	<-ended
	untouched("race")
	if err := writeAtomic(dir, map[string]file{"a": {data: []byte("z"), mode: 0o600}},
		noGroup, nil); err != nil || read(t, dir, "a") != "z" {
		t.Errorf("after the race: %v", err)
	}
}

// TestSubPathFollowsNothing: what a sub path makes has the volume's mode, and
// nothing outside gets another.
func TestSubPathFollowsNothing(t *testing.T) {
	out, untouched := outside(t)
	m := &Manager{RootDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := UnmountUnder(m.RootDir); err != nil {
			t.Error(err)
		}
	})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	if err := m.Ensure(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	dir, err := m.Path(p, "disk")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(m.podDir(p.UID)); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("the pod's directory: %v, %v", st, err)
	}
	if err := errors.Join(os.Symlink(out, filepath.Join(dir, "away")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		path string
		ok   bool
	}{{"new/sub", true}, {"away", false}, {"away/new", false}, {"away/a", false}, {"fifo/x", false},
		{"../x", false}, {"/etc", false}} {
		err := soon(t, func() error {
			_, err := m.SubPath(p, SubPath{Volume: "disk", Container: "c", Index: i, Path: c.path})
			return err
		})
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.path, err)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "new/sub")); err != nil || st.Mode().Perm() != 0o777 {
		t.Errorf("a made directory: %v, %v", st, err)
	}
	special := fs.ModeSetgid | fs.ModeSticky | 0o770 // as with a group of the pod
	if err := os.Chmod(dir, special); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SubPath(p, SubPath{Volume: "disk", Container: "c", Index: 8, Path: "group/sub"}); err != nil {
		t.Error(err)
	}
	for _, made := range []string{"group", "group/sub"} {
		if st, err := os.Stat(filepath.Join(dir, made)); err != nil || st.Mode()&^fs.ModeDir != special {
			t.Errorf("%s, made in a volume of a group: %v, %v", made, st.Mode(), err)
		}
	}
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for race := filepath.Join(dir, "race"); !stop.Load(); _ = os.Remove(race) {
			_ = os.Remove(race)
			_ = os.Symlink(out, race)
		}
	}()
	for range 100 {
		_, _ = m.SubPath(p, SubPath{Volume: "disk", Container: "c", Index: 9, Path: "race"})
		_ = os.Remove(filepath.Join(dir, "race"))
	}
	stop.Store(true)
	<-ended
	untouched("sub paths")
	if err := m.Release(t.Context(), p); err != nil {
		t.Error(err)
	}
	untouched("release")
}

// TestGroupFollowsNothing: giving a volume to a group changes no file that a
// link in it names, also when the link takes a file's place meanwhile.
func TestGroupFollowsNothing(t *testing.T) {
	out, untouched := outside(t)
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(out, filepath.Join(dir, "away")), os.MkdirAll(filepath.Join(dir, "d"), 0o700),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for name := filepath.Join(dir, "d/a"); !stop.Load(); {
			_ = os.Remove(name)
			_ = os.WriteFile(name, nil, 0o600)
			_ = os.Remove(name)
			_ = os.Symlink(filepath.Join(out, "a"), name)
			_ = os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "e"))
			_ = os.Symlink(out, filepath.Join(dir, "d"))
			_ = os.Remove(filepath.Join(dir, "d"))
			_ = os.Rename(filepath.Join(dir, "e"), filepath.Join(dir, "d"))
		}
	}()
	for range 100 {
		_ = soon(t, func() error { return own(dir, 4711, corev1.FSGroupChangeAlways, nil) })
	}
	stop.Store(true)
	<-ended
	untouched("group")
	for _, path := range []string{out, filepath.Join(out, "a")} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Gid == 4711 || st.Mode&unix.S_ISGID != 0 && st.Mode&0o070 != 0 {
			t.Errorf("%s belongs to group %d now, mode %o, %v", path, st.Gid, st.Mode, err)
		}
	}
}

func TestHostPathFileWaitsForNothing(t *testing.T) {
	out, untouched := outside(t)
	dir := t.TempDir()
	if err := errors.Join(os.Symlink(filepath.Join(out, "new"), filepath.Join(dir, "link")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"link": false, "fifo": false, "file": true} {
		h := &corev1.HostPathVolumeSource{Path: filepath.Join(dir, name), Type: ptr.To(corev1.HostPathFileOrCreate)}
		if err := soon(t, func() error { return hostPath(h) }); (err == nil) != ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	untouched("hostPath")
}

func TestEnvFileFollowsNothing(t *testing.T) {
	out, _ := outside(t)
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "env"), []byte("# c\nA='x'\nB='2'\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "huge"), nil, 0o600),
		os.Truncate(filepath.Join(dir, "huge"), 1<<40), os.Symlink("env", filepath.Join(dir, "near")),
		os.Symlink(filepath.Join(out, "a"), filepath.Join(dir, "far")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"env": true, "near": true, "far": false, "fifo": false,
		"huge": false, ".": false} {
		var got string
		err := soon(t, func() (err error) { got, err = EnvFile(dir, name, "A"); return err })
		if (err == nil) != ok || ok && got != "x" || len(errText(err)) > 512 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := EnvFile(dir, "env", "C"); !errors.Is(err, ErrNoKey) {
		t.Error(err)
	}
}

func FuzzEnvFile(f *testing.F) {
	for _, seed := range []string{"A=1", "A='1\n2' # c\nB=''", "#\n\nA='", "=", "A",
		"A=1\x00\r\nB=2", strings.Repeat("x", 1<<10)} {
		f.Add([]byte(seed), "A")
	}
	f.Fuzz(func(t *testing.T, data []byte, key string) {
		value, err := envValue(string(data), key)
		if len(value) > len(data) || err != nil && len(err.Error()) > 1024 {
			t.Errorf("%d bytes give %d, %v", len(data), len(value), err)
		}
	})
}

// slow holds up one pod's tokens until its context ends; another's fail.
type slow struct{ failed, given atomic.Int32 }

func (s *slow) Token(ctx context.Context, p *corev1.Pod,
	_ *corev1.ServiceAccountTokenProjection) (string, time.Time, error) {
	switch s.given.Add(1); {
	case p.Annotations["from"] == "now" && p.Name == "stuck":
		<-ctx.Done()
		return "", time.Time{}, ctx.Err()
	case p.Annotations["from"] == "now" && p.Name == "broken":
		s.failed.Add(1)
		return "", time.Time{}, fs.ErrPermission
	}
	return "tok", time.Now().Add(24 * time.Hour), nil
}

func (s *slow) Bound(context.Context, *corev1.Pod, string, *int64) (SavedToken, error) {
	return SavedToken{}, nil
}

// TestEachPodIsRefreshedOnItsOwn: one pod that hangs and one that fails leave
// the others up to date; the failure backs off and is told once.
func TestEachPodIsRefreshedOnItsOwn(t *testing.T) {
	root := t.TempDir()
	var log strings.Builder
	objs := objects{configMaps: map[string]*corev1.ConfigMap{"cm": {Data: map[string]string{"a": "1"}}}}
	m := &Manager{RootDir: root, Objects: objs, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Facts: func(*corev1.Pod) Facts { return Facts{} }}
	tokens := &slow{}
	m.Tokens = tokens
	t.Cleanup(func() {
		if err := UnmountUnder(root); err != nil {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		pods := map[string]*corev1.Pod{}
		for _, name := range []string{"stuck", "broken", "fine"} {
			p := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name),
					Annotations: map[string]string{}}}
			p.Spec.Volumes = []corev1.Volume{
				{Name: "all",
					VolumeSource: corev1.VolumeSource{
						Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
							{ConfigMap: &corev1.ConfigMapProjection{
								LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
							{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
						}}}}}
			if err := m.Ensure(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			pods[name] = p
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		for _, p := range pods {
			p.Annotations["from"] = "now"
		}
		objs.configMaps["cm"].Data = map[string]string{"a": "2"}
		m.Changed("ns")
		time.Sleep(time.Second / 2)
		if got := read(t, root, "pods/fine/volumes/kubernetes.io~projected/all/a"); got != "2" {
			t.Errorf("a pod beside a broken one shows %q", got)
		}
		synctest.Wait()
		// Delays of 1, 2, 4 seconds and so on, 2 minutes at most.
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := tokens.failed.Load(); n < 30 || n > 40 {
			t.Errorf("tried %d times in an hour", n)
		}
		if n := strings.Count(log.String(), "not up to date"); n != 1 {
			t.Errorf("told %d times:\n%s", n, log.String())
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
