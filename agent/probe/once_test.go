package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// answering listens, and answers each request with what write writes.
func answering(t *testing.T, write func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					write(c)
				}
			}()
		}
	}()
	return l.Addr().String()
}

func says(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

// TestOnce: a connection a request gives what net/http's own transport gives.
func TestOnce(t *testing.T) {
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", r.Header.Get("Connection"), " ", r.Host)
	}))
	defer secure.Close()
	const late = "context deadline exceeded"
	silent := answering(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
	for name, x := range map[string]struct {
		url        string
		good       bool
		body, fail string
	}{
		"length": {"http://" + answering(t, says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokmore")), true, "ok", ""},
		"no end": {"http://" + answering(t, says("HTTP/1.0 200 OK\r\n\r\nall of it")), true, "all of it", ""},
		"chunked": {"http://" + answering(t,
			says("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")), true, "ok", ""},
		"hints first": {"http://" + answering(t,
			says("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")), true, "", ""},
		"secure":         {secure.URL, true, "HTTP/1.1 close " + strings.TrimPrefix(secure.URL, "https://"), ""},
		"not secure":     {"https://" + answering(t, says("HTTP/1.1 400 Bad Request\r\n\r\n")), false, "", "EOF"},
		"nobody listens": {"http://127.0.0.1:1", false, "", "connection refused"},
		"no HTTP":        {"http://" + answering(t, says("220 mail ready\r\n")), false, "", "malformed HTTP"},
		"cut off": {"http://" + answering(t, says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")), false, "",
			"unexpected EOF"},
		"endless head": {"http://" + answering(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for range 200 {
				if _, err := io.WriteString(c, "X: "+strings.Repeat("x", 10_000)+"\r\n"); err != nil {
					return
				}
			}
		}), false, "", "EOF"},
		"silence": {"http://" + silent, false, "", late},
		"silence in the body": {"http://" + answering(t, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
			_, _ = c.Read(make([]byte, 1))
		}), false, "", late},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if x.fail == late {
				limit = 300 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, x.url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client(r.URL.Hostname()).Do(r)
			var body []byte
			if err == nil {
				body, err = io.ReadAll(resp.Body)
				resp.Body.Close()
				resp.Body.Close() // twice is allowed
			}
			switch {
			case (err == nil) != x.good, x.good && string(body) != x.body:
				t.Errorf("got %q, %v", body, err)
			case err != nil && !strings.Contains(err.Error(), x.fail):
				t.Errorf("got %v, want %s", err, x.fail)
			}
		})
	}
}

// TestPlainToSecure: a server that does not speak TLS is told by the words that a hook's
// second try looks for.
func TestPlainToSecure(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer plain.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.Replace(plain.URL, "http", "https", 1),
		http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client("127.0.0.1").Do(r)
	if err == nil {
		resp.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkHTTP is one probe; `time` of the test shows what it takes of the CPU.
func BenchmarkHTTP(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	defer s.Close()
	addr := s.Listener.Addr().(*net.TCPAddr)
	w := &watch{spec: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt(addr.Port)}}}}
	w.t.IPs, w.t.Container = []string{"127.0.0.1"}, &corev1.Container{}
	b.ReportAllocs()
	for b.Loop() {
		if ok, out, err := httpGet(b.Context(), w, time.Second); !ok || err != nil {
			b.Fatal(out, err)
		}
	}
}
