package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/logs"
	"github.com/shoal-project/shoal/agent/record"
)

// TestPastLogs: the log of a pod that is gone is shown as long as it is kept, to who names
// its UID.
func TestPastLogs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "0.log")
	text := "2026-01-01T00:00:00Z stdout F one\n2026-01-01T00:00:01Z stdout F two\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(newCluster("reader get proxy"))
	s.PastLogs = func(p Past) (logs.File, bool) {
		return logs.File{Dir: dir, Path: file}, p == Past{Namespace: "ns", Pod: "p", UID: "1", Container: "c"}
	}
	for query, want := range map[string]string{
		"?uid=1": "one\ntwo\n", "?uid=1&tailLines=1&follow=true": "two\n",
		"?uid=1&previous=true": "not kept, or no longer", "?uid=2": "not kept, or no longer", "": "does not exist",
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/containerLogs/ns/p/c"+query, nil)
		r.Header.Set("Authorization", "Bearer token-of-reader")
		s.handler().ServeHTTP(w, r)
		if ok := w.Code == http.StatusOK; !strings.Contains(w.Body.String(), want) || ok != strings.HasSuffix(want, "\n") {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}

// onePod is a node with one pod.
type onePod struct {
	noPods
	pod Pod
}

func (o onePod) Find(string, string) (Pod, bool) { return o.pod, true }

// TestLogsOfPodBeingRemoved: the log of a pod that the API has no more is shown while the
// node is about to forget it, when its containers are gone already.
func TestLogsOfPodBeingRemoved(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "0.log")
	if err := os.WriteFile(file, []byte("2026-01-01T00:00:00Z stdout F one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newServer(newCluster("reader get proxy"))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
	s.Pods = onePod{pod: Pod{Pod: pod, Observed: &record.Observed{}}}
	s.PastLogs = func(p Past) (logs.File, bool) {
		return logs.File{Dir: dir, Path: file}, p == Past{Namespace: "ns", Pod: "p", UID: "1", Container: "c"}
	}
	for query, want := range map[string]string{"?uid=1": "one\n", "": "is not available"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/containerLogs/ns/p/c"+query, nil)
		r.Header.Set("Authorization", "Bearer token-of-reader")
		s.handler().ServeHTTP(w, r)
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q: %d %s, want %s", query, w.Code, w.Body, want)
		}
	}
}

// TestLogsOfWhatWaits: who asks for the log of a container that has not begun is told why, of init
// and ephemeral containers too.
func TestLogsOfWhatWaits(t *testing.T) {
	waits := func(name, reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{Name: name,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	p := &Pod{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, Observed: &record.Observed{}}
	p.Pod.Status = corev1.PodStatus{InitContainerStatuses: waits("i", "ImagePullBackOff"),
		ContainerStatuses: waits("c", "PodInitializing"), EphemeralContainerStatuses: waits("e", "ErrImagePull")}
	for name, want := range map[string]string{
		"i": `container "i" in pod "p" is waiting to start: trying and failing to pull image`,
		"c": `container "c" in pod "p" is waiting to start: PodInitializing`,
		"e": `container "e" in pod "p" is waiting to start: image can't be pulled`,
		"x": `container "x" in pod "p" is not available`,
	} {
		if _, why := chosen(p, name, false); why != want {
			t.Errorf("%q, want %q", why, want)
		}
	}
}

// TestPreviousRun: of a container that waits for its next run, the previous one is that
// which ended last, as its status says.
func TestPreviousRun(t *testing.T) {
	waiting := corev1.ContainerStatus{Name: "c",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ContainerID: "shoal://2"}}}
	running := corev1.ContainerStatus{Name: "c",
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	ended := corev1.ContainerStatus{Name: "c",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "shoal://2"}}}
	run := func(id string, attempt uint32, state record.State) record.Observation {
		return record.Observation{ID: id, Name: "c", Attempt: attempt, State: state}
	}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		runs   []record.Observation
		want   string
	}{
		"runs":            {running, []record.Observation{run("2", 1, record.Running), run("1", 0, record.Exited)}, "1"},
		"runs_first_time": {running, []record.Observation{run("1", 0, record.Running)}, ""},
		"waits":           {waiting, []record.Observation{run("2", 1, record.Exited), run("1", 0, record.Exited)}, "2"},
		"waits_with_one":  {waiting, []record.Observation{run("2", 1, record.Exited)}, "2"},
		"status_is_late":  {running, []record.Observation{run("2", 1, record.Exited)}, "2"},
		"status_is_late_with_two": {running,
			[]record.Observation{run("2", 1, record.Exited), run("1", 0, record.Exited)}, "1"},
		"is_over":       {ended, []record.Observation{run("2", 1, record.Exited)}, ""},
		"was_removed":   {ended, nil, ""},
		"over_with_two": {ended, []record.Observation{run("2", 1, record.Exited), run("1", 0, record.Exited)}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &Pod{Pod: &corev1.Pod{}, Observed: &record.Observed{Containers: c.runs}}
			p.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.status}
			o, problem := chosen(p, "c", true)
			switch {
			case o == nil && (c.want != "" || problem == ""), o != nil && o.ID != c.want:
				t.Errorf("%+v, %q, want %q", o, problem, c.want)
			}
		})
	}
}
