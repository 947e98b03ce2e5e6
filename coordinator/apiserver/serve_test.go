package apiserver_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/coordinator/apiserver/apitest"
	"github.com/shoal-project/shoal/coordinator/pki"
	"github.com/shoal-project/shoal/coordinator/registry"
)

// TestStrangers: headers have a limit in both versions of HTTP, and who is not
// known gets the answer at once, and no time to send the body that was promised.
func TestStrangers(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	for _, protocol := range []string{"h2", "http/1.1"} {
		config := rest.CopyConfig(s.Config)
		config.NextProtos = []string{protocol}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		for size, want := range map[int]int{100 << 10: http.StatusOK, 300 << 10: http.StatusRequestHeaderFieldsTooLarge} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/version", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Large", strings.Repeat("a", size))
			resp, err := client.Do(req)
			if err != nil && protocol == "h2" && want != http.StatusOK {
				continue // the server ends the connection, or has told its limit before
			}
			if err != nil {
				t.Errorf("%s, %d bytes: %v", protocol, size, err)
				continue
			}
			resp.Body.Close()
			if resp.StatusCode != want || (resp.ProtoMajor == 2) != (protocol == "h2") {
				t.Errorf("%s, %d bytes: %s %d, want %d", protocol, size, resp.Proto, resp.StatusCode, want)
			}
		}
		client.CloseIdleConnections()
	}
	if code, _ := raw(t, s, "/debug/pprof/cmdline"); code != http.StatusNotFound {
		t.Errorf("profiles are served: %d", code)
	}
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c,
		"POST /api/v1/namespaces HTTP/1.1\r\nHost: api\r\nContent-Length: 10000\r\n\r\nbegin"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401 ") {
		t.Errorf("%v, %q", err, answer)
	}
}

// TestNewCertificate: a certificate that comes while the server runs is shown from then on.
func TestNewCertificate(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	shown := func() string {
		c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := shown()
	if err := s.Keys.Ensure(pki.Cluster{Domain: "cluster.local", Names: []string{"another"}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); shown() == before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the certificate of before is shown for a minute")
		}
	}
}

// TestStop: when the server stops it cuts watches, and its port is free.
func TestStop(t *testing.T) {
	s := apitest.Start(t, apitest.Options{Kinds: registry.Kinds()})
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	watcher, err := client.CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Stop()
	for range watcher.ResultChan() {
	}
	if ctx.Err() != nil {
		t.Error("a watch outlives the server")
	}
	l, err := net.Listen("tcp", strings.TrimPrefix(s.URL, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
