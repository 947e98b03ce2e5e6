package serving

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/cert"
)

// TestSelfSigned: it stands for the node's name and addresses.
func TestSelfSigned(t *testing.T) {
	c, err := SelfSigned("n1", []string{"192.0.2.1", "2001:db8::1"})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(c.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"n1", "192.0.2.1", "2001:db8::1"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if shown, err := Always(c)(nil); shown != c || err != nil {
		t.Error(shown, err)
	}
}

func TestFromFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.pem")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := FromFiles(path, path, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "serving certificate") || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// pair makes a certificate for a host, and its key, as PEM.
func pair(t *testing.T, host string) (certificate, key []byte) {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// TestFilesAreFollowed: a certificate that is renewed in its files is shown without a
// restart, and what is half written is not.
func TestFilesAreFollowed(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(file string, data []byte) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	oldCert, oldKey := pair(t, "old.test")
	newCert, newKey := pair(t, "new.test")
	synctest.Test(t, func(t *testing.T) {
		write(certFile, oldCert)
		write(keyFile, oldKey)
		var said bytes.Buffer
		f, err := FromFiles(certFile, keyFile, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		expect := func(host string) {
			t.Helper()
			c, err := f.Certificate(nil)
			if err != nil || c.Leaf.VerifyHostname(host) != nil {
				t.Errorf("shown: %v, %v; want the one of %s", c.Leaf.DNSNames, err, host)
			}
		}
		expect("old.test")
		write(certFile, newCert)
		for range 3 { // it is told once that the key is of another
			time.Sleep(lookAfter)
			expect("old.test")
		}
		if n := strings.Count(said.String(), "level=ERROR"); n != 1 {
			t.Errorf("told %d times: %s", n, &said)
		}
		write(keyFile, newKey)
		time.Sleep(lookAfter)
		expect("new.test")
		if err := os.Remove(keyFile); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lookAfter)
		expect("new.test")
	})
}
