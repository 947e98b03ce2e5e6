package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/record"
)

// noPods is a node without pods.
type noPods struct{}

func (noPods) List() []*corev1.Pod             { return nil }
func (noPods) Find(string, string) (Pod, bool) { return Pod{}, false }

// cluster answers reviews: the token says who its bearer is, rights what they may.
type cluster struct {
	*fake.Clientset
	rights map[string]bool // "user verb subresource"
}

func newCluster(rights ...string) *cluster {
	c := &cluster{Clientset: fake.NewClientset(), rights: map[string]bool{}}
	for _, r := range rights {
		c.rights[r] = true
	}
	c.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		name, ok := strings.CutPrefix(review.Spec.Token, "token-of-")
		review.Status.Authenticated, review.Status.User.Username = ok, name
		return true, review, nil
	})
	c.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		r := review.Spec.ResourceAttributes
		review.Status.Allowed = r.Resource == "nodes" && r.Name == "n1" &&
			c.rights[review.Spec.User+" "+r.Verb+" "+r.Subresource]
		return true, review, nil
	})
	return c
}

func newServer(c *cluster) *Server {
	return &Server{Auth: &Auth{Client: c, NodeName: "n1"}, Pods: noPods{}, Log: slog.New(slog.DiscardHandler)}
}

func ask(h http.Handler, method, path, token string) int {
	r := httptest.NewRequest(method, path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// Whoever is not known makes no spans: who calls decides what is sampled.
func TestKnownCallersAreTraced(t *testing.T) {
	s := newServer(newCluster("anna get healthz"))
	traced := 0
	s.Traced = func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			traced++
			next.ServeHTTP(w, r)
		})
	}
	h := s.handler()
	for _, tc := range []struct {
		path, token string
		code, sum   int
	}{
		{"/healthz", "", http.StatusUnauthorized, 0},
		{"/healthz", "bad", http.StatusUnauthorized, 0},
		{"/healthz", "token-of-anna", http.StatusOK, 1},
		{"/pods", "token-of-anna", http.StatusForbidden, 2},
	} {
		if code := ask(h, "GET", tc.path, tc.token); code != tc.code || traced != tc.sum {
			t.Errorf("%s with %q: %d, %d requests are traced; want %d and %d", tc.path, tc.token, code, traced, tc.code,
				tc.sum)
		}
	}
}

// Keys of the gossip are shown by their prints, to who may read through the node,
// and replaced by who may write through it.
func TestGossipKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gossip.key")
	first := []byte(base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)) + "\n")
	second := append(bytes.Clone(first), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{2}, 32))...)
	if err := os.WriteFile(file, first, 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := gossip.LoadKeyring(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(newCluster("anna get proxy", "root get proxy", "root update proxy"))
	s.GossipKeys = keys
	h := s.handler()
	send := func(method, token string, body []byte) (int, string) {
		r := httptest.NewRequest(method, gossip.KeysPath, bytes.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for _, tc := range []struct {
		method, token string
		body          []byte
		code, keys    int
	}{
		{"GET", "bad", nil, http.StatusUnauthorized, 1},
		{"GET", "token-of-anna", nil, http.StatusOK, 1},
		{"PUT", "token-of-anna", second, http.StatusForbidden, 1},
		{"PUT", "token-of-root", []byte("no key"), http.StatusUnprocessableEntity, 1},
		{"PUT", "token-of-root", nil, http.StatusUnprocessableEntity, 1},
		{"PUT", "token-of-root", second, http.StatusOK, 2},
		{"PUT", "token-of-root", second, http.StatusOK, 2},
		{"POST", "token-of-root", second, http.StatusForbidden, 2},
	} {
		code, body := send(tc.method, tc.token, tc.body)
		if code != tc.code || len(keys.Prints()) != tc.keys {
			t.Errorf("%s as %s: %d, %d keys; want %d, %d", tc.method, tc.token, code, len(keys.Prints()), tc.code,
				tc.keys)
		}
		if code == http.StatusOK && strings.Count(body, `"`) != 2*tc.keys || strings.Contains(body, "AQEBAQEB") {
			t.Errorf("%s as %s: %s", tc.method, tc.token, body)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, second) {
		t.Errorf("%s %v", got, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	s.GossipKeys = nil
	if code, body := send("PUT", "token-of-root", second); code != http.StatusOK || strings.TrimSpace(body) != "[]" {
		t.Errorf("without keys: %d %s", code, body)
	}
}

// TestTokens: bad tokens and long ones leave nothing behind, and good ones no
// more than their hash.
func TestTokens(t *testing.T) {
	c := newCluster("anna get healthz")
	s := newServer(c)
	h := s.handler()
	for i := range 50 {
		if code := ask(h, "GET", "/healthz", fmt.Sprint("bad-", i)); code != http.StatusUnauthorized {
			t.Errorf("a bad token: %d", code)
		}
	}
	if n := len(s.Auth.tokens.known); n > 0 {
		t.Errorf("%d bad tokens are kept", n)
	}
	c.ClearActions()
	if code := ask(h, "GET", "/healthz", "token-of-"+strings.Repeat("a", maxToken)); code != http.StatusUnauthorized {
		t.Errorf("a long token: %d", code)
	}
	if n := len(c.Actions()); n > 0 {
		t.Errorf("the API server was asked about a long token: %v", c.Actions())
	}
	for range 3 {
		if code := ask(h, "GET", "/healthz", "token-of-anna"); code != http.StatusOK {
			t.Errorf("a good token: %d", code)
		}
	}
	if n := len(c.Actions()); n != 2 {
		t.Errorf("%d questions, want a TokenReview and a SubjectAccessReview: %v", n, c.Actions())
	}
	if code := ask(h, "GET", "/healthz", ""); code != http.StatusUnauthorized {
		t.Errorf("no token: %d", code)
	}
}

// TestChains: a certificate says who its holder is, unless it names nobody or
// comes with more than a way to a CA takes.
func TestChains(t *testing.T) {
	for name, want := range map[string]map[int]bool{"anna": {1: true, maxChain: true, maxChain + 1: false},
		"": {1: false}} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
			NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		var a Auth
		pool := x509.NewCertPool()
		pool.AddCert(cert)
		a.SetClientCAs(pool)
		for n, ok := range want {
			r := &http.Request{TLS: &tls.ConnectionState{PeerCertificates: slices.Repeat([]*x509.Certificate{cert}, n)}}
			if u := a.certified(r); (u != nil) != ok || ok && u.name != name {
				t.Errorf("%q, %d certificates: %+v", name, n, u)
			}
		}
	}
}

func TestAnswersAreFew(t *testing.T) {
	var a answers[int]
	for i := range 3 * maxAnswers {
		a.put([]byte(fmt.Sprint(i)), i, time.Hour)
	}
	if n := len(a.known); n > maxAnswers {
		t.Errorf("%d answers are kept", n)
	}
	if v, ok := a.get([]byte(fmt.Sprint(3*maxAnswers - 1))); !ok || v != 3*maxAnswers-1 {
		t.Errorf("the last answer: %d %v", v, ok)
	}
	a.put([]byte("old"), 1, -time.Second)
	if _, ok := a.get([]byte("old")); ok {
		t.Error("an answer outlives its time")
	}
	a.sweep(time.Now().Add(2 * time.Minute))
	if _, ok := a.known[a.hash([]byte("old"))]; ok {
		t.Error("an old answer is kept")
	}
}

// TestQuestionsAtOnce: a flood of unknown tokens does not become one of reviews.
func TestQuestionsAtOnce(t *testing.T) {
	var a Auth
	for range maxQuestions {
		if _, err := a.ask(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := a.ask(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one too many: %v", err)
	}
}

// TestEntry: to enter a container takes "create", whatever the method, and however
// the path is written.
func TestEntry(t *testing.T) {
	h := newServer(newCluster("reader get proxy", "reader get stats", "writer create proxy", "prometheus get metrics")).
		handler()
	for _, c := range []struct {
		method, path, user string
		want               int
	}{
		{"GET", "/exec/ns/p/c?command=id", "reader", http.StatusForbidden},
		{"GET", "/exec/ns/p/uid/c?command=id", "reader", http.StatusForbidden},
		{"GET", "/%65xec/ns/p/c?command=id", "reader", http.StatusForbidden},
		{"GET", "/attach/ns/p/c", "reader", http.StatusForbidden},
		{"GET", "/portForward/ns/p?port=1", "reader", http.StatusForbidden},
		{"POST", "/run/ns/p/c?cmd=id", "reader", http.StatusForbidden},
		{"HEAD", "/exec/ns/p/c?command=id", "reader", http.StatusForbidden},
		{"CONNECT", "/stats/../exec/ns/p/c", "reader", http.StatusNotFound},
		{"GET", "/exec/ns/p/c?command=id", "writer", http.StatusNotFound}, // there is no pod
		{"POST", "/run/ns/p/c?cmd=id", "writer", http.StatusNotFound},
		{"GET", "/containerLogs/ns/p/c", "reader", http.StatusNotFound},
		{"GET", "/containerLogs/ns/p/c", "prometheus", http.StatusForbidden},
		{"GET", "/pods", "prometheus", http.StatusForbidden},
		{"GET", "/pods", "reader", http.StatusOK},
		{"GET", "/nothing", "prometheus", http.StatusForbidden},
		{"GET", "/nothing", "reader", http.StatusNotFound},
		{"GET", "/" + strings.Repeat("a", maxPath), "reader", http.StatusRequestURITooLong},
	} {
		if got := ask(h, c.method, c.path, "token-of-"+c.user); got != c.want {
			t.Errorf("%s %.60s as %s: %d, want %d", c.method, c.path, c.user, got, c.want)
		}
	}
}

// serveTLS serves as the agent does, and returns where.
func serveTLS(t *testing.T, s *Server) string {
	t.Helper()
	test := httptest.NewTLSServer(nil)
	cert := test.TLS.Certificates[0]
	test.Close()
	s.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := s.http(t.Context())
	t.Cleanup(func() { srv.Close() })
	go func() { _ = srv.ServeTLS(l, "", "") }()
	return l.Addr().String()
}

// TestSlowBody: who is refused gets the answer at once, and no time to send the
// body that was promised.
func TestSlowBody(t *testing.T) {
	c, err := tls.Dial("tcp", serveTLS(t, newServer(newCluster())), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c,
		"POST /healthz HTTP/1.1\r\nHost: n1\r\nContent-Length: 10000\r\n\r\nbegin"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401 ") {
		t.Errorf("%v, %q", err, answer)
	}
}

// runningPod is a node with a pod "ns/p", whose container "c" runs.
type runningPod struct{ noPods }

func (runningPod) Find(namespace, name string) (Pod, bool) {
	return Pod{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}},
		Observed: &record.Observed{
			Sandboxes:  []record.Sandbox{{ID: "s", Ready: true}},
			Containers: []record.Observation{{ID: "c1", Name: "c", State: record.Running}},
		},
	}, namespace == "ns" && name == "p"
}

// elsewhere is a runtime that gives no session.
type elsewhere struct{ asked []string }

var errElsewhere = errors.New("no sessions here")

func (e *elsewhere) Exec(_ context.Context, r *criv1.ExecRequest) (*criv1.ExecResponse, error) {
	e.asked = r.Cmd
	return nil, errElsewhere
}

func (e *elsewhere) Attach(context.Context, *criv1.AttachRequest) (*criv1.AttachResponse, error) {
	return nil, errElsewhere
}

func (e *elsewhere) PortForward(context.Context, *criv1.PortForwardRequest) (*criv1.PortForwardResponse, error) {
	return nil, errElsewhere
}

func (e *elsewhere) ExecSync(_ context.Context, _ string, cmd []string,
	_ time.Duration) (stdout, stderr []byte, err error) {
	e.asked = cmd
	return nil, nil, nil
}

// TestFormsAreSmall: the API server passes the body of an exec on from whoever may
// exec; of a form with a file in it nothing comes to the node's disk.
func TestFormsAreSmall(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, runtime := newServer(newCluster("anna create proxy")), &elsewhere{}
	s.Pods, s.Sessions = runningPod{}, Sessions{URLs: runtime}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("f", "f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(make([]byte, 40<<20)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	h := s.handler()
	for _, path := range []string{"/exec/ns/p/c?command=id&output=1", "/attach/ns/p/c?output=1", "/run/ns/p/c?cmd=id", "/portForward/ns/p?port=1"} {
		r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(form.Bytes()))
		r.Header.Set("Authorization", "Bearer token-of-anna")
		r.Header.Set("Content-Type", w.FormDataContentType())
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("files of forms: %v, %v", left, err)
	}
	for _, body := range []string{"cmd=echo&cmd=hello", "cmd=echo+hello"} { // the kubelet knows the second alone
		small := httptest.NewRequest(http.MethodPost, "/run/ns/p/c", strings.NewReader(body))
		small.Header.Set("Authorization", "Bearer token-of-anna")
		small.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		h.ServeHTTP(httptest.NewRecorder(), small)
		if !slices.Equal(runtime.asked, []string{"echo", "hello"}) {
			t.Errorf("%s: the runtime was asked %q", body, runtime.asked)
		}
		runtime.asked = nil
	}
}

// TestHeaderLimit sends more headers than the API takes, over TLS.
func TestHeaderLimit(t *testing.T) {
	address := serveTLS(t, newServer(newCluster("anna get healthz")))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for size, want := range map[int]int{1 << 10: http.StatusOK,
		maxHeader + 8<<10: http.StatusRequestHeaderFieldsTooLarge} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+address+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer token-of-anna")
		r.Header.Set("X-Large", strings.Repeat("a", size))
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%d bytes: %d, want %d", size, resp.StatusCode, want)
		}
	}
}

func TestSinceLongAgo(t *testing.T) {
	now := time.Now()
	o, err := parseLogOptions(url.Values{"sinceSeconds": {"9223372036854775807"}}, now)
	if err != nil || !o.Since.Before(now) {
		t.Errorf("%v %v", o.Since, err)
	}
}

// FuzzRequest: no path and no parameter makes the server panic, and none of a
// caller without rights is answered.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"/exec/ns/p/c?command=id&stdin=1", "/containerLogs/ns/p/c?tailLines=5&sinceTime=2026-01-01T00:00:00Z", "/portForward/ns/p?port=80",
		"/stats/summary?only_cpu_and_memory=true", "//exec/ns/p/c", "/%2e%2e/pods", "/pods/%00", "/run/a/b/c/d?cmd=%ff",
	} {
		f.Add("GET", seed)
		f.Add("POST", seed)
	}
	s := newServer(newCluster("writer create proxy", "writer get proxy"))
	s.Pods, s.Sessions, s.LogsDir = runningPod{}, Sessions{URLs: &elsewhere{}}, f.TempDir()
	h := s.handler()
	f.Fuzz(func(t *testing.T, method, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		for user, refused := range map[string]bool{"nobody": true, "writer": false} {
			r := &http.Request{Method: method, URL: u,
				Header: http.Header{"Authorization": {"Bearer token-of-" + user}}, Body: http.NoBody,
				Host: "n1", RequestURI: target}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r.WithContext(t.Context()))
			if refused && w.Code == http.StatusOK {
				t.Errorf("%s %q is answered", method, target)
			}
		}
	})
}

// FuzzLogOptions: parameters of a log request.
func FuzzLogOptions(f *testing.F) {
	f.Add("follow=true&tailLines=10&sinceSeconds=5&limitBytes=7")
	f.Add("sinceTime=2026-01-01T00:00:00Z&stream=Stdout")
	f.Add("tailLines=-1&sinceSeconds=99999999999999999999")
	now := time.Now()
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		o, err := parseLogOptions(q, now)
		if err == nil &&
			(o.Tail < -1 || o.limit < -1 || q.Get("sinceSeconds") != "" && q.Get("sinceTime") == "" && o.Since.After(now)) {
			t.Errorf("%q: %+v", query, o)
		}
	})
}
