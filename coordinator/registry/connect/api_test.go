package connect_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/registry"
	"github.com/shoal-project/shoal/coordinator/registry/connect"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.CheckOurs(m) }

var (
	ctx    = context.Background()
	create = metav1.CreateOptions{}
)

// TestAPI runs a server once, and an agent's stand-in that it connects to.
func TestAPI(t *testing.T) {
	agent, past := newAgent(t), connect.NewPast()
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds(), Env: func(e *kind.Env) {
		unverified := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		e.KubeletTransport = func(string) http.RoundTripper { return unverified }
		e.PastPod = past.Pod
	}})
	c := s.Kubernetes(t)
	must[*corev1.Namespace](t)(c.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, create))
	t.Run("Log", func(t *testing.T) { logs(t, c, agent) })
	t.Run("PastLog", func(t *testing.T) { pastLogs(t, c, agent, past.Handler()) })
	t.Run("Exec", func(t *testing.T) { execStreams(t, c, s.Config) })
	t.Run("ExecLost", func(t *testing.T) { execLost(t, c, s.Config) })
	t.Run("PortForward", func(t *testing.T) { forwardPorts(t, c, s.Config) })
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantError(t *testing.T, err error, part string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v lacks %q", err, part)
	}
}

// agent is what the API server meets on port 10250.
type agent struct {
	host string
	port int32
	mu   sync.Mutex
	seen []string
}

func newAgent(t *testing.T) *agent {
	a := &agent{}
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.seen = append(a.seen, r.URL.String())
		a.mu.Unlock()
		if serveStreams(w, r) {
			return
		}
		_, _ = io.WriteString(w, "hello from "+r.URL.Path)
	}))
	t.Cleanup(s.Close)
	host, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(port)
	a.host, a.port = host, int32(n)
	return a
}

func logs(t *testing.T, c kubernetes.Interface, a *agent) {
	must[*corev1.Node](t)(c.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "logging"},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "nowhere.invalid"},
				{Type: corev1.NodeInternalIP, Address: a.host}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: a.port}},
		},
	}, create))
	pods := c.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "logged"},
		Spec: corev1.PodSpec{
			NodeName:   "logging",
			Containers: []corev1.Container{{Name: "c", Image: "busybox"}, {Name: "d", Image: "busybox"}},
		},
	}, create))
	_, err := pods.GetLogs("logged", &corev1.PodLogOptions{}).Stream(ctx)
	wantError(t, err, "a container name must be specified for pod logged, choose one of: [c d]")
	_, err = pods.GetLogs("logged", &corev1.PodLogOptions{Container: "x"}).Stream(ctx)
	wantError(t, err, "container x is not valid for pod logged")
	stdout := corev1.LogStreamStdout
	_, err = pods.GetLogs("logged", &corev1.PodLogOptions{Container: "d", Stream: &stdout}).Stream(ctx)
	wantError(t, err, "stream: Forbidden: may not be specified")
	tail := int64(5)
	out := must[[]byte](t)(pods.GetLogs("logged",
		&corev1.PodLogOptions{Container: "d", TailLines: &tail, Timestamps: true}).DoRaw(ctx))
	if string(out) != "hello from /containerLogs/default/logged/d" {
		t.Errorf("log: %s", out)
	}
	if last := a.seen[len(a.seen)-1]; !strings.HasSuffix(last, "?tailLines=5&timestamps=true") {
		t.Errorf("agent was asked %s", last)
	}
}

// pastLogs: logs of pods that are gone are asked of their nodes, by name and UID; kubectl logs
// reads such pods, others do not.
func pastLogs(t *testing.T, c kubernetes.Interface, a *agent, deletes cache.ResourceEventHandler) {
	namespace := must[*corev1.Namespace](t)(c.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}))
	gone := func(name, uid string, born metav1.Time) {
		deletes.OnDelete(cache.DeletedFinalStateUnknown{Obj: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid), CreationTimestamp: born},
			Spec: corev1.PodSpec{NodeName: "logging", InitContainers: []corev1.Container{{Name: "i"}},
				Containers: []corev1.Container{{Name: "c"}}},
		}})
	}
	gone("gone", "1", namespace.CreationTimestamp)
	gone("gone", "2", namespace.CreationTimestamp)
	gone("logged", "3", namespace.CreationTimestamp)
	gone("before", "4", metav1.NewTime(namespace.CreationTimestamp.Add(-time.Second)))
	get := func(path, command string) (string, error) {
		answer := c.CoreV1().RESTClient().Get().RequestURI("/api/v1/namespaces/default/pods/"+path).
			SetHeader("Kubectl-Command", command).Do(ctx)
		out, _ := answer.Raw()
		return string(out), answer.Error()
	}
	for _, tt := range []struct{ path, command, want, err string }{
		{"gone/log", "", "?uid=2", ""},
		{"gone.1/log", "", "?uid=1", ""},
		{"gone.2/log?container=i&previous=true", "", "/gone/i?previous=true&uid=2", ""},
		{"gone.3/log", "", "", `pods "gone.3" not found`},
		{"logged/log?container=c", "", "/logged/c", ""},
		{"logged.3/log", "", "/logged/c?uid=3", ""},
		{"before/log", "", "", `pods "before" not found`},
		{"never/log", "", "", `pods "never" not found`},
		{"gone/log?container=x", "", "", "container x is not valid for pod gone"},
		{"gone", "kubectl logs", `"name":"gone","namespace":"default","uid":"2"`, ""},
		{"gone.1", "kubectl logs", `"name":"gone.1","namespace":"default","uid":"1"`, ""},
		{"before", "kubectl logs", "", `pods "before" not found`},
		{"gone", "kubectl get", "", `pods "gone" not found`},
		{"gone/exec?command=x", "kubectl logs", "", `pods "gone" not found`},
	} {
		a.mu.Lock()
		a.seen = nil
		a.mu.Unlock()
		out, err := get(tt.path, tt.command)
		if tt.err != "" {
			wantError(t, err, tt.err)
			continue
		}
		a.mu.Lock()
		out += strings.Join(a.seen, " ")
		a.mu.Unlock()
		if err != nil || !strings.Contains(out, tt.want) || !strings.Contains(tt.want, "uid") && strings.Contains(out, "uid=") {
			t.Errorf("%s of %q: %s, %v, want %q", tt.path, tt.command, out, err, tt.want)
		}
	}
}
