package kubelet

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/agent/reverse"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// hiddenNode is a coordinator, and the agent of a node that it cannot dial.
type hiddenNode struct {
	t          *testing.T
	hub        *Reverse
	api        *httptest.Server
	ca         *pki.Authority
	roots      *x509.CertPool
	transports *Transports
}

func pair(t *testing.T, ca *pki.Authority, spec pki.Spec) tls.Certificate {
	t.Helper()
	certPEM, keyPEM, err := ca.Issue(spec, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func newHiddenNode(t *testing.T) *hiddenNode {
	dir, ca := authority(t)
	h := &hiddenNode{t: t, ca: ca, hub: &Reverse{Log: slog.New(slog.DiscardHandler)}, roots: x509.NewCertPool()}
	h.roots.AddCert(ca.Cert)
	var err error
	h.transports, err = New(Config{CertFile: dir.Path("apiserver-kubelet-client.crt"),
		KeyFile: dir.Path("apiserver-kubelet-client.key"), Authorities: h.roots, Reverse: h.hub})
	if err != nil {
		t.Fatal(err)
	}
	h.api = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			s := r.TLS.PeerCertificates[0].Subject
			u := &user.DefaultInfo{Name: s.CommonName, Groups: s.Organization}
			if as := r.Header.Get("Impersonate-User"); as != "" {
				u = &user.DefaultInfo{Name: as, Groups: []string{user.NodesGroup}}
			}
			r = r.WithContext(request.WithUser(r.Context(), u))
		}
		h.hub.ServeHTTP(w, r)
	}))
	serving := pair(t, ca, pki.Spec{User: "kube-apiserver", Names: []string{"api"}, Server: true})
	h.api.TLS = &tls.Config{
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: h.roots, Certificates: []tls.Certificate{serving},
	}
	h.api.StartTLS()
	t.Cleanup(func() { h.hub.Close(); h.api.Close() })
	return h
}

func (h *hiddenNode) dialAs(spec pki.Spec) func(context.Context, string) (net.Conn, error) {
	cert := pair(h.t, h.ca, spec)
	return func(ctx context.Context, address string) (net.Conn, error) {
		d := tls.Dialer{Config: &tls.Config{RootCAs: h.roots, ServerName: "api", Certificates: []tls.Certificate{cert}}}
		return d.DialContext(ctx, "tcp", address)
	}
}

// agent runs a node's; the function stops it, as a kill does.
func (h *hiddenNode) agent(node, serves string, handler http.Handler) (stop func()) {
	h.t.Helper()
	cert := pair(h.t, h.ca, pki.Spec{
		User: serves, Groups: nodes, IPs: []net.IP{net.IPv4(192, 0, 2, 1)}, Server: true,
	})
	k := &reverse.Keeper{
		Coordinators: func() []reverse.Coordinator {
			return []reverse.Coordinator{{Name: "c1", Address: h.api.Listener.Addr().String(), Up: true}}
		},
		Hidden: func(context.Context, reverse.Coordinator) (bool, error) { return true, nil },
		Dial:   h.dialAs(pki.Spec{User: "system:node:" + node, Groups: nodes}),
		To:     reverse.NewListener(), Port: 10250, Log: slog.New(slog.DiscardHandler),
	}
	s := &http.Server{Handler: handler, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAnyClientCert,
	}}
	ctx, cancel := context.WithCancel(h.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = k.Run(ctx) })
	wg.Go(func() { _ = s.ServeTLS(k.To, "", "") })
	stop = sync.OnceFunc(func() { cancel(); _ = s.Close(); wg.Wait() })
	h.t.Cleanup(stop)
	return stop
}

func (h *hiddenNode) connected(node string) {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		h.hub.mu.Lock()
		there := h.hub.nodes[node] != nil
		h.hub.mu.Unlock()
		if there {
			return
		}
		if time.Now().After(end) {
			h.t.Fatal("the node does not connect")
		}
	}
}

func (h *hiddenNode) get(node, url string) (string, error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := h.transports.To(node).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return string(data), err
}

// nodes are in their certificates.
var nodes = []string{"system:nodes"}

const hiddenURL = "https://192.0.2.1:10250/"

// kubeletAPI says who asks, echoes what is upgraded, and sends as much as is asked for.
var kubeletAPI = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName+strings.Repeat("x", len(r.URL.Path)<<16))
		return
	}
	c, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_, _ = io.Copy(c, in)
})

// TestReverse: a node that nobody can dial is reached by the connection that it keeps: by
// requests beside each other and by ones that are upgraded, as for exec, and again after its
// agent, or the connection, has ended.
func TestReverse(t *testing.T) {
	h := newHiddenNode(t)
	stop := h.agent("n1", "system:node:n1", kubeletAPI)
	h.connected("n1")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			got, err := h.get("n1", hiddenURL+strings.Repeat("p", i))
			if err != nil || !strings.HasPrefix(got, "kube-apiserver-kubelet-client") || len(got) < (i+1)<<16 {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	wg.Wait()
	upgraded(t, h)

	h.hub.mu.Lock()
	_ = h.hub.nodes["n1"].conn.Close()
	h.hub.mu.Unlock()
	h.again("n1")
	stop()
	h.agent("n1", "system:node:n1", kubeletAPI)
	h.again("n1")
}

func (h *hiddenNode) again(node string) {
	h.t.Helper()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		h.connected(node)
		if _, err = h.get(node, hiddenURL); err == nil {
			return
		}
	}
	h.t.Fatal(err)
}

// upgraded says something, waits, and is answered: what is said first is not held back, and
// the deadlines of a server that hands a connection on leave it as it is.
func upgraded(t *testing.T, h *hiddenNode) {
	t.Helper()
	transport := h.transports.To("n1").(*http.Transport)
	raw, err := transport.DialContext(t.Context(), "tcp", "192.0.2.1:10250")
	if err != nil {
		t.Fatal(err)
	}
	conf := transport.TLSClientConfig.Clone()
	conf.ServerName = "192.0.2.1"
	c := tls.Client(raw, conf)
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	for _, word := range []string{"one\n", "two\n"} {
		fmt.Fprint(c, word)
		if got, err := in.ReadString('\n'); got != word {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

// TestReverseComesLate: who dials a node while its connection is about to come back gets that.
func TestReverseComesLate(t *testing.T) {
	h := newHiddenNode(t)
	dialling := make(chan struct{})
	silent := &net.Dialer{ControlContext: func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		close(dialling)
		<-ctx.Done()
		return ctx.Err()
	}}
	got := make(chan error, 1)
	go func() {
		dial := h.transports.To("n1").(*http.Transport).DialContext
		c, err := dial(WithDialer(t.Context(), silent), "tcp", "192.0.2.1:10250")
		if err == nil {
			err = c.Close()
		}
		got <- err
	}()
	<-dialling
	h.agent("n2", "system:node:n2", kubeletAPI) // another one
	h.connected("n2")
	h.agent("n1", "system:node:n1", kubeletAPI)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestReverseOnlyAsItself: a node's connection is that of its certificate, is no way to
// another node, and to no other port; and what it shows must be its own too.
func TestReverseOnlyAsItself(t *testing.T) {
	h := newHiddenNode(t)
	h.agent("n1", "system:node:n2", kubeletAPI)
	h.connected("n1")
	got, err := h.get("n1", hiddenURL)
	if err == nil || !strings.Contains(err.Error(), `certificate is of node "n2", not of node "n1"`) {
		t.Errorf("with another's serving certificate: %q, %v", got, err)
	}
	if c, there, err := h.hub.Dial(t.Context(), "n2", "192.0.2.1:10250"); there || c != nil || err != nil {
		t.Errorf("another node: %v, %t, %v", c, there, err)
	}
	c, _, err := h.hub.Dial(t.Context(), "n1", "192.0.2.1:22")
	if c != nil || err == nil || !strings.Contains(err.Error(), "only POST /10250") {
		t.Errorf("another port: %v, %v", c, err)
	}
}

// TestReverseRefuses: whoever is no node by its certificate keeps no connection.
func TestReverseRefuses(t *testing.T) {
	h := newHiddenNode(t)
	address := h.api.Listener.Addr().String()
	ask := func(dial func(context.Context, string) (net.Conn, error), header http.Header) (int, error) {
		c, err := dial(t.Context(), address)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		req, err := http.NewRequest(http.MethodGet, "https://"+address+reverse.Path, nil)
		if err != nil {
			return 0, err
		}
		req.Header = header
		if err := req.Write(c); err != nil {
			return 0, err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {reverse.Protocol}}
	as := upgrade.Clone()
	as.Set("Impersonate-User", "system:node:n1")
	anonymous := func(ctx context.Context, address string) (net.Conn, error) {
		d := tls.Dialer{Config: &tls.Config{RootCAs: h.roots, ServerName: "api"}}
		return d.DialContext(ctx, "tcp", address)
	}
	admin := pki.Spec{User: "admin", Groups: []string{"system:masters"}}
	node := pki.Spec{User: "system:node:n1", Groups: nodes}
	for name, c := range map[string]struct {
		dial   func(context.Context, string) (net.Conn, error)
		header http.Header
		want   int
	}{
		"nobody":           {anonymous, as, http.StatusForbidden},
		"admin":            {h.dialAs(admin), upgrade, http.StatusForbidden},
		"admin_as_a_node":  {h.dialAs(admin), as, http.StatusForbidden},
		"outside_group":    {h.dialAs(pki.Spec{User: node.User}), upgrade, http.StatusForbidden},
		"node_without_ask": {h.dialAs(node), http.Header{}, http.StatusUpgradeRequired},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ask(c.dial, c.header); got != c.want || err != nil {
				t.Errorf("%d, %v", got, err)
			}
		})
	}
	h.hub.mu.Lock()
	defer h.hub.mu.Unlock()
	if len(h.hub.nodes) != 0 {
		t.Errorf("%d are connected", len(h.hub.nodes))
	}
}

// TestReverseHangs: a node that takes a stream and says nothing costs its caller as long as
// the caller waits, and nothing stays.
func TestReverseHangs(t *testing.T) {
	h := newHiddenNode(t)
	h.agent("n1", "system:node:n1", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	h.connected("n1")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, hiddenURL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := h.transports.To("n1").RoundTrip(req); !errors.Is(err, context.DeadlineExceeded) {
		if err == nil {
			resp.Body.Close()
		}
		t.Errorf("%v", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		h.hub.mu.Lock()
		n := h.hub.nodes["n1"].http2.State().StreamsActive
		h.hub.mu.Unlock()
		if n == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d streams stay", n)
		}
	}
}
