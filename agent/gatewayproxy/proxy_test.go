package gatewayproxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// rig is a proxy with one socket, of HTTP unless said otherwise.
type rig struct {
	t     *testing.T
	proxy *Proxy
	at    string
	port  gatewayfeed.Port
	all   map[string][]netip.AddrPort
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, proxy: New(slog.New(slog.NewTextHandler(t.Output(), nil))), port: gatewayfeed.Port{Number: 28000,
		Public: 80},
		all: map[string][]netip.AddrPort{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.at = l.Addr().String()
	r.proxy.Add("tcp/28000", l)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.proxy.Close(ctx)
		for _, tr := range r.proxy.transports.all {
			tr.CloseIdleConnections()
		}
	})
	return r
}

// backend gives a Service addresses.
func (r *rig) backend(name string, addresses ...string) gatewayfeed.Backend {
	b := gatewayfeed.Backend{Namespace: "ns", Service: name, Port: 80, Weight: 1}
	for _, a := range addresses {
		r.all[b.Key(false)] = append(r.all[b.Key(false)], netip.MustParseAddrPort(a))
		r.all[b.Key(true)] = append(r.all[b.Key(true)], netip.MustParseAddrPort(a))
	}
	r.proxy.SetBackends(r.all)
	return b
}

func (r *rig) set(listeners ...gatewayfeed.Listener) {
	r.t.Helper()
	r.port.Listeners = listeners
	if err := r.proxy.Set(&gatewayfeed.Config{Ports: []gatewayfeed.Port{r.port}}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) rules(rules ...gatewayfeed.Rule) {
	r.t.Helper()
	r.set(gatewayfeed.Listener{Name: "l", Protocol: gatewayfeed.HTTP, Routes: []gatewayfeed.Route{{Rules: rules}}})
}

func (r *rig) get(path string, change ...func(*http.Request)) (int, string, http.Header) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.at+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range change {
		f(req)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func server(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// closed is an address that refuses connections.
func closed(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestRequests(t *testing.T) {
	r := newRig(t)
	echo := server(t, func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Server-Said", "x")
		fmt.Fprint(w, q.Host, " ", q.URL.RequestURI(), " ", q.Header.Get("X-Forwarded-For"), " ",
			q.Header.Get("X-Set"), q.Header.Get("X-Gone"))
	})
	b := r.backend("echo", echo)
	r.rules(
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{PathKind: gatewayfeed.Prefix, Path: "/plain"}},
			Backends: []gatewayfeed.Backend{b}},
		gatewayfeed.Rule{
			Matches:  []gatewayfeed.Match{{PathKind: gatewayfeed.Prefix, Path: "/changed"}},
			Backends: []gatewayfeed.Backend{b},
			Filters: gatewayfeed.Filters{
				Request: &gatewayfeed.Headers{Set: []gatewayfeed.Header{{Name: "X-Set", Value: "set"}},
					Remove: []string{"X-Gone"}},
				Response: &gatewayfeed.Headers{Remove: []string{"Server-Said"},
					Add: []gatewayfeed.Header{{Name: "Added", Value: "a"}}},
				Rewrite: &gatewayfeed.Rewrite{Hostname: "other.example", Path: &gatewayfeed.PathChange{Prefix: true,
					To: "/new"}},
			},
		},
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{Path: "/broken"}}, Backends: []gatewayfeed.Backend{{Weight: 1}}},
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{Path: "/empty"}},
			Backends: []gatewayfeed.Backend{r.backend("empty")}},
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{Path: "/failing"}}, Backends: []gatewayfeed.Backend{b},
			Filters: gatewayfeed.Filters{Fail: true}},
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{PathKind: gatewayfeed.Prefix, Path: "/r"}},
			Filters: gatewayfeed.Filters{
				Redirect: &gatewayfeed.Redirect{Scheme: "https", Port: 8443, Code: 308,
					Path: &gatewayfeed.PathChange{To: "/there"}}}},
	)
	forged := func(q *http.Request) {
		q.Host = "a.example"
		q.Header.Set("X-Forwarded-For", "1.2.3.4")
		q.Header.Set("X-Gone", "gone")
	}
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"/plain/x?a=b", 200, "a.example /plain/x?a=b 127.0.0.1 gone"},
		{"/changed/x", 200, "other.example /new/x 127.0.0.1 set"},
		{"/broken", 500, "the route has no backend"},
		{"/empty", 503, "Service Unavailable"},
		{"/failing", 500, "the route has a filter that cannot be done"},
		{"/none", 404, "no route matches"},
		{"/r/x", 308, ""},
	} {
		code, body, header := r.get(c.path, forged)
		if code != c.code || strings.TrimSpace(body) != c.want {
			t.Errorf("%s: %d %q", c.path, code, body)
		}
		if c.path == "/r/x" && header.Get("Location") != "https://a.example:8443/there" {
			t.Errorf("location %q", header.Get("Location"))
		}
		if c.path == "/changed/x" && (header.Get("Server-Said") != "" || header.Get("Added") != "a") {
			t.Errorf("headers %v", header)
		}
	}
	var out bytes.Buffer
	if err := r.proxy.Metrics().Write(&out); err != nil || !strings.Contains(out.String(), `code="404"`) {
		t.Errorf("metrics: %v\n%s", err, &out)
	}
}

// TestOtherPod: a pod that does not accept connections is left for another; each time.
func TestOtherPod(t *testing.T) {
	r := newRig(t)
	good := server(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		fmt.Fprint(w, "good ", string(body))
	})
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{r.backend("b", closed(t), closed(t), good)}})
	for range 20 {
		code, body, _ := r.get("/", func(q *http.Request) {
			q.Method, q.Body = http.MethodPost,
				io.NopCloser(strings.NewReader("sent"))
		})
		if code != 200 || body != "good sent" {
			t.Fatalf("%d %q", code, body)
		}
	}
}

// TestRetries: an answer that is to be asked for again is, as often as it says.
func TestRetries(t *testing.T) {
	r := newRig(t)
	asked := 0
	b := r.backend("b", server(t, func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if asked++; asked < 3 || string(body) != "sent" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}, Retry: &gatewayfeed.Retry{Codes: []int{503},
		Attempts: 2}})
	post := func(q *http.Request) {
		q.Method, q.Body, q.ContentLength = http.MethodPost, io.NopCloser(strings.NewReader("sent")), 4
	}
	if code, _, _ := r.get("/", post); code != 200 || asked != 3 {
		t.Errorf("%d after %d", code, asked)
	}
	asked = -10
	if code, _, _ := r.get("/", post); code != 503 || asked != -7 {
		t.Errorf("%d after %d", code, asked)
	}
}

func TestTimeouts(t *testing.T) {
	r := newRig(t)
	b := r.backend("slow", server(t, func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-q.Context().Done():
		case <-time.After(5 * time.Second):
		}
	}))
	r.rules(
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{Path: "/whole"}}, Backends: []gatewayfeed.Backend{b},
			RequestTimeout: 50 * time.Millisecond},
		gatewayfeed.Rule{Matches: []gatewayfeed.Match{{Path: "/one"}}, Backends: []gatewayfeed.Backend{b},
			BackendTimeout: 50 * time.Millisecond})
	for _, path := range []string{"/whole", "/one"} {
		begin := time.Now()
		if code, _, _ := r.get(path); code != 504 || time.Since(begin) > 3*time.Second {
			t.Errorf("%s: %d after %s", path, code, time.Since(begin))
		}
	}
}

// TestWeights: backends get their share, those that may not be used with 500.
func TestWeights(t *testing.T) {
	r := newRig(t)
	b := r.backend("b", server(t, func(http.ResponseWriter, *http.Request) {}))
	b.Weight = 3
	none := gatewayfeed.Backend{Weight: 1}
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b, none, {Weight: 0}}})
	codes := map[int]int{}
	for range 200 {
		code, _, _ := r.get("/")
		codes[code]++
	}
	if codes[200]+codes[500] != 200 || codes[500] < 20 || codes[500] > 90 {
		t.Errorf("of 200 a quarter fails: %v", codes)
	}
}

func TestUpgrade(t *testing.T) {
	r := newRig(t)
	b := r.backend("ws", server(t, func(w http.ResponseWriter, q *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(c, rw)
	}))
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}})
	c, err := net.Dial("tcp", r.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatal(resp, err)
	}
	fmt.Fprint(c, "ping")
	got := make([]byte, 4)
	if _, err := io.ReadFull(in, got); err != nil || string(got) != "ping" {
		t.Error(string(got), err)
	}
}

// TestHTTP2WithoutTLS: a client that begins with HTTP/2 is understood, with trailers, as
// gRPC needs it, of a backend that speaks nothing else.
func TestHTTP2WithoutTLS(t *testing.T) {
	r := newRig(t)
	only := new(http.Protocols)
	only.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Trailer", "Grpc-Status")
		fmt.Fprint(w, q.Proto)
		w.Header().Set("Grpc-Status", "0")
	}))
	s.Config.Protocols = only
	s.Start()
	defer s.Close()
	b := r.backend("grpc", s.Listener.Addr().String())
	b.Protocol = gatewayfeed.H2C
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}})
	tr := &http.Transport{Protocols: only}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Get("http://" + r.at)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.ProtoMajor != 2 || string(body) != "HTTP/2.0" || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%v %s %q %v", err, resp.Proto, body, resp.Trailer)
	}
}

func certificateOf(t *testing.T, name string) gatewayfeed.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return gatewayfeed.Certificate{Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
}

// TestTLS: by name the certificate and the listener; a request for a name of another
// listener is misdirected; a name that nobody has is refused; passthrough beside it.
func TestTLS(t *testing.T) {
	r := newRig(t)
	b := r.backend("b", server(t, func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprint(w, "b ",
			q.Header.Get("X-Forwarded-Proto"))
	}))
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		c, err := echo.Accept()
		if err == nil {
			defer c.Close()
			head := make([]byte, 1)
			_, _ = io.ReadFull(c, head)
			fmt.Fprintf(c, "first byte %d", head[0])
		}
	}()
	one, two := certificateOf(t, "one.example"), certificateOf(t, "two.example")
	routes := []gatewayfeed.Route{{Rules: []gatewayfeed.Rule{{Backends: []gatewayfeed.Backend{b}}}}}
	r.port.Listeners = []gatewayfeed.Listener{
		{Name: "one", Protocol: gatewayfeed.HTTPS, Hostname: "one.example", Certificates: []string{"one"},
			Routes: routes},
		{Name: "two", Protocol: gatewayfeed.HTTPS, Hostname: "two.example", Certificates: []string{"two"},
			Routes: routes},
		{Name: "pass", Protocol: gatewayfeed.TLS, Hostname: "pass.example", Passthrough: true,
			Streams: []gatewayfeed.Stream{{Backends: []gatewayfeed.Backend{r.backend("echo", echo.Addr().String())}}}},
	}
	c := &gatewayfeed.Config{Ports: []gatewayfeed.Port{r.port},
		Certificates: map[string]gatewayfeed.Certificate{"one": one, "two": two}}
	if err := r.proxy.Set(c); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(one.Chain + two.Chain))
	for _, try := range []struct {
		sni, host string
		code      int
	}{{"one.example", "one.example", 200}, {"two.example", "two.example", 200}, {"one.example", "two.example", 421},
		{"one.example", "x.example", 404}} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: try.sni}, ForceAttemptHTTP2: true}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.at, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = try.host
		resp, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			t.Fatal(try, err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != try.code || resp.ProtoMajor != 2 || try.code == 200 && string(body) != "b https" {
			t.Errorf("%v: %d %s %q", try, resp.StatusCode, resp.Proto, body)
		}
		tr.CloseIdleConnections()
	}
	if _, err := tls.Dial("tcp", r.at, &tls.Config{RootCAs: pool, ServerName: "none.example"}); err == nil ||
		!strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("a name that nobody has: %v", err)
	}
	conn, err := net.Dial("tcp", r.at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _ = tls.Client(conn, &tls.Config{ServerName: "pass.example"}).Handshake() }()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
}

// TestLimits: a header that is too long, or does not end, is no request.
func TestLimits(t *testing.T) {
	r := newRig(t)
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{r.backend("b", server(t, func(http.ResponseWriter,
		*http.Request) {
	}))}})
	if code, _, _ := r.get("/", func(q *http.Request) {
		q.Header.Set("X", strings.Repeat("x",
			2*headerBytes))
	}); code != 431 {
		t.Errorf("a header of %d bytes: %d", 2*headerBytes, code)
	}
}

func TestStreams(t *testing.T) {
	r := newRig(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // says nothing before the client has ended
				defer c.Close()
				all, _ := io.ReadAll(c)
				fmt.Fprintf(c, "heard %s", all)
			}()
		}
	}()
	b := r.backend("tcp", closed(t), l.Addr().String())
	r.set(gatewayfeed.Listener{Name: "l", Protocol: gatewayfeed.TCP,
		Streams: []gatewayfeed.Stream{{Backends: []gatewayfeed.Backend{b}}}})
	c, err := net.Dial("tcp", r.at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "this")
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || string(got) != "heard this" {
		t.Errorf("%q %v", got, err)
	}
}

func TestDatagrams(t *testing.T) {
	r := newRig(t)
	back, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := back.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = back.WriteTo(append([]byte("heard "), buf[:n]...), from)
		}
	}()
	front, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	b := r.backend("udp", back.LocalAddr().String())
	err = r.proxy.Set(&gatewayfeed.Config{Ports: []gatewayfeed.Port{{Number: 28001, Listeners: []gatewayfeed.Listener{
		{Name: "u", Protocol: gatewayfeed.UDP, Streams: []gatewayfeed.Stream{{Backends: []gatewayfeed.Backend{b}}}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	r.proxy.AddPacket("udp/28001", front)
	// A connected socket takes answers from the address alone that it sent to: one that the
	// route to the client would not choose.
	c, err := net.Dial("udp", fmt.Sprintf("127.0.0.9:%d", front.LocalAddr().(*net.UDPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprint(c, "this")
	buf := make([]byte, 100)
	n, err := c.Read(buf)
	if err != nil || string(buf[:n]) != "heard this" {
		t.Errorf("%q %v", buf[:n], err)
	}
}
