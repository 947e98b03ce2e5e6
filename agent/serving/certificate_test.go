package serving

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	if _, err := FromFiles(path, path); err == nil || !strings.Contains(err.Error(), "serving certificate") {
		t.Errorf("got %v", err)
	}
}
