package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/tests/transcript"
)

// TestScenarios plays the files of testdata: what callers of the kubelet's API are
// answered by a node with the pods of newNode. The commands:
//
//	> USER METHOD PATH [BODY]   a request, of somebody whose token is known; the status and the body follow
//	> nobody METHOD PATH        one without a token
//	> may USER VERB SUBRESOURCE a right of a user's from now on; "may not" takes it back
//	> api goes|comes            whether the API server answers
//	> questions asked           how many questions it was asked since the last of these
//	> wait TIME
//	> stats fail, node sick     the next answers say so
//
// After a wanted change: go test ./agent/server -update, and read the diff.
func TestScenarios(t *testing.T) {
	transcript.Files(t, "testdata/*.txt", func(t *testing.T, text string) (got string) {
		dir := logsOf(t)
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, dir)
			got = transcript.Play(text, func(command string) string { return n.do(strings.Fields(command)) })
		})
		return got
	})
}

// logsOf makes the logs of newNode's pods.
func logsOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string]string{
		"ns_web_u/c/0.log": "2026-01-01T00:00:00Z stdout F before\n",
		"ns_web_u/c/1.log": "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stderr F two\n" +
			"2026-01-01T00:00:03Z stdout P thr\n2026-01-01T00:00:03Z stdout F ee\n",
	} {
		path = filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// node is a node's API with all around it.
type node struct {
	t       *testing.T
	cluster *cluster
	server  *Server
	handler http.Handler
	away    bool  // the API server
	sick    error // what the node, or its measuring, says of itself
	broken  error
}

func newNode(t *testing.T, logs string) *node {
	n := &node{t: t, cluster: newCluster()}
	n.cluster.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return n.away, nil, errors.New("connection refused")
	})
	n.server = newServer(n.cluster)
	n.server.Pods, n.server.Sessions, n.server.Stats = pods(logs), Sessions{URLs: &shell{}}, n
	n.server.LogsDir, n.server.Config = logs, map[string]string{"nodeName": "n1"}
	n.server.Healthy = func() error { return n.sick }
	n.server.Checkpoint = func(_ context.Context, pod *corev1.Pod, c *record.Observation, timeout int64) (string, error) {
		return fmt.Sprintf("/checkpoints/%s-%s-%d.tar", pod.Name, c.ID, timeout), n.broken
	}
	n.handler = n.server.handler()
	return n
}

// somePods are a node's pods: "web", whose container "c" runs for the second time,
// "d" waits for its image and "e" has ended, and "new", which has nothing yet. "frozen" has
// containers of all kinds.
type somePods map[string]Pod

func pods(logs string) somePods {
	container := func(id, name string, attempt uint32, state record.State) record.Observation {
		return record.Observation{ID: id, Name: name, Attempt: attempt, State: state, ImageRef: "sha256:i",
			LogPath: filepath.Join(logs, "ns_web_u", name, fmt.Sprintf("%d.log", attempt))}
	}
	web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}}
	waits := func(name, why string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why}}}
	}
	web.Status.ContainerStatuses = []corev1.ContainerStatus{
		waits("d", "ImagePullBackOff"),
		waits("f", "PodInitializing"),
	}
	return somePods{
		"ns/web": {web, &record.Observed{
			Sandboxes: []record.Sandbox{{ID: "s1", Ready: true}},
			Containers: []record.Observation{
				container("c1", "c", 1, record.Running),
				container("e0", "e", 0, record.Exited),
				container("c0", "c", 0, record.Exited),
			},
		}},
		"ns/frozen": {
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "frozen", UID: "f"}, Spec: corev1.PodSpec{
				Containers:     []corev1.Container{{Name: "a"}, {Name: "waits"}},
				InitContainers: []corev1.Container{{Name: "b"}},
				EphemeralContainers: []corev1.EphemeralContainer{
					{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}},
			}},
			&record.Observed{Containers: []record.Observation{
				container("a2", "a", 2, record.Running), container("b1", "b", 1, record.Exited),
				container("e1", "e", 1, record.Running), container("stray1", "stray", 1, record.Running),
			}},
		},
		"ns/new": {
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "new", UID: "v"}},
			&record.Observed{},
		},
	}
}

func (p somePods) List() []*corev1.Pod { return []*corev1.Pod{p["ns/new"].Pod, p["ns/web"].Pod} }

func (p somePods) Find(namespace, name string) (Pod, bool) {
	found, ok := p[namespace+"/"+name]
	return found, ok
}

// shell is a runtime elsewhere: it says commands again, and gives no sessions.
type shell struct{ elsewhere }

func (s *shell) ExecSync(
	_ context.Context, id string, cmd []string, _ time.Duration,
) (stdout, stderr []byte, err error) {
	if len(cmd) > 0 && cmd[0] == "false" {
		return nil, []byte("no"), errors.New("exit status 1")
	}
	return fmt.Appendf(nil, "%s: %s\n", id, strings.Join(cmd, " ")), nil, nil
}

func (s *shell) Exec(_ context.Context, r *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	return nil, fmt.Errorf("no session of %s: %s, stdin %t, stdout %t, stderr %t, tty %t",
		r.ContainerId, strings.Join(r.Cmd, " "), r.Stdin, r.Stdout, r.Stderr, r.Tty)
}

func (s *shell) PortForward(_ context.Context, r *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error) {
	return nil, fmt.Errorf("no way to %s, ports %d", r.PodSandboxId, r.Port)
}

// Summary and the others implement Stats.
func (n *node) Summary(_ context.Context, brief bool) (*statsapi.Summary, error) {
	used := uint64(7)
	pod := statsapi.PodStats{PodRef: statsapi.PodReference{Name: "web", Namespace: "ns", UID: "u"}}
	if !brief {
		pod.EphemeralStorage = &statsapi.FsStats{UsedBytes: &used}
	}
	return &statsapi.Summary{Node: statsapi.NodeStats{NodeName: "n1"}, Pods: []statsapi.PodStats{pod}}, n.broken
}

func (n *node) write(w io.Writer, what string) error {
	_, err := fmt.Fprintln(w, what)
	return errors.Join(err, n.broken)
}

func (n *node) Metrics(_ context.Context, w io.Writer) error    { return n.write(w, "of the agent") }
func (n *node) Resource(_ context.Context, w io.Writer) error   { return n.write(w, "of resources") }
func (n *node) Containers(_ context.Context, w io.Writer) error { return n.write(w, "of containers") }
func (n *node) ProbeResults(_ context.Context, w io.Writer) error {
	return n.write(w, "of probes")
}

func (n *node) do(words []string) string {
	n.t.Helper()
	switch what := strings.Join(words[:2], " "); {
	case words[0] == "may" && words[1] == "not":
		delete(n.cluster.rights, strings.Join(words[2:], " "))
	case words[0] == "may":
		n.cluster.rights[strings.Join(words[1:], " ")] = true
	case what == "api goes", what == "api comes":
		n.away = words[1] == "goes"
	case what == "questions asked":
		asked := len(n.cluster.Actions())
		n.cluster.ClearActions()
		return fmt.Sprintln(asked)
	case words[0] == "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			n.t.Fatal(err)
		}
		time.Sleep(d)
	case what == "stats fail":
		n.broken = errors.New("the runtime is away")
	case what == "node sick":
		n.sick = errors.New("no disk")
	default:
		return n.ask(words)
	}
	return ""
}

func (n *node) ask(words []string) string {
	body := strings.Join(words[3:], " ")
	r := httptest.NewRequestWithContext(n.t.Context(), words[1], words[2], strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if words[0] != "nobody" {
		r.Header.Set("Authorization", "Bearer token-of-"+words[0])
	}
	w := httptest.NewRecorder()
	n.handler.ServeHTTP(w, r)
	answer := strings.TrimSpace(strings.ReplaceAll(w.Body.String(), n.server.LogsDir, "LOGS"))
	if answer != "" {
		answer = "  " + strings.ReplaceAll(answer, "\n", "\n  ") + "\n"
	}
	kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";")
	return strings.TrimSpace(fmt.Sprint(w.Code, " ", kind)) + "\n" + answer
}
