package pki

import (
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// What one coordinator shares makes another one of the same cluster; keys of its
// own are made anew.
func TestShared(t *testing.T) {
	now, one, other := time.Now(), Dir(t.TempDir()), Dir(t.TempDir())
	ip := func(n byte) []net.IP { return []net.IP{net.IPv4(192, 0, 2, n)} }
	if err := one.Ensure(Cluster{IPs: ip(1)}, now); err != nil {
		t.Fatal(err)
	}
	if err := one.EnsurePeer(ip(1), 0, now); err != nil {
		t.Fatal(err)
	}
	files, err := one.Shared()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Install(files); err != nil {
		t.Fatal(err)
	}
	if err := other.Ensure(Cluster{IPs: ip(2)}, now); err != nil {
		t.Fatal(err)
	}
	if err := other.EnsurePeer(ip(2), 0, now); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		if read(t, one, name) != read(t, other, name) {
			t.Errorf("%s differs", name)
		}
	}
	for _, own := range []string{"apiserver.key", PeerKeyFile} {
		if read(t, one, own) == read(t, other, own) {
			t.Errorf("%s is shared", own)
		}
	}
	verifyPeer(t, one, other)
	if info, err := os.Stat(other.Path("ca.key")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("ca.key: %v, %v", info.Mode(), err)
	}
}

// verifyPeer checks that what one trusts lets the other in, as client and server.
func verifyPeer(t *testing.T, one, other Dir) {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(read(t, one, PeerCAFile)))
	cert, err := parseCert([]byte(read(t, other, PeerCertFile)))
	if err != nil {
		t.Fatal(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
		options := x509.VerifyOptions{Roots: roots, DNSName: "192.0.2.2", KeyUsages: []x509.ExtKeyUsage{usage}}
		if _, err := cert.Verify(options); err != nil {
			t.Error(err)
		}
	}
	cluster := x509.NewCertPool()
	cluster.AppendCertsFromPEM([]byte(read(t, one, CAFile)))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: cluster}); err == nil {
		t.Error("the cluster's CA vouches for a peer: then nodes are peers too")
	}
}

func TestInstallRefuses(t *testing.T) {
	now, one, other := time.Now(), Dir(t.TempDir()), Dir(t.TempDir())
	for _, d := range []Dir{one, other} {
		if err := d.Ensure(Cluster{}, now); err != nil {
			t.Fatal(err)
		}
		if err := d.EnsurePeer(nil, 0, now); err != nil {
			t.Fatal(err)
		}
	}
	files, err := one.Shared()
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, other, "ca.key")
	if err := other.Install(files); err == nil || !strings.Contains(err.Error(), "another cluster") {
		t.Errorf("into another cluster's directory: %v", err)
	}
	if read(t, other, "ca.key") != before {
		t.Error("a key was overwritten")
	}
	empty := Dir(t.TempDir())
	files["../evil"] = []byte("x")
	if err := empty.Install(files); err == nil || !strings.Contains(err.Error(), `"../evil" is none of them`) {
		t.Errorf("an unknown file: %v", err)
	}
	delete(files, "../evil")
	delete(files, "sa.key")
	if err := empty.Install(files); err == nil || !strings.Contains(err.Error(), "sa.key is missing") {
		t.Errorf("a missing file: %v", err)
	}
	if _, err := os.Stat(empty.Path(CAFile)); err == nil {
		t.Error("something was written")
	}
}
