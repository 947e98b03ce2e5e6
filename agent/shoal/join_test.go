package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/jointoken"
	"github.com/shoal-project/shoal/coordinator/joinapi"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// cluster is a coordinator as a machine sees it that joins.
type fakeCluster struct {
	t      *testing.T
	ca     *pki.Authority
	server *httptest.Server

	mu       sync.Mutex
	answer   joinapi.Cluster
	known    bool          // the token
	late     int           // requests before the coordinator hears of the token
	denied   string        // what is said of requests
	skew     time.Duration // of its clock
	closed   bool          // shows its CA to nobody
	requests map[string]signingRequest
	asked    []string
}

func newFakeCluster(t *testing.T, change func(*pki.Spec)) *fakeCluster {
	t.Helper()
	dir := pki.Dir(t.TempDir())
	if err := dir.Ensure(pki.Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		t.Fatal(err)
	}
	spec := pki.Spec{User: "kube-apiserver", Names: []string{apiName}, Server: true}
	now := time.Now()
	if change != nil {
		change(&spec)
	}
	if spec.Lifetime < 0 { // begins later
		now, spec.Lifetime = now.Add(-spec.Lifetime), time.Hour
	}
	certPEM, keyPEM, err := ca.Issue(spec, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeCluster{t: t, ca: ca, known: true, requests: map[string]signingRequest{}}
	clients := x509.NewCertPool()
	clients.AddCert(ca.Cert)
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs: clients}
	f.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	f.server.StartTLS()
	t.Cleanup(f.server.Close)
	return f
}

func (f *fakeCluster) address() string { return f.server.Listener.Addr().String() }

func (f *fakeCluster) token() jointoken.Token {
	return jointoken.Token{Role: jointoken.RoleNode, Servers: []string{f.address()}, CA: jointoken.HashCA(f.ca.Cert),
		ID: "abcdef", Secret: "0123456789abcdef", Expires: time.Now().Add(time.Hour).Unix()}
}

func (f *fakeCluster) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.Method+" "+r.URL.Path)
	bearer := r.Header.Get("Authorization") == "Bearer "+f.token().Bearer()
	switch {
	case r.URL.Path == joinapi.CAPath && f.closed:
		http.Error(w, "who?", http.StatusUnauthorized)
	case r.URL.Path == joinapi.CAPath:
		if r.Header.Get("Authorization") != "" {
			f.t.Error("the token was shown to a server that nobody has verified")
		}
		_, _ = w.Write(f.ca.PEM)
	case r.URL.Path == "/version":
		http.Error(w, "who?", http.StatusUnauthorized)
	case r.URL.Path == joinapi.NodePath && len(r.TLS.PeerCertificates) > 0:
		f.respond(w, joinapi.Node{ClusterCIDR: "10.1.0.0/16", ServiceCIDR: "10.2.0.0/16", ClusterDNS: []string{"10.2.0.10"},
			ClusterDomain: "example.local", GossipKeys: []byte("key\n"), Gossip: []string{"192.0.2.1:7947"}})
	case f.late > 0:
		f.late--
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	case !bearer || !f.known:
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
	case r.URL.Path == joinapi.ClusterPath:
		answer := f.answer
		answer.Time = time.Now().Add(f.skew)
		f.respond(w, answer)
	case r.Method == http.MethodPost:
		f.sign(w, r)
	default:
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		f.respond(w, map[string]any{"type": "ADDED", "object": f.requests[name]})
	}
}

func (f *fakeCluster) respond(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeCluster) sign(w http.ResponseWriter, r *http.Request) {
	var request signingRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		f.t.Error(err)
	}
	if _, there := f.requests[request.Metadata.Name]; there {
		http.Error(w, `{"reason":"AlreadyExists","message":"it is there"}`, http.StatusConflict)
		return
	}
	status := &signingStatus{}
	if f.denied != "" {
		status.Conditions = append(status.Conditions, struct{ Type, Reason, Message string }{"Denied", "x", f.denied})
	} else {
		parsed, err := pki.ParseRequest(request.Spec.Request)
		if err != nil {
			f.t.Error(err)
			return
		}
		status.Certificate, err = f.ca.Sign(parsed, pki.Terms{ExtUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			Lifetime: 24 * time.Hour}, time.Now())
		if err != nil {
			f.t.Error(err)
		}
	}
	request.Status = status
	f.requests[request.Metadata.Name] = request
	w.WriteHeader(http.StatusCreated)
	f.respond(w, request)
}

// machineIn is a machine whose files are all in one directory.
func machineIn(t *testing.T, dir, config string) (*joinOptions, *machine) {
	t.Helper()
	o := &joinOptions{config: filepath.Join(dir, "agent.yaml"), nodeName: "n1"}
	if config != "" {
		if err := os.WriteFile(o.config, []byte(config+"dataDir: "+dir+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, err := o.machine()
	if err != nil {
		t.Fatal(err)
	}
	m.cfg.DataDir = dir
	return o, m
}

func enter(t *testing.T, f *fakeCluster, tok jointoken.Token) (dir string, err error) {
	t.Helper()
	dir = t.TempDir()
	o, m := machineIn(t, dir, "# mine\nmaxPods: 7\n")
	return dir, o.enter(t.Context(), m, tok, &steps{out: &bytes.Buffer{}, start: time.Now()})
}

// TestJoinEncryption: the flag is the file's `encryption`; without it the file stays as it is.
func TestJoinEncryption(t *testing.T) {
	f := newFakeCluster(t, nil)
	for _, c := range []struct {
		name, file string
		args       []string
		want       bool
	}{
		{"on", "", []string{"--encryption"}, true},
		{"off", "encryption: true\n", []string{"--encryption=false"}, false},
		{"unsaid", "encryption: true\n", nil, true},
		{"unsaid_of_a_new_file", "", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			command, o := newJoinCommand()
			args := append(c.args, "--node-name=n1", "--config="+filepath.Join(dir, "agent.yaml"))
			if err := command.ParseFlags(args); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(o.config, []byte(c.file+"dataDir: "+dir+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			o.takeFlags(command.Flags())
			m, err := o.machine()
			if err != nil {
				t.Fatal(err)
			}
			if err := o.enter(t.Context(), m, f.token(), &steps{out: &bytes.Buffer{}, start: time.Now()}); err != nil {
				t.Fatal(err)
			}
			if _, m := machineIn(t, dir, ""); m.cfg.Encryption != c.want {
				t.Errorf("encryption is %t, want %t", m.cfg.Encryption, c.want)
			}
		})
	}
	command, o := newJoinCommand()
	if err := command.ParseFlags([]string{"--encryption", "--witness"}); err != nil {
		t.Fatal(err)
	}
	o.takeFlags(command.Flags())
	if err := o.fits(); err == nil || !strings.Contains(err.Error(), "--encryption is about a node's pods") {
		t.Errorf("of a witness: %v", err)
	}
}

// TestJoinWrites: what is written is the cluster's; what the administrator wrote stays.
func TestJoinWrites(t *testing.T) {
	f := newFakeCluster(t, nil)
	dir, err := enter(t, f, f.token())
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# mine\nmaxPods: 7\n", "join: ['192.0.2.1:7947']", "clusterDNS: [10.2.0.10]",
		"kubeconfig: " + dir + "/kubeconfig", "gossipKeyFile: " + dir + "/gossip.key", "nodeName: n1"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %q in\n%s", want, data)
		}
	}
	_, m := machineIn(t, dir, "")
	if m.cfg.MaxPods != 7 || m.cfg.ClusterDomain != "example.local" || m.cfg.ServiceCIDR != "10.2.0.0/16" {
		t.Errorf("%+v", m.cfg)
	}
	for name, want := range map[string]bool{"gossip.key": true, "kubeconfig": true, "joining.key": false} {
		info, err := os.Stat(filepath.Join(dir, name))
		if (err == nil) != want || err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	// Again: it is joined already; to another cluster it is not.
	if joined, err := m.joined(f.token()); !joined || err != nil {
		t.Errorf("joined %t, %v", joined, err)
	}
	if _, err := m.joined(newFakeCluster(t, nil).token()); err == nil ||
		!strings.Contains(err.Error(), "a node of another cluster, at https://"+f.address()+": run `shoal leave` first") {
		t.Error(err)
	}
	m.name = "n2"
	if _, err := m.joined(f.token()); err == nil || !strings.Contains(err.Error(), "is node n1 of that cluster already, not n2") {
		t.Error(err)
	}
}

// TestJoinRefused: one sentence with the remedy for each thing that is wrong.
func TestJoinRefused(t *testing.T) {
	closedPort, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closedPort.Addr().String()
	closedPort.Close()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // the kernel connects, and nobody answers
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	for name, tt := range map[string]struct {
		spec   func(*pki.Spec)
		change func(*fakeCluster, *jointoken.Token)
		want   string
	}{
		"wrong cluster": {nil, func(_ *fakeCluster, t *jointoken.Token) { t.CA = bytes.Repeat([]byte{1}, 32) },
			"is of another cluster than the token"},
		"clock behind": {nil, func(f *fakeCluster, _ *jointoken.Token) { f.skew = 7 * time.Minute },
			"this machine's clock is off by 7m0s"},
		"clock ahead": {nil, func(f *fakeCluster, _ *jointoken.Token) { f.skew = -time.Hour },
			"this machine's clock is off by 1h0m0s"},
		"clock far behind": {func(s *pki.Spec) { s.Lifetime = -time.Hour }, func(*fakeCluster, *jointoken.Token) {},
			"the coordinator's certificate begins on"},
		"certificate ended": {func(s *pki.Spec) { s.Lifetime = time.Nanosecond }, func(*fakeCluster, *jointoken.Token) {},
			"or the coordinator's certificate has expired"},
		"used up": {nil, func(f *fakeCluster, _ *jointoken.Token) {
			f.answer.Refused, f.answer.Message = joinapi.Attempt{Uses: "0"}.Refusal()
		}, "used by as many machines as it is for: make another with `shoal token create`"},
		"used up meanwhile": {nil, func(f *fakeCluster, _ *jointoken.Token) { f.denied = "the token has been used" },
			"the token has been used"},
		"name taken": {nil, func(f *fakeCluster, _ *jointoken.Token) {
			f.answer.Refused, f.answer.Message = joinapi.Attempt{Name: "n1", Alive: true}.Refusal()
		}, "a live Node has the name n1: choose another with --node-name"},
		"expired": {nil, func(f *fakeCluster, t *jointoken.Token) { f.known, t.Expires = false, 1 },
			"the token has expired on 1970-01-01T00:00:01Z: make another"},
		"deleted": {nil, func(f *fakeCluster, _ *jointoken.Token) { f.known = false },
			"it was used up or deleted; make another with `shoal token create`"},
		"nothing listens": {nil, func(_ *fakeCluster, t *jointoken.Token) { t.Servers = []string{nobody} },
			nobody + ": nothing listens on the port; open the port in firewalls"},
		"no name": {nil, func(_ *fakeCluster, t *jointoken.Token) { t.Servers = []string{"nowhere.invalid:6443"} },
			"its name is not known"},
		"no TLS": {nil, func(_ *fakeCluster, t *jointoken.Token) {
			t.Servers = []string{plain.Listener.Addr().String()}
		}, "does not speak TLS"},
		"full packets are lost": {nil, func(_ *fakeCluster, t *jointoken.Token) {
			t.Servers = []string{mute.Addr().String()}
		}, "the port is open, and no TLS handshake ends in time"},
		"shown to nobody": {nil, func(f *fakeCluster, _ *jointoken.Token) { f.closed = true }, "give it by --ca-file"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			f := newFakeCluster(t, tt.spec)
			tok := f.token()
			tt.change(f, &tok)
			dir, err := enter(t, f, tok)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			for _, file := range []string{"kubeconfig", "gossip.key", "joining.key"} {
				if exists(filepath.Join(dir, file)) {
					t.Errorf("%s was written", file)
				}
			}
		})
	}
}

// TestNewToken: a token may be so new that the coordinator has not heard of it.
func TestNewToken(t *testing.T) {
	f := newFakeCluster(t, nil)
	f.late = 2
	if _, err := enter(t, f, f.token()); err != nil {
		t.Error(err)
	}
}

// TestNextAddress: an address that does not answer is passed over.
func TestNextAddress(t *testing.T) {
	f := newFakeCluster(t, nil)
	tok := f.token()
	tok.Servers = append([]string{"127.0.0.1:1"}, tok.Servers...)
	if _, err := enter(t, f, tok); err != nil {
		t.Error(err)
	}
}

// TestCAFile: with the CA at hand nobody is asked for it.
func TestCAFile(t *testing.T) {
	f := newFakeCluster(t, nil)
	f.closed = true
	if _, err := discover(t.Context(), f.token(), f.ca.PEM); err != nil {
		t.Error(err)
	}
	if _, err := discover(t.Context(), f.token(), newFakeCluster(t, nil).ca.PEM); err == nil {
		t.Error("another cluster's CA was believed")
	}
}

// TestSameRequest: who tries again after a crash asks for the same, and the token is
// not used twice; after a denial it is another request.
func TestSameRequest(t *testing.T) {
	f := newFakeCluster(t, nil)
	dir := t.TempDir()
	file := filepath.Join(dir, "joining.key")
	names := map[string]bool{}
	for range 2 {
		key, _, err := joiningKey(file)
		if err != nil {
			t.Fatal(err)
		}
		request, err := newSigningRequest(key, "n1", "abcdef")
		if err != nil {
			t.Fatal(err)
		}
		names[request.Metadata.Name] = true
		c, err := discover(t.Context(), f.token(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if cert, err := sign(t.Context(), c.client, request); err != nil || len(cert) == 0 {
			t.Fatal(err)
		}
	}
	if len(f.requests) != 1 || len(names) != 1 {
		t.Errorf("%d requests", len(f.requests))
	}
	f.denied = "no"
	o, m := machineIn(t, dir, "maxPods: 7\n")
	m.name = "n2"
	if err := o.enter(t.Context(), m, f.token(), &steps{out: &bytes.Buffer{}}); err == nil || exists(file) {
		t.Errorf("the key of a denied request is kept: %v", err)
	}
}

func TestChangeYAML(t *testing.T) {
	for name, tt := range map[string]struct{ old, want string }{
		"none":     {"", "a: x\nlist: [v, w]\n"},
		"comments": {"# only this\n", "# only this\na: x\nlist: [v, w]\n"},
		"others":   {"# head\nb: 1 # why\nm:\n  k: v\n", "# head\nb: 1 # why\nm:\n  k: v\na: x\nlist: [v, w]\n"},
		"place":    {"list:\n  - old\na: old # mine\nb: 1\n", "list: [v, w]\na: x # mine\nb: 1\n"},
	} {
		got, err := changeYAML([]byte(tt.old), map[string]any{"a": "x", "list": []string{"v", "w"}})
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %q, want %q, %v", name, got, tt.want, err)
		}
	}
	for _, bad := range []string{"- a list\n", "a: [", "text\n"} {
		if got, err := changeYAML([]byte(bad), nil); err == nil {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestRandomText(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		text := randomText(16)
		if id, err := tokenID(text[:6]); err != nil || id != text[:6] || len(text) != 16 || seen[text] {
			t.Fatalf("%q: %v", text, err)
		}
		seen[text] = true
	}
}
