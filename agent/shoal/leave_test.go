package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// fakeNode is the API as a node sees it that leaves.
type fakeNode struct {
	mu      sync.Mutex
	pods    []*drainedPod
	budget  int // evictions that a budget refuses
	stuck   bool
	gone    bool // the Node
	delete  []int
	actions []string
}

func (f *fakeNode) pod(name, owner string, change ...func(*drainedPod)) {
	p := &drainedPod{}
	p.Metadata.Name, p.Metadata.Namespace, p.Metadata.UID = name, "ns", "uid-"+name
	if owner != "" {
		p.Metadata.OwnerReferences = append(p.Metadata.OwnerReferences, struct {
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		}{owner, true})
	}
	for _, c := range change {
		c(p)
	}
	f.pods = append(f.pods, p)
}

func (f *fakeNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	refuse := func(code int, message string) {
		w.WriteHeader(code)
		_, _ = fmt.Fprintf(w, `{"kind":"Status","message":%q}`, message)
	}
	switch {
	case r.Method == http.MethodPatch && f.gone:
		refuse(http.StatusNotFound, "no node")
	case r.Method == http.MethodPatch:
		f.actions = append(f.actions, "cordon")
		_, _ = w.Write([]byte("{}"))
	case r.Method == http.MethodGet:
		_ = json.NewEncoder(w).Encode(map[string]any{"items": f.pods})
	case r.Method == http.MethodPost:
		f.evict(w, r, refuse)
	case r.Method == http.MethodDelete && len(f.delete) > 0:
		code := f.delete[0]
		f.delete = f.delete[1:]
		refuse(code, fmt.Sprint("answer ", code))
	case r.Method == http.MethodDelete:
		f.actions = append(f.actions, "DELETE "+r.URL.Path)
		_, _ = w.Write([]byte("{}"))
	}
}

func (f *fakeNode) evict(w http.ResponseWriter, r *http.Request, refuse func(int, string)) {
	name := strings.Split(r.URL.Path, "/")[6]
	if f.budget > 0 {
		f.budget--
		refuse(http.StatusTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.")
		return
	}
	f.actions = append(f.actions, "evict "+name)
	left := f.pods[:0]
	for _, p := range f.pods {
		switch {
		case p.Metadata.Name != name:
			left = append(left, p)
		case f.stuck:
			p.Metadata.DeletionTimestamp = "now"
			left = append(left, p)
		}
	}
	f.pods = left
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write([]byte("{}"))
}

func (f *fakeNode) api(t *testing.T) *api {
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return &api{server: s.URL, http: s.Client()}
}

// TestDrain: what kubectl drain does, and what stops it.
func TestDrain(t *testing.T) {
	mirror := func(p *drainedPod) { p.Metadata.Annotations = map[string]string{"kubernetes.io/config.mirror": "x"} }
	ended := func(p *drainedPod) { p.Status.Phase = "Succeeded" }
	for name, tt := range map[string]struct {
		node    *fakeNode
		bare    bool // a pod of nobody
		force   bool
		timeout time.Duration
		want    string // the error
		actions string
		said    string
	}{
		"all go": {
			&fakeNode{}, false, false, time.Minute,
			"", "cordon, evict a, evict b", "2 pods went"},
		"a budget waits": {
			&fakeNode{budget: 1}, false, false, time.Minute,
			"", "cordon, evict b, evict a", "pod ns/a waits"},
		"nobody's pod": {
			&fakeNode{}, true, false, time.Minute,
			"nobody makes these pods anew elsewhere: ns/bare", "cordon", ""},
		"by force": {
			&fakeNode{}, true, true, time.Minute,
			"", "cordon, evict a, evict b, evict bare", "3 pods went"},
		"one stays": {
			&fakeNode{stuck: true}, false, false, 2 * drainPause,
			"did not end in time: ns/a, ns/b", "cordon, evict a, evict b", ""},
		"left before": {
			&fakeNode{gone: true}, false, false, time.Minute,
			"", "", ""},
		"a budget forbids": {
			&fakeNode{budget: 99}, false, false, 2 * drainPause,
			"did not end in time: ns/a, ns/b", "cordon", "waits"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			tt.node.pod("a", "ReplicaSet")
			tt.node.pod("b", "StatefulSet")
			tt.node.pod("of-a-daemon", "DaemonSet")
			tt.node.pod("static", "Node", mirror)
			tt.node.pod("ended", "Job", ended)
			if tt.bare {
				tt.node.pod("bare", "")
			}
			var said bytes.Buffer
			o := &leaveOptions{force: tt.force, timeout: tt.timeout}
			err := o.drain(t.Context(), tt.node.api(t), &machine{name: "n1"}, &steps{out: &said, start: time.Now()})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if got := strings.Join(tt.node.actions, ", "); got != tt.actions {
				t.Errorf("did %s, want %s", got, tt.actions)
			}
			if !strings.Contains(said.String(), tt.said) {
				t.Errorf("said %q, want %q", said.String(), tt.said)
			}
		})
	}
}

// TestForget: a Node that changes is deleted a little later; a taint is told.
func TestForget(t *testing.T) {
	busy := &fakeNode{delete: []int{http.StatusServiceUnavailable}}
	if err := (&leaveOptions{}).forget(t.Context(), busy.api(t), "n1"); err != nil ||
		strings.Join(busy.actions, ", ") != "DELETE "+joinapi.NodePath {
		t.Errorf("%v, %v", busy.actions, err)
	}
	admin := &fakeNode{}
	if err := (&leaveOptions{kubeconfig: "x"}).forget(t.Context(), admin.api(t), "n1"); err != nil ||
		strings.Join(admin.actions, ", ") != "DELETE /api/v1/nodes/n1" {
		t.Errorf("%v, %v", admin.actions, err)
	}
	gone := &fakeNode{delete: []int{http.StatusNotFound}}
	if err := (&leaveOptions{kubeconfig: "x"}).forget(t.Context(), gone.api(t), "n1"); err != nil {
		t.Error(err)
	}
	tainted := &fakeNode{delete: []int{http.StatusConflict}}
	if err := (&leaveOptions{}).forget(t.Context(), tainted.api(t), "n1"); err == nil || err.Error() != "answer 409" {
		t.Error(err)
	}
}

// TestNewest: the node asks by the certificate that came last, and joins again when
// that has ended.
func TestNewest(t *testing.T) {
	f := newFakeCluster(t, nil)
	dir, err := enter(t, f, f.token())
	if err != nil {
		t.Fatal(err)
	}
	_, m := machineIn(t, dir, "")
	issue := func(lifetime time.Duration, at time.Time) []byte {
		certPEM, keyPEM, err := f.ca.Issue(pki.Spec{User: "system:node:n1", Groups: []string{"system:nodes"},
			Lifetime: lifetime}, at)
		if err != nil {
			t.Fatal(err)
		}
		return append(certPEM, keyPEM...)
	}
	serial := func() string {
		c, err := m.client()
		if err != nil {
			t.Fatal(err)
		}
		pair := c.http.Transport.(*http.Transport).TLSClientConfig.Certificates[0]
		leaf, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber.String()
	}
	first := serial()
	write := func(pair []byte) string {
		if err := os.WriteFile(filepath.Join(dir, rotatedFile), pair, 0o600); err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(pair)
		leaf, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber.String()
	}
	write(issue(time.Hour, time.Now().Add(-time.Hour)))
	if got := serial(); got != first {
		t.Error("a certificate of before the kubeconfig's is used")
	}
	next := write(issue(time.Hour, time.Now().Add(time.Minute)))
	if got := serial(); got != next {
		t.Error("the certificate that came after the kubeconfig's is not used")
	}
	if joined, err := m.joined(f.token()); !joined || err != nil {
		t.Errorf("joined %t, %v", joined, err)
	}
	// The cluster's CA was changed since: the agent has learned of the new one.
	rotated := newFakeCluster(t, nil)
	k, err := os.ReadFile(m.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parseKubeconfig(k, m.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	id, err := parsed.identity(m.kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	learned := append(fmt.Appendf(nil, "# learned with %x\n", sha256.Sum256(id.ca)), rotated.ca.PEM...)
	if err := os.WriteFile(m.cfg.ClusterCAs(), learned, 0o600); err != nil {
		t.Fatal(err)
	}
	if joined, err := m.joined(rotated.token()); !joined || err != nil {
		t.Errorf("with a token of the new CA: joined %t, %v", joined, err)
	}
	if err := os.Remove(m.cfg.ClusterCAs()); err != nil {
		t.Fatal(err)
	}
	write(issue(-time.Minute, time.Now().Add(time.Minute)))
	time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second))) // certificates end on a second
	if joined, err := m.joined(f.token()); joined || err != nil {
		t.Errorf("with a certificate that has ended: joined %t, %v", joined, err)
	}
}

// FuzzCA: what an unverified server says of its CA is certificates, or nothing.
func FuzzCA(f *testing.F) {
	dir := pki.Dir(f.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		f.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ca.PEM)
	f.Add(append(ca.PEM[:100:100], ca.PEM...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, c := range certificates(data) {
			if len(c.Raw) > len(data) {
				t.Errorf("a certificate of %d bytes was in %d", len(c.Raw), len(data))
			}
		}
		_ = newStatusError("x", 500, data).Error()
	})
}
