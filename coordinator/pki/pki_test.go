package pki

import (
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func read(t *testing.T, d Dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(d.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEnsure(t *testing.T) {
	d := Dir(t.TempDir())
	now := time.Now()
	cluster := Cluster{Domain: "cluster.local", IPs: []net.IP{net.IPv4(10, 96, 0, 1)}}
	ensure := func(at time.Time) {
		t.Helper()
		if err := d.Ensure(cluster, at); err != nil {
			t.Fatal(err)
		}
	}
	ensure(now)
	ca, err := d.CA()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Cert)
	cert, err := parseCert([]byte(read(t, d, "apiserver.crt")))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"localhost", "127.0.0.1", "kubernetes.default.svc.cluster.local", "10.96.0.1"} {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("serving %s: %v", name, err)
		}
	}

	before := read(t, d, "apiserver.crt")
	sa, caBefore := read(t, d, "sa.key"), read(t, d, "ca.crt")
	ensure(now)
	if read(t, d, "apiserver.crt") != before {
		t.Error("a fresh certificate was made again")
	}
	ensure(now.Add(CertLifetime * 3 / 4))
	if read(t, d, "apiserver.crt") == before {
		t.Error("a certificate with a quarter of its life left was kept")
	}
	before = read(t, d, "apiserver.crt")
	cluster.IPs = append(cluster.IPs, net.IPv4(192, 0, 2, 9))
	ensure(now.Add(CertLifetime * 3 / 4))
	if read(t, d, "apiserver.crt") == before {
		t.Error("a certificate without the new address was kept")
	}
	before = read(t, d, "apiserver.crt")
	ensure(now)
	if read(t, d, "apiserver.crt") == before {
		t.Error("a certificate that was made while the clock was ahead was kept")
	}
	// An earlier release gave the API server all rights at the kubelets.
	masters := Spec{User: "kube-apiserver-kubelet-client", Groups: []string{"system:masters"}}
	if err := d.ensureCert("apiserver-kubelet-client", ca, masters, now); err != nil {
		t.Fatal(err)
	}
	ensure(now)
	cert, err = parseCert([]byte(read(t, d, "apiserver-kubelet-client.crt")))
	if err != nil || len(cert.Subject.Organization) != 1 || cert.Subject.Organization[0] != KubeletClientGroup {
		t.Errorf("kubelet client: %v, %v", cert.Subject, err)
	}
	if read(t, d, "sa.key") != sa || read(t, d, "ca.crt") != caBefore {
		t.Error("the service account key or the CA changed")
	}
}

func TestDamaged(t *testing.T) {
	for _, name := range []string{"ca.crt", "ca.key", "sa.key", "gossip.key"} {
		d := Dir(t.TempDir())
		if err := d.Ensure(Cluster{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.Path(name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Ensure(Cluster{}, time.Now()); err == nil || !strings.Contains(err.Error(), "from a backup") {
			t.Errorf("damaged %s: %v", name, err)
		}
	}
	d := Dir(t.TempDir())
	if err := d.Ensure(Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Path("ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(Cluster{}, time.Now()); err == nil || !strings.Contains(err.Error(), "the key is missing") {
		t.Errorf("CA without its key: %v", err)
	}
}

// TestMadeAgain: a CA's certificate that is lost is made of its key, so that both sides go
// on; where directories are in the place of what can be made again, it is.
func TestMadeAgain(t *testing.T) {
	d := Dir(t.TempDir())
	if err := d.Ensure(Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	key, served := read(t, d, "ca.key"), read(t, d, "apiserver.crt")
	before, err := d.CA()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(d.Path("ca.crt")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"apiserver-kubelet-client.crt", "front-proxy-client.key"} {
		if err := errors.Join(os.Remove(d.Path(name)), os.MkdirAll(d.Path(name+"/in"), 0o700)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Ensure(Cluster{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if read(t, d, "ca.key") != key {
		t.Error("the key is another")
	}
	if read(t, d, "apiserver.crt") != served {
		t.Error("what was signed was signed again")
	}
	after, err := d.CA()
	if err != nil {
		t.Fatal(err)
	}
	made, err := parseCert([]byte(read(t, d, "apiserver-kubelet-client.crt")))
	if err != nil {
		t.Fatal(err)
	}
	for _, ca := range []*Authority{before, after} { // whichever one of them a client has
		roots := x509.NewCertPool()
		roots.AddCert(ca.Cert)
		_, err := made.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestShortLives: certificates of two minutes are made anew when a third of them is left,
// and not before.
func TestShortLives(t *testing.T) {
	d, now := Dir(t.TempDir()), time.Now().Truncate(time.Second)
	c := Cluster{Domain: "cluster.local", Lifetime: 2 * time.Minute}
	ensure := func(at time.Time) (shown string) {
		t.Helper()
		if err := errors.Join(d.Ensure(c, at), d.EnsurePeer(nil, c.Lifetime, at)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{servingCert, kubeletClientCert, frontProxyCert, peerCert} {
			shown += read(t, d, name+".crt")
		}
		return shown
	}
	if err := errors.Join(d.Ensure(Cluster{Domain: c.Domain}, now), d.EnsurePeer(nil, 0, now)); err != nil {
		t.Fatal(err)
	}
	first := ensure(now) // those of a year do not stay
	at, err := d.Renewal(true)
	if want := now.Add(80 * time.Second); err != nil || !at.Equal(want) {
		t.Fatalf("renewal at %v, %v; want %v", at, err, want)
	}
	if ensure(at) != first {
		t.Error("a certificate was made again too soon")
	}
	second := ensure(at.Add(time.Second))
	for block := range strings.SplitSeq(first, "-----END CERTIFICATE-----\n") {
		if block != "" && strings.Contains(second, block) {
			t.Error("a certificate was kept that ends soon")
		}
	}
}

func TestRenewalOfNothing(t *testing.T) {
	if at, err := Dir(t.TempDir()).Renewal(false); err == nil {
		t.Errorf("renewal at %v of no certificates", at)
	}
}
