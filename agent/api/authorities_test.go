package api

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/shoal-project/shoal/agent/trust"
)

// TestAuthorities: what a coordinator that is believed says of the cluster's CAs counts
// from then on, after a restart too, until the kubeconfig is another one; the certificate
// is renewed by the one that signs.
func TestAuthorities(t *testing.T) {
	old, next := newCA(t), newCA(t)
	var bundle atomic.Pointer[[]byte]
	say := func(parts ...[]byte) {
		b := slices.Concat(parts...)
		bundle.Store(&b)
	}
	say(old.pem)
	handle := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == AuthoritiesPath {
			_, _ = w.Write(*bundle.Load())
			return
		}
		node(w, "n1")
	}
	before, after := old.server("", handle), next.server("", handle)
	dir := t.TempDir()
	kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "cluster-ca.crt")
	write := func(url string, ca, cert, key []byte) {
		t.Helper()
		for name, data := range map[string][]byte{"cert": cert, "key": key, "ca": ca, "kubeconfig": []byte(
			"apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
				"users: [{name: u, user: {client-certificate: cert, client-key: key}}]\n" +
				"clusters: [{name: c, cluster: {server: '" + url + "', certificate-authority: ca}}]\n")} {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	connect := func() *Server {
		t.Helper()
		rc, err := Load(kubeconfig, "test")
		if err != nil {
			t.Fatal(err)
		}
		rc.ContentConfig = rest.ContentConfig{} // JSON
		s, err := Connect(Config{Rest: rc, Kubeconfig: kubeconfig, NodeName: "n1", Authorities: file,
			Rotated: filepath.Join(dir, "client.pem"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	cert, key := old.client("n1", func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Minute), time.Now().Add(30*time.Minute)
	})
	write(before.URL, old.pem, cert, key)
	s := connect()
	look := func() Trusted {
		t.Helper()
		if err := s.LookAtAuthorities(t.Context()); err != nil {
			t.Fatal(err)
		}
		now, err := s.Trusted()
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	if now := look(); len(now.List) != 1 || !now.Followed {
		t.Errorf("before any rotation: %+v", now)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("a file was written that says nothing new")
	}
	say(old.pem, next.pem)
	if now := look(); len(now.List) != 2 || !now.Followed || s.outdated(s.leaf()) {
		t.Errorf("with a second one: %+v", now)
	}
	say(next.pem, old.pem)
	if now := look(); now.Followed || !s.outdated(s.leaf()) {
		t.Error("the certificate of the one that goes is as good as ever")
	}
	real := s.Client
	s.Client = next.signing(make(chan string, 8))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Renew(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if now, err := s.Trusted(); err == nil && now.Followed {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no certificate of the new one")
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	s.Client = real
	say(next.pem)
	write(after.URL, old.pem, cert, key) // another server of the cluster, the same CA in it
	again := connect()
	wants(t, again, "n1")
	if err := again.LookAtAuthorities(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, err := again.Trusted(); err != nil || len(now.List) != 1 || !now.List[0].Equal(next.cert) || !now.Followed {
		t.Errorf("after the last step: %+v, %v", now, err)
	}
	later, rotated := time.Now().Add(45*time.Minute), filepath.Join(dir, "client.pem")
	if err := CheckCertificate(kubeconfig, rotated, file, later); err != nil {
		t.Errorf("the certificate of the new CA does not count: %v", err)
	}
	if CheckCertificate(kubeconfig, rotated, "", later) == nil {
		t.Error("the kubeconfig's certificate has not ended: the check above shows nothing")
	}
	for name, said := range map[string][]byte{"nothing": nil, "garbage": []byte("-----BEGIN"), "no_ca": cert,
		"many": bytes.Repeat(next.pem, trust.MaxCAs+1),
		"long": append(bytes.Clone(next.pem), bytes.Repeat([]byte("\n"), trust.MaxBytes)...)} {
		t.Run(name, func(t *testing.T) {
			say(said)
			if err := again.LookAtAuthorities(t.Context()); err == nil {
				t.Error("it is believed")
			}
		})
	}
	other := newCA(t)
	cert, key = other.client("n1")
	write(after.URL, other.pem, cert, key)
	if now, err := connect().Trusted(); err != nil || !now.List[0].Equal(other.cert) {
		t.Errorf("with the kubeconfig of another cluster: %+v, %v", now, err)
	}
}

// TestToldElsewhere: of what goes wrong only that there is nobody to ask, and nothing to
// be told, is left to others.
func TestToldElsewhere(t *testing.T) {
	ca, stranger := newCA(t), newCA(t)
	answer := http.StatusNotFound
	up := ca.server("", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(answer)
		_, _ = w.Write([]byte("{}"))
	})
	down := ca.server("", func(http.ResponseWriter, *http.Request) {})
	down.Close()
	ask := func(url string, believed []byte) error {
		c, err := rest.RESTClientFor(&rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{CAData: believed},
			ContentConfig: rest.ContentConfig{GroupVersion: &schema.GroupVersion{}, NegotiatedSerializer: scheme.Codecs}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Get().AbsPath(AuthoritiesPath).MaxRetries(0).DoRaw(t.Context())
		return err
	}
	for _, test := range []struct {
		name, url string
		believed  []byte
		answer    int
		want      bool
	}{
		{"no_such_path", up.URL, ca.pem, http.StatusNotFound, true},
		{"down", down.URL, ca.pem, 0, true},
		{"refused", up.URL, ca.pem, http.StatusForbidden, false},
		{"broken", up.URL, ca.pem, http.StatusInternalServerError, false},
		{"not_believed", up.URL, stranger.pem, http.StatusNotFound, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer = test.answer
			if err := ask(test.url, test.believed); err == nil || toldElsewhere(err) != test.want {
				t.Errorf("left to others: %v: %v", !test.want, err)
			}
		})
	}
	if toldElsewhere(errors.New("the file system is full")) {
		t.Error("that the list cannot be kept is not told")
	}
}

// FuzzAuthorities: what is believed are CAs, and not too many.
func FuzzAuthorities(f *testing.F) {
	ca := newCA(f)
	cert, _ := ca.client("n1")
	f.Add(ca.pem)
	f.Add(append(bytes.Clone(ca.pem), cert...))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := trust.Parse(data)
		other := func(c *x509.Certificate) bool { return !c.IsCA }
		if err == nil && (len(list) == 0 || len(list) > trust.MaxCAs || slices.ContainsFunc(list, other)) {
			t.Errorf("%d were believed", len(list))
		}
	})
}
