package gatewayproxy

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
	"github.com/shoal-project/shoal/tests/harness"
)

// written is what was logged, for several goroutines.
type written struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(b)
}

func (w *written) lines() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(strings.Lines(w.b.String()))
}

// TestAccessLog: each request has one line with who asked whom for what, whatever the client
// writes into it; one that no route takes has one too, and none is written when it is off.
func TestAccessLog(t *testing.T) {
	r := newRig(t)
	b := r.backend("b", server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, "hello")
	}))
	r.set(gatewayfeed.Listener{Name: "ns/web/http", Protocol: gatewayfeed.HTTP, Routes: []gatewayfeed.Route{{
		Name: "HTTPRoute/ns/r", Hostnames: []string{"a.example"},
		Rules: []gatewayfeed.Rule{{Backends: []gatewayfeed.Backend{b}}}}}})
	var out written
	asks := func(host string) {
		r.get("/a%0Ab?secret=1", func(q *http.Request) {
			q.Host = host
			q.Header.Set("User-Agent", `x" "code":1`)
		})
	}
	r.proxy.LogAccess(slog.New(slog.NewJSONHandler(&out, nil)))
	for i, host := range []string{"a.example", "none.example"} {
		asks(host)
		harness.Eventually(t, "its line, which comes after the answer", func() (bool, string) {
			l := out.lines()
			return len(l) == i+1, fmt.Sprint(l)
		})
	}
	for i, want := range []map[string]any{
		{"listener": "ns/web/http", "route": "HTTPRoute/ns/r", "backend": "tcp/ns/b/80", "code": 201., "bytes": 5.,
			"method": "GET", "host": "a.example", "path": "/a\nb", "proto": "HTTP/1.1", "userAgent": `x" "code":1`},
		{"listener": "ns/web/http", "route": "", "backend": "", "code": 404., "host": "none.example"},
	} {
		line := out.lines()[i]
		var got map[string]any
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s is %v, not %v, in %s", k, got[k], v, line)
			}
		}
		_, port, err := net.SplitHostPort(fmt.Sprint(got["client"]))
		if err != nil || port == "" || got["seconds"] == nil {
			t.Errorf("who asked, and for how long: %s", line)
		}
		if strings.Contains(line, "secret") {
			t.Errorf("what a client asks with is logged: %s", line)
		}
	}
	r.proxy.LogAccess(nil)
	asks("a.example")
	if l := out.lines(); len(l) != 2 {
		t.Errorf("when it is off: %v", l)
	}
}

// raw sends bytes and returns what comes back until the other side ends or is silent.
func raw(t *testing.T, at, text string) string {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(c)
	return string(got)
}

// TestSmuggling: of bytes that one could take for one request and another for two, the backend
// sees no second request that the proxy did not.
func TestSmuggling(t *testing.T) {
	hidden := "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
	post := func(headers string) string { return "POST / HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n\r\n" }
	length := fmt.Sprintf("Content-Length: %d\r\n", 5+len(hidden))
	for name, text := range map[string]string{
		"both lengths":   post(length+"Transfer-Encoding: chunked") + "0\r\n\r\n" + hidden,
		"two lengths":    post(length+"Content-Length: 0") + "12345" + hidden,
		"signed length":  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc" + hidden,
		"space in name":  "POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc" + hidden,
		"odd coding":     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" + hidden,
		"two codings":    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + hidden,
		"bare line feed": "POST / HTTP/1.1\nHost: a\nX: y\rGET /hidden HTTP/1.1\nContent-Length: 0\n\n",
		"two hosts":      "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
		"folded":         "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n GET /hidden HTTP/1.1\r\n\r\n",
		"tunnel":         "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n" + hidden,
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			r := newRig(t)
			var mu sync.Mutex
			var seen []string
			b := r.backend("b", server(t, func(_ http.ResponseWriter, q *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, q.Method+" "+q.URL.Path)
			}))
			r.rules(gatewayfeed.Rule{Matches: []gatewayfeed.Match{{Path: "/hidden", PathKind: gatewayfeed.Prefix}}},
				gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}})
			said := raw(t, r.at, text)
			mu.Lock()
			defer mu.Unlock()
			for _, s := range seen {
				if strings.Contains(s, "hidden") || strings.HasPrefix(s, "CONNECT") {
					t.Errorf("the backend saw %q; the client %q", seen, said)
				}
			}
			if name != "both lengths" && len(seen) > 0 && !strings.HasPrefix(said, "HTTP/1.1 200") {
				t.Errorf("the backend saw %q of what was refused: %q", seen, said)
			}
		})
	}
}

// TestVanishing: of an answer that its backend does not finish the client sees that it is not
// whole, and what was sent of it.
func TestVanishing(t *testing.T) {
	r := newRig(t)
	b := r.backend("b", server(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/length" {
			w.Header().Set("Content-Length", "100")
		}
		fmt.Fprint(w, "begin")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}})
	for _, path := range []string{"/length", "/chunks"} {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + r.at + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil || string(body) != "begin" {
			t.Errorf("%s: %q, %v", path, body, err)
		}
	}
}

// TestSlowClients: clients that say nothing, or never end what they say, keep nobody else from
// being answered, and are let go of.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{r.backend("b", server(t, func(http.ResponseWriter,
		*http.Request) {
	}))}})
	var slow []net.Conn
	for i := range 300 {
		c, err := net.Dial("tcp", r.at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 {
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: a\r\nX: ")
		}
		slow = append(slow, c)
	}
	if code, _, _ := r.get("/"); code != http.StatusOK {
		t.Errorf("beside slow clients: %d", code)
	}
	for _, c := range slow[:2] {
		_ = c.SetReadDeadline(time.Now().Add(3 * headerTime))
		if _, err := io.Copy(io.Discard, c); err != nil {
			t.Errorf("a slow client is waited for: %v", err)
		}
	}
}

// framed is a connection of HTTP/2 by hand.
type framed struct {
	*http2.Framer
	c   net.Conn
	buf bytes.Buffer
	enc *hpack.Encoder
}

func dialFramed(t *testing.T, at string) *framed {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	f := &framed{Framer: http2.NewFramer(c, c), c: c}
	f.enc = hpack.NewEncoder(&f.buf)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *framed) ask(stream uint32) error {
	f.buf.Reset()
	for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/"}} {
		_ = f.enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.buf.Bytes(), EndStream: true,
		EndHeaders: true})
}

// TestRapidReset: a client that asks and takes back thousands of times on one connection
// (CVE-2023-44487) has no more requests at its backend at a time than one that does not.
func TestRapidReset(t *testing.T) {
	r := newRig(t)
	var now, most atomic.Int64
	b := r.backend("b", server(t, func(_ http.ResponseWriter, q *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		select {
		case <-q.Context().Done():
		case <-time.After(50 * time.Millisecond):
		}
	}))
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}})
	f := dialFramed(t, r.at)
	go func() { _, _ = io.Copy(io.Discard, f.c) }()
	for i := range uint32(5000) {
		if f.ask(2*i+1) != nil || f.WriteRSTStream(2*i+1, http2.ErrCodeCancel) != nil {
			break // the proxy ends such a connection
		}
	}
	if code, _, _ := r.get("/"); code != http.StatusOK {
		t.Errorf("another client gets %d", code)
	}
	if n := most.Load(); n > 2*http2Streams {
		t.Errorf("the backend had %d requests at a time", n)
	}
}

// TestReload: what is under way when the configuration changes goes on: a stream of HTTP/2 in
// both directions, and a connection that is no longer HTTP's.
func TestReload(t *testing.T) {
	r := newRig(t)
	both := new(http.Protocols)
	both.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		in := bufio.NewReader(q.Body)
		_ = http.NewResponseController(w).Flush()
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(w, line)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	s.Config.Protocols = both
	s.Start()
	defer s.Close()
	b := r.backend("grpc", s.Listener.Addr().String())
	b.Protocol = gatewayfeed.H2C
	r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}})
	body, says := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.at, body)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{Protocols: both}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for i := range 3 {
		if _, err := fmt.Fprintf(says, "word %d\n", i); err != nil {
			t.Fatal(err)
		}
		if got, err := in.ReadString('\n'); err != nil || got != fmt.Sprintf("word %d\n", i) {
			t.Fatalf("after %d changes: %q, %v", i, got, err)
		}
		r.rules(gatewayfeed.Rule{Filters: gatewayfeed.Filters{Fail: true}})
		if code, _, _ := r.get("/"); code != http.StatusInternalServerError {
			t.Errorf("what comes anew has %d", code)
		}
	}
	_ = says.Close()
	if _, err := in.ReadString('\n'); err != io.EOF {
		t.Errorf("its end is told as %v", err)
	}
}

// TestMalformed: a certificate that cannot be read makes its own listener not answer, and says so;
// others do.
func TestMalformed(t *testing.T) {
	r := newRig(t)
	good := certificateOf(t, "good.example")
	bad := good
	bad.Chain = strings.Replace(good.Chain, "MII", "MIX", 1)
	other := certificateOf(t, "other.example")
	other.Key = good.Key
	listener := func(name string) gatewayfeed.Listener {
		return gatewayfeed.Listener{Name: name, Protocol: gatewayfeed.HTTPS, Hostname: name + ".example",
			Certificates: []string{name}, Routes: []gatewayfeed.Route{{Rules: []gatewayfeed.Rule{{}}}}}
	}
	r.port.Listeners = []gatewayfeed.Listener{listener("good"), listener("bad"), listener("other"), listener("none")}
	err := r.proxy.Set(&gatewayfeed.Config{Ports: []gatewayfeed.Port{r.port},
		Certificates: map[string]gatewayfeed.Certificate{"good": good, "bad": bad, "other": other, "none": {}}})
	if err == nil {
		t.Fatal("nothing is said of certificates that cannot be read")
	}
	for _, name := range []string{"bad", "other", "none"} {
		if !strings.Contains(err.Error(), "certificate "+name) || !strings.Contains(err.Error(), "listener "+name) {
			t.Errorf("%s is not told: %v", name, err)
		}
	}
	if strings.Contains(err.Error(), "good") || strings.Contains(err.Error(), "PRIVATE") {
		t.Errorf("told is %v", err)
	}
	st := r.proxy.state.Load().ports["tcp/28000"]
	if len(st.listeners) != 1 || st.listeners[0].Name != "good" {
		t.Errorf("there answer %+v", st.listeners)
	}
}

// TestRewrittenPath: what follows a replaced prefix goes on as the client wrote it, so that a
// slash that is part of a name stays one.
func TestRewrittenPath(t *testing.T) {
	r := newRig(t)
	b := r.backend("b", server(t, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, q.RequestURI) }))
	to := func(path string) gatewayfeed.Rewrite {
		return gatewayfeed.Rewrite{Path: &gatewayfeed.PathChange{Prefix: true, To: path}}
	}
	for _, c := range []struct{ prefix, to, path, want string }{
		{"/api", "/v1", "/api/a/b?q=%2F", "/v1/a/b?q=%2F"},
		{"/api", "/v1/", "/api", "/v1"},
		{"/api", "/", "/api", "/"},
		{"/api/", "/", "/api/a", "/a"},
		{"/", "/v1", "/a%2Fb", "/v1/a%2Fb"},
		{"/api", "/v1", "/api/a%2Fb/c%20d", "/v1/a%2Fb/c%20d"},
		{"/a b", "/v 1", "/a%20b/c%2Fd", "/v%201/c%2Fd"},
		{"/api", "/v1", "/%61pi/x%2Fy", "/v1/x%2Fy"},
	} {
		w := to(c.to)
		r.rules(gatewayfeed.Rule{Backends: []gatewayfeed.Backend{b}, Filters: gatewayfeed.Filters{Rewrite: &w},
			Matches: []gatewayfeed.Match{{Path: c.prefix, PathKind: gatewayfeed.Prefix}}})
		if _, got, _ := r.get(c.path); got != c.want {
			t.Errorf("%s of %s replaced by %s: %s, not %s", c.prefix, c.path, c.to, got, c.want)
		}
	}
}

// FuzzRewrittenPath: whatever a client writes, what a backend gets is one path, which it reads
// as the proxy does.
func FuzzRewrittenPath(f *testing.F) {
	f.Add("/api/a%2Fb", "/api", "/v1")
	f.Add("/%61pi", "/api", "/")
	f.Add("/a b%", "/", "")
	f.Fuzz(func(t *testing.T, path, prefix, to string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Host != "" || !strings.HasPrefix(u.Path, prefix) {
			return
		}
		changePath(u, &gatewayfeed.PathChange{Prefix: true, To: to}, prefix)
		back, err := url.PathUnescape(u.EscapedPath())
		if err != nil || back != u.Path || !strings.HasPrefix(u.EscapedPath(), "/") {
			t.Errorf("%q: %q, as it is written %q (%v)", path, u.Path, u.EscapedPath(), err)
		}
		rest := strings.TrimPrefix(u.RequestURI(), u.EscapedPath())
		if strings.ContainsAny(u.EscapedPath(), "?# \r\n") || rest != "" && rest[0] != '?' {
			t.Errorf("%q: the request is for %q", path, u.RequestURI())
		}
	})
}
