package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// testCA is a cluster's.
type testCA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	next int64
}

func newCA(t testing.TB) *testCA {
	t.Helper()
	ca := &testCA{t: t, next: 2}
	var err error
	if ca.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	ca.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return ca
}

// sign is a certificate of a key, in PEM.
func (ca *testCA) sign(public any, change func(*x509.Certificate)) []byte {
	ca.t.Helper()
	ca.next++
	template := &x509.Certificate{SerialNumber: big.NewInt(ca.next), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
	change(template)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, public, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue makes a key and its certificate.
func (ca *testCA) issue(change func(*x509.Certificate)) (certPEM, keyPEM []byte) {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return ca.sign(key.Public(), change), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func (ca *testCA) client(node string, change ...func(*x509.Certificate)) (certPEM, keyPEM []byte) {
	ca.t.Helper()
	return ca.issue(func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: nodeUser + node, Organization: []string{"system:nodes"}}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		for _, f := range change {
			f(c)
		}
	})
}

// server is a coordinator that knows who asks, and counts.
func (ca *testCA) server(name string, handle func(http.ResponseWriter, *http.Request)) *httptest.Server {
	ca.t.Helper()
	certPEM, keyPEM := ca.issue(func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses = []string{serverName}, []net.IP{net.IPv4(127, 0, 0, 1)}
		if name != "" {
			c.DNSNames, c.IPAddresses = []string{name}, nil
		}
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	})
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		ca.t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	s := httptest.NewUnstartedServer(http.HandlerFunc(handle))
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.VerifyClientCertIfGiven,
		ClientCAs: clients}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.StartTLS()
	ca.t.Cleanup(s.Close)
	return s
}

// serverAt is a coordinator that is back at an address.
func (ca *testCA) serverAt(address string, handle func(http.ResponseWriter, *http.Request)) {
	ca.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		ca.t.Fatal(err)
	}
	back := httptest.NewUnstartedServer(http.HandlerFunc(handle))
	back.Listener.Close()
	back.Listener, back.TLS, back.EnableHTTP2 = l, ca.server("", handle).TLS, true
	back.StartTLS()
	ca.t.Cleanup(back.Close)
}

func node(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":%q}}`, name)
}

func (ca *testCA) connect(url, known string) *Server {
	ca.t.Helper()
	certPEM, keyPEM := ca.client("n1")
	s, err := Connect(Config{
		Rest: &rest.Config{Host: url, QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{CAData: ca.pem, CertData: certPEM, KeyData: keyPEM}},
		NodeName: "n1", Known: known, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		ca.t.Fatal(err)
	}
	return s
}

// asks which server answers.
func asks(ctx context.Context, s *Server) (string, error) {
	n, err := s.Client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return n.Name, nil
}

func wants(t *testing.T, s *Server, want string) {
	t.Helper()
	if got, err := asks(t.Context(), s); got != want || err != nil {
		t.Errorf("%q answers, want %q: %v", got, want, err)
	}
}

// TestAnotherCoordinator: when the kubeconfig's server is gone, one that the gossip
// knows is asked, in the next run too; when it is back, new connections go to it.
func TestAnotherCoordinator(t *testing.T) {
	ca := newCA(t)
	first := ca.server("", func(w http.ResponseWriter, _ *http.Request) { node(w, "first") })
	second := ca.server("", func(w http.ResponseWriter, _ *http.Request) { node(w, "second") })
	impostor := ca.server("worker", func(w http.ResponseWriter, _ *http.Request) { node(w, "impostor") })
	known := filepath.Join(t.TempDir(), "coordinators.json")
	s := ca.connect(first.URL, known)
	wants(t, s, "first")
	s.SetCoordinators([]Coordinator{
		{URL: impostor.URL}, {URL: second.URL}, {URL: first.URL}, {URL: "http://192.0.2.1:80"}, {URL: "https://a b"},
	})
	wants(t, s, "first")
	address := first.Listener.Addr().String()
	first.CloseClientConnections()
	first.Close()
	wants(t, s, "second") // and never a node that has a certificate of the cluster
	wants(t, ca.connect(first.URL, known), "second")
	if _, err := asks(t.Context(), ca.connect(first.URL, "")); err == nil {
		t.Error("a server that nobody told of answered")
	}

	ca.serverAt(address, func(w http.ResponseWriter, _ *http.Request) { node(w, "back") })
	second.CloseClientConnections()
	wants(t, s, "back")
}

// TestDeadCoordinator: a request that hangs on a coordinator which the gossip calls
// dead ends at once, and only where there is another one.
func TestDeadCoordinator(t *testing.T) {
	ca := newCA(t)
	asked, end := make(chan struct{}, 8), make(chan struct{})
	defer close(end)
	hangs := ca.server("", func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-end:
		case <-r.Context().Done():
		}
	})
	lives := ca.server("", func(w http.ResponseWriter, _ *http.Request) { node(w, "lives") })
	s := ca.connect(hangs.URL, "")
	s.SetCoordinators([]Coordinator{{URL: hangs.URL}, {URL: lives.URL}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan string, 1)
	go func() { name, err := asks(ctx, s); ended <- fmt.Sprint(name, err) }()
	<-asked
	s.SetCoordinators([]Coordinator{{URL: hangs.URL, Dead: true}})
	select {
	case answer := <-ended:
		t.Errorf("the only coordinator's connection was closed: %s", answer)
	case <-time.After(50 * time.Millisecond):
	}
	s.SetCoordinators([]Coordinator{{URL: hangs.URL, Dead: true}, {URL: lives.URL}})
	// It fails, or is sent again: reading changes nothing.
	if answer := <-ended; ctx.Err() != nil {
		t.Errorf("the request hung: %s", answer)
	}
	wants(t, s, "lives")
}

// TestRace: a coordinator that is silent holds nobody up.
func TestRace(t *testing.T) {
	silent, open := place{address: "silent"}, place{address: "open"}
	refused := place{address: "refused"}
	var mu sync.Mutex
	var dialed []string
	dial := func(ctx context.Context, p place) (net.Conn, error) {
		mu.Lock()
		dialed = append(dialed, p.address)
		mu.Unlock()
		switch p {
		case silent:
			<-ctx.Done()
			return nil, ctx.Err()
		case refused:
			return nil, errors.New("refused")
		}
		a, b := net.Pipe()
		t.Cleanup(func() { _ = errors.Join(a.Close(), b.Close()) })
		return a, nil
	}
	for name, tt := range map[string]struct {
		list []place
		want string
		fail bool
	}{
		"the first":   {[]place{open, refused}, "open", false},
		"after one":   {[]place{refused, open}, "refused,open", false},
		"beside one":  {[]place{silent, open}, "silent,open", false},
		"all refused": {[]place{refused, refused}, "refused,refused", true},
	} {
		dialed = nil
		c, err := race(t.Context(), tt.list, time.Millisecond, dial)
		mu.Lock()
		if got := strings.Join(dialed, ","); got != tt.want || (c == nil) != tt.fail || (err != nil) != tt.fail {
			t.Errorf("%s: dialed %s, %v, %v", name, got, c, err)
		}
		mu.Unlock()
	}
}

// TestOrder: nodes share the coordinators of one that fails; the dead come last.
func TestOrder(t *testing.T) {
	count := map[string]int{}
	for i := range 300 {
		c := &coordinators{own: "192.0.2.1:6443", node: fmt.Sprint("n", i)}
		c.set([]Coordinator{{URL: "https://192.0.2.1:6443", Dead: true}, {URL: "https://192.0.2.2:6443"},
			{URL: "https://192.0.2.3:6443"}, {URL: "https://192.0.2.3:6443", Dead: true}})
		list := c.candidates(time.Now())
		if len(list) != 3 || list[2].address != "192.0.2.1:6443" {
			t.Fatalf("%v", list)
		}
		count[list[0].address]++
	}
	if len(count) != 2 || count["192.0.2.2:6443"] < 100 || count["192.0.2.3:6443"] < 100 {
		t.Errorf("%v", count)
	}
}

// TestMinority: a coordinator that lives and is of no use is left for a while, its
// watches too, but only for another one.
func TestMinority(t *testing.T) {
	ca := newCA(t)
	watching := make(chan struct{}, 1)
	minority := ca.server("", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			http.Error(w, "the store has no majority", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		watching <- struct{}{}
		<-r.Context().Done()
	})
	majority := ca.server("", func(w http.ResponseWriter, _ *http.Request) { node(w, "majority") })
	s := ca.connect(minority.URL, "")
	watch, err := s.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-watching
	for range 5 {
		if _, err := asks(t.Context(), s); !apierrors.IsServiceUnavailable(err) {
			t.Fatalf("alone it answers %v", err)
		}
	}
	select {
	case e := <-watch.ResultChan():
		t.Fatalf("the watch at the only coordinator ended: %v", e)
	case <-time.After(50 * time.Millisecond):
	}
	s.SetCoordinators([]Coordinator{{URL: minority.URL}, {URL: majority.URL}})
	if _, err := asks(t.Context(), s); !apierrors.IsServiceUnavailable(err) {
		t.Fatal(err)
	}
	for range watch.ResultChan() { // an error, perhaps, then its end
	}
	wants(t, s, "majority")
	first := func(now time.Time) string { return "https://" + s.way.coordinators.candidates(now)[0].address }
	if got := first(time.Now()); got != majority.URL {
		t.Errorf("%s is asked first", got)
	}
	if got := first(time.Now().Add(doubtFor + time.Second)); got != minority.URL {
		t.Errorf("%s is asked first after a while", got)
	}
}

// FuzzKnown: whatever the file of addresses holds, what is read of it is addresses.
func FuzzKnown(f *testing.F) {
	f.Add([]byte(`["192.0.2.1:6443","[2001:db8::1]:6443","x"]`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		list := decodeKnown(data)
		if len(list) > maxKnown || slices.ContainsFunc(list, func(p place) bool {
			_, _, err := net.SplitHostPort(p.address)
			return err != nil || p.name != serverName
		}) {
			t.Errorf("%v", list)
		}
	})
}

// TestNextCertificate: with another certificate new requests show it, while a watch
// that goes on is not dropped.
func TestNextCertificate(t *testing.T) {
	ca := newCA(t)
	var serials sync.Map
	watching, more := make(chan struct{}), make(chan struct{})
	server := ca.server("", func(w http.ResponseWriter, r *http.Request) {
		serials.Store(r.TLS.PeerCertificates[0].SerialNumber.Int64(), true)
		if r.ProtoMajor != 2 {
			t.Errorf("%s: each watch takes a connection of its own", r.Proto)
		}
		if r.URL.Query().Get("watch") == "" {
			node(w, "n1")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		close(watching)
		<-more
		_, _ = fmt.Fprintln(w, `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n1"}}}`)
	})
	s := ca.connect(server.URL, "")
	watch, err := s.Client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	<-watching
	certPEM, keyPEM := ca.client("n1")
	if err := s.connectWith(Credentials{Cert: certPEM, Key: keyPEM, CA: ca.pem}); err != nil {
		t.Fatal(err)
	}
	wants(t, s, "n1")
	if _, ok := serials.Load(firstCertificate(certPEM).SerialNumber.Int64()); !ok {
		t.Error("the new certificate was not shown")
	}
	close(more)
	if e, ok := <-watch.ResultChan(); !ok || e.Type != "ADDED" {
		t.Errorf("the watch was dropped: %v", e)
	}
	watch.Stop()
}

// TestRotatedFile: which certificate counts, that of the kubeconfig or that which came
// after it.
func TestRotatedFile(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	begins := func(d time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore = time.Now().Add(d) }
	}
	own, _ := ca.client("n1", begins(-2*time.Hour))
	file := filepath.Join(t.TempDir(), "kubelet-client.pem")
	for name, tt := range map[string]struct {
		ca    *testCA
		node  string
		begin time.Duration
		cut   bool
		want  bool
	}{
		"the next":           {ca, "n1", -time.Hour, false, true},
		"one before":         {ca, "n1", -3 * time.Hour, false, false},
		"another node's":     {ca, "n2", -time.Hour, false, false},
		"another cluster's":  {other, "n1", -time.Hour, false, false},
		"half of it written": {ca, "n1", -time.Hour, true, false},
	} {
		certPEM, keyPEM := tt.ca.client(tt.node, begins(tt.begin))
		data := append(slices.Clone(certPEM), keyPEM...)
		if tt.cut {
			data = certPEM
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := rotated(file, Credentials{Cert: own, CA: ca.pem}); (got != nil) != tt.want {
			t.Errorf("%s: %t, want %t", name, got != nil, tt.want)
		}
	}
	if rotated(filepath.Join(t.TempDir(), "none"), Credentials{Cert: own, CA: ca.pem}) != nil {
		t.Error("no file counts")
	}
}
