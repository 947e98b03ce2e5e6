package api

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestCertificateOfALaterClock: a certificate that the API server's clock has not reached is
// not shown any more when it was refused, but the one before it, as long as that is valid.
func TestCertificateOfALaterClock(t *testing.T) {
	type life struct{ begins, ends time.Duration }
	good, over := life{-2 * time.Hour, time.Hour}, life{-2 * time.Hour, -time.Minute}
	later := life{time.Hour, 9 * time.Hour}
	for name, c := range map[string]struct {
		own            life
		before, newest *life
		want           string
	}{
		"nothing_was_renewed":         {good, nil, nil, "own"},
		"the_newest_has_begun":        {good, nil, &life{-time.Hour, time.Hour}, "newest"},
		"the_newest_begins_later":     {good, nil, &later, "own"},
		"the_one_before_it_is_used":   {over, &life{-time.Hour, time.Hour}, &later, "before"},
		"nothing_else_is_valid":       {over, nil, &later, ""},
		"what_is_later_is_all_there":  {over, &life{30 * time.Minute, 9 * time.Hour}, &later, ""},
		"the_kubeconfig_is_as_it_was": {life{time.Hour, 9 * time.Hour}, nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newCA(t)
			var shown atomic.Pointer[x509.Certificate]
			server := ca.server("", func(w http.ResponseWriter, r *http.Request) {
				cert := r.TLS.PeerCertificates[0]
				if now := time.Now(); now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				shown.Store(cert)
				node(w, "n1")
			})
			server.TLS.ClientAuth = tls.RequestClientCert // as the API server has it
			certs := map[string][]byte{}
			pair := func(name string, l life) []byte {
				cert, key := ca.client("n1", func(c *x509.Certificate) {
					c.NotBefore, c.NotAfter = time.Now().Add(l.begins), time.Now().Add(l.ends)
				})
				certs[name] = cert
				return append(slices.Clone(cert), key...)
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "kubelet-client.pem")
			for name, data := range map[string]*life{file + ".before": c.before, file: c.newest} {
				if data == nil {
					continue
				}
				of := "newest"
				if name != file {
					of = "before"
				}
				if err := os.WriteFile(name, pair(of, *data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			own := pair("own", c.own)
			s, err := Connect(Config{
				Rest: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
					CertData: certs["own"], KeyData: own, CAData: ca.pem}},
				NodeName: "n1", Rotated: file, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				_, err = s.Client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			}
			got := ""
			for name, cert := range certs {
				if c := shown.Load(); c != nil && c.Equal(firstCertificate(cert)) {
					got = name
				}
			}
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("shown: %q, want %q; %v", got, c.want, err)
			}
		})
	}
}

// TestBeforeIsKept: what is in use when another certificate comes can be had again.
func TestBeforeIsKept(t *testing.T) {
	ca := newCA(t)
	file := filepath.Join(t.TempDir(), "kubelet-client.pem")
	ownCert, ownKey := ca.client("n1", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(-time.Hour) })
	s, err := Connect(Config{
		Rest: &rest.Config{Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{
			CertData: ownCert, KeyData: ownKey, CAData: ca.pem}},
		NodeName: "n1", Rotated: file, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 8)
	var files [][]byte
	for range 2 {
		s.Client = ca.signing(asked)
		if err := s.renew(t.Context(), s.leaf()); err != nil && len(files) == 0 {
			t.Fatal(err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, data)
		if before, err := os.ReadFile(file + ".before"); len(files) == 1 && err == nil ||
			len(files) == 2 && !bytes.Equal(before, files[0]) {
			t.Errorf("after %d: %v, %d bytes", len(files), err, len(before))
		}
	}
}
