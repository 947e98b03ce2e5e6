package api

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestCertificateThatExpired(t *testing.T) {
	dir := t.TempDir()
	end := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:n1"},
		NotBefore: end.Add(-time.Hour), NotAfter: end,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "kubeconfig")
	text := `{clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c, user: u}}],
current-context: c, users: [{name: u, user: {client-certificate: cert.pem, client-key: key.pem}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		file string
		now  time.Time
		want string
	}{
		{"", end.Add(time.Hour), ""},
		{file, end, ""},
		{file, end.Add(time.Second), "the client certificate of system:node:n1 expired on 2026-05-01T00:00:00Z: join again"},
		{file + "-none", end, "no such file"},
	} {
		got := ""
		if err := CheckCertificate(tt.file, "", "", tt.now); err != nil {
			got = err.Error()
		}
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s at %s: %q, want %q", tt.file, tt.now, got, tt.want)
		}
	}
}
