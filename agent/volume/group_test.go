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
	"k8s.io/apimachinery/pkg/types"
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

// TestGroupIsGivenOnce: a volume is given to the group of the first pod that has it on the
// node. What containers made of its files' rights since then stays, also when another agent
// takes over and when another pod comes, which is told if its group is another.
func TestGroupIsGivenOnce(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	pv := &corev1.PersistentVolume{}
	pv.Name, pv.Spec.Local = "pv", &corev1.LocalVolumeSource{Path: dir}
	w.claims["c"] = pv
	pod := func(uid types.UID, group int64) *corev1.Pod {
		p := &corev1.Pod{}
		p.UID, p.Name, p.Namespace = uid, string(uid), "ns"
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
		return p
	}
	a, b := pod("a", 4711), pod("b", 4712)
	var told []string
	begin := func() *Manager {
		m := w.manager()
		m.Event = func(p *corev1.Pod, _, _, reason, message string) {
			told = append(told, p.Name+" "+reason+": "+message)
		}
		return m
	}
	m := begin()
	ensure := func(p *corev1.Pod) {
		t.Helper()
		if err := m.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	is := func(group, mode uint32) {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || st.Gid != group || st.Mode&0o777 != mode {
			t.Errorf("group %d, mode %o, %v; want %d, %o", st.Gid, st.Mode&0o777, err, group, mode)
		}
	}
	ensure(a)
	is(4711, 0o660)
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	ensure(a)
	ensure(b)
	is(4711, 0o600)
	const want = "b AlreadyMountedVolume: The requested fsGroup is 4712, but the volume pv has GID 4711. " +
		"The volume may not be shareable."
	if len(told) != 1 || told[0] != want {
		t.Errorf("told %q", told)
	}
	m = begin()
	if err := m.Restore([]*corev1.Pod{a, b}); err != nil {
		t.Fatal(err)
	}
	m.resume(t.Context(), a)
	m.resume(t.Context(), b)
	is(4711, 0o600)
	for _, p := range []*corev1.Pod{a, b} {
		if err := m.Release(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	ensure(b)
	is(4712, 0o660)
}
