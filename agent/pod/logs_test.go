package pod

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// TestLogDirectoryFollowsNothing: what a pod with the directory of logs in a
// volume puts there leads to no directory made, file removed or text shown
// elsewhere; a missing directory of logs is made again.
func TestLogDirectoryFollowsNothing(t *testing.T) {
	out := t.TempDir()
	if err := os.WriteFile(filepath.Join(out, "0.log"),
		[]byte("2026-01-01T00:00:00Z stderr F secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "logs")
	h := &launch.Host{RootDir: t.TempDir(), PodLogsDir: dir}
	m := &Manager{Host: h}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	if err := m.makeLogDir(p, "c"); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(h.LogDir(p), "c")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("log directory: %v, %v", st, err)
	}
	if err := errors.Join(os.RemoveAll(h.LogDir(p)), os.Symlink(out, h.LogDir(p))); err != nil {
		t.Fatal(err)
	}
	if err := m.makeLogDir(p, "c"); err == nil {
		t.Error("a link leads the log directory elsewhere")
	}
	if err := errors.Join(os.Remove(h.LogDir(p)), os.Mkdir(h.LogDir(p), 0o755),
		os.Symlink(out, filepath.Join(h.LogDir(p), "c"))); err != nil {
		t.Fatal(err)
	}
	m.removeLog(p, Action{Name: "c"})
	if text := logs.Tail(logs.File{Dir: dir, Path: filepath.Join(h.LogDir(p), "c/0.log")}, maxMessageLines,
		maxMessageLog); text != "" {
		t.Errorf("a link shows %q as last words", text)
	}
	if err := m.purge(t.Context(), p, &record.Observed{}); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 1 {
		t.Errorf("files elsewhere were changed: %v, %v", entries, err)
	}
	if _, err := os.Lstat(h.LogDir(p)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pod's logs are left: %v", err)
	}
}

// TestLogsOfPodAndItsSuccessor: a pod that ends while one of its name runs already still
// writes its log, which is kept small.
func TestLogsOfPodAndItsSuccessor(t *testing.T) {
	m := &Manager{workers: map[types.UID]*worker{}}
	begun := metav1.Now()
	for _, id := range []string{"before", "after"} {
		uid := types.UID(id)
		w := &worker{m: m, uid: uid, pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: "db-0", Namespace: "ns", UID: uid, CreationTimestamp: begun}}}
		begun = metav1.NewTime(begun.Add(time.Minute))
		w.shown.observed = &record.Observed{Containers: []record.Observation{
			{ID: id, State: record.Running, LogPath: "/logs/" + id}}}
		m.workers[uid] = w
	}
	written := m.WrittenLogs()
	slices.SortFunc(written, func(a, b logs.Written) int { return strings.Compare(a.ID, b.ID) })
	want := []logs.Written{{ID: "after", Path: "/logs/after"}, {ID: "before", Path: "/logs/before"}}
	if !slices.Equal(written, want) {
		t.Errorf("logs that are written: %v, want %v", written, want)
	}
}
