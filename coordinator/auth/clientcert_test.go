package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net/http"
	"testing"
	"time"
)

// authority signs client certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	return &authority{sign(t, template, template, key, key), key}
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func (a *authority) request(t testing.TB, name string, lifetime time.Duration) *http.Request {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: []string{"g"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lifetime),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, key, a.key)
	req, _ := http.NewRequest(http.MethodGet, "https://x/", nil)
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
	return req
}

func TestCertificates(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	c := newCertificates(roots)
	anna, ben := ours.request(t, "anna", time.Hour), ours.request(t, "ben", time.Minute)
	for range 2 { // verified, then remembered
		for name, req := range map[string]*http.Request{"anna": anna, "ben": ben} {
			resp, ok, err := c.AuthenticateRequest(req)
			if err != nil || !ok || resp.User.GetName() != name {
				t.Errorf("%s: %v %v %v", name, resp, ok, err)
			}
		}
		if _, ok, err := c.AuthenticateRequest(theirs.request(t, "anna", time.Hour)); ok || err == nil {
			t.Error("a stranger's certificate passed")
		}
		if _, ok, err := c.AuthenticateRequest(ours.request(t, "late", -time.Minute)); ok || err == nil {
			t.Error("an expired certificate passed")
		}
	}
	if n := len(c.known); n != 2 {
		t.Errorf("%d certificates remembered, want 2", n)
	}
	if v := c.known[string(ben.TLS.PeerCertificates[0].Raw)]; time.Until(v.until) > time.Minute {
		t.Errorf("remembered beyond its end: %v", time.Until(v.until))
	}
}

// TestLongChains: nobody has the server look for a way through many certificates.
func TestLongChains(t *testing.T) {
	ours := newAuthority(t)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	a := newRequestAuthenticator(Config{}, newCertificates(roots), nil, nil, nil)
	for n, want := range map[int]bool{1: true, maxChain: true, maxChain + 1: false} {
		req := ours.request(t, "anna", time.Hour)
		for len(req.TLS.PeerCertificates) < n {
			req.TLS.PeerCertificates = append(req.TLS.PeerCertificates, newAuthority(t).cert)
		}
		if _, ok, err := a.AuthenticateRequest(req); ok != want || want != (err == nil) {
			t.Errorf("%d certificates: %v, %v", n, ok, err)
		}
	}
}

func BenchmarkCertificates(b *testing.B) {
	ca := newAuthority(b)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	c := newCertificates(roots)
	req := ca.request(b, "anna", time.Hour)
	b.Run("remembered", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = c.AuthenticateRequest(req)
		}
	})
	b.Run("verified", func(b *testing.B) {
		for b.Loop() {
			_, _, _ = c.verify.AuthenticateRequest(req)
		}
	})
}
