package serving

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// signer plays the cluster: it approves and signs what is asked for, as the
// request is made.
type signer struct {
	*fake.Clientset
	cert     *x509.Certificate
	key      crypto.Signer
	lifetime time.Duration
	signed   atomic.Int64
	ahead    atomic.Int64 // how far its clock is ahead
}

func newSigner(t *testing.T, lifetime time.Duration) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotBefore: time.Now().Add(-time.Hour),
		NotAfter:  time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	s := &signer{Clientset: fake.NewClientset(), cert: ca, key: key, lifetime: lifetime}
	s.PrependReactor("create", "certificatesigningrequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		request := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.CertificateSigningRequest)
		// The fake knows no field selectors: whoever waits sees what was before, too.
		resource := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
		if n := s.signed.Load(); n > 0 {
			if err := s.Tracker().Delete(resource, "", fmt.Sprint("csr-", n)); err != nil {
				t.Error(err)
			}
		}
		request.Name = fmt.Sprint("csr-", s.signed.Load()+1)
		request.Status.Certificate = s.sign(t, request)
		request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
		return true, request, s.Tracker().Add(request)
	})
	return s
}

func (s *signer) sign(t *testing.T, request *certificatesv1.CertificateSigningRequest) []byte {
	block, _ := pem.Decode(request.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Error(err)
		return nil
	}
	if request.Spec.SignerName != certificatesv1.KubeletServingSignerName ||
		parsed.Subject.CommonName != "system:node:n1" || parsed.Subject.Organization[0] != "system:nodes" {
		t.Errorf("asked %s for %s", request.Spec.SignerName, parsed.Subject)
	}
	now := time.Now().Add(time.Duration(s.ahead.Load()))
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(s.signed.Add(1)), Subject: parsed.Subject, DNSNames: parsed.DNSNames,
		IPAddresses: parsed.IPAddresses,
		NotBefore:   now, NotAfter: now.Add(s.lifetime), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, s.cert, parsed.PublicKey, s.key)
	if err != nil {
		t.Error(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newManager(t *testing.T, s *signer, file string) *Manager {
	t.Helper()
	return &Manager{Client: s, NodeName: "n1", File: file, Cluster: s.cert.Raw,
		SelfSigned: &tls.Certificate{Leaf: &x509.Certificate{}},
		Log:        slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
}

func run(t *testing.T, m *Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func addresses(ips ...string) []corev1.NodeAddress {
	list := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n1"}}
	for _, ip := range ips {
		list = append(list, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return list
}

// await returns the certificate that is served once it is another than old and
// for the address.
func await(t *testing.T, m *Manager, old *tls.Certificate, ip string) *tls.Certificate {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		c, err := m.Certificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if c != old && c != m.SelfSigned && c.Leaf.VerifyHostname(ip) == nil {
			return c
		}
	}
	t.Fatal("no new certificate within a minute")
	return nil
}

// TestCertificate: it is asked for when the Node has addresses, again when they
// change, kept for the next start, and not taken to another cluster.
func TestCertificate(t *testing.T) {
	s := newSigner(t, time.Hour)
	file := filepath.Join(t.TempDir(), "serving.pem")
	m := newManager(t, s, file)
	stop := run(t, m)
	m.Addresses(nil)
	if c, _ := m.Certificate(nil); c != m.SelfSigned {
		t.Error("there is a certificate before there is an address")
	}
	m.Addresses(addresses("192.0.2.1"))
	first := await(t, m, nil, "192.0.2.1")
	m.Addresses(addresses("192.0.2.1")) // nothing new
	m.Addresses(addresses("192.0.2.1", "2001:db8::1"))
	second := await(t, m, first, "2001:db8::1")
	if second.Leaf.VerifyHostname("n1") != nil || second.Leaf.VerifyHostname("192.0.2.1") != nil {
		t.Errorf("it is for %v %v", second.Leaf.DNSNames, second.Leaf.IPAddresses)
	}
	stop()
	if n := s.signed.Load(); n != 2 {
		t.Errorf("%d certificates were asked for, want 2", n)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v %v", info, err)
	}

	again := newManager(t, s, file)
	stop = run(t, again)
	again.Addresses(addresses("192.0.2.1", "2001:db8::1"))
	if c := await(t, again, nil, "2001:db8::1"); !bytes.Equal(c.Certificate[0], second.Certificate[0]) {
		t.Error("the next start asked for a new certificate")
	}
	stop()

	other := newManager(t, newSigner(t, time.Hour), file)
	other.load()
	if c, _ := other.Certificate(nil); c != other.SelfSigned {
		t.Error("another cluster's certificate is used")
	}
}

// TestRotation: a server goes on with a new certificate before the old one ends.
func TestRotation(t *testing.T) {
	s := newSigner(t, 4*time.Second)
	m := newManager(t, s, filepath.Join(t.TempDir(), "serving.pem"))
	stop := run(t, m)
	defer stop()
	m.Addresses(addresses("127.0.0.1"))
	first := await(t, m, nil, "127.0.0.1")
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: m.Certificate})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).HandshakeContext(t.Context())
			c.Close()
		}
	}()
	await(t, m, first, "127.0.0.1")
	roots := x509.NewCertPool()
	roots.AddCert(s.cert)
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if bytes.Equal(c.ConnectionState().PeerCertificates[0].Raw, first.Certificate[0]) {
		t.Error("the old certificate is served")
	}
}

// TestStopBeforeNewCertificate: a node that was stopped after it learned which CA signs,
// and before it had a certificate of it, does not say after its start that it has one.
func TestStopBeforeNewCertificate(t *testing.T) {
	s, next := newSigner(t, time.Hour), newSigner(t, time.Hour)
	encode := func(s *signer) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
	}
	both := append(encode(next), encode(s)...)
	file := filepath.Join(t.TempDir(), "serving.pem")
	m := newManager(t, s, file)
	m.Cluster = encode(s)
	stop := run(t, m)
	m.Addresses(addresses("192.0.2.1"))
	first := await(t, m, nil, "192.0.2.1")
	stop()
	m.SetCluster(both, true)
	if m.Followed() {
		t.Error("the new one has signed nothing")
	}
	for name, start := range map[string]func(*Manager){
		"told_before":       func(m *Manager) { m.Told = true },
		"in_the_kubeconfig": func(m *Manager) { m.SetCluster(both, true) }, // and told now
	} {
		t.Run(name, func(t *testing.T) {
			s.cert, s.key = next.cert, next.key
			again := newManager(t, s, file)
			again.Cluster = both
			again.load()
			start(again)
			if c, _ := again.Certificate(nil); !bytes.Equal(c.Certificate[0], first.Certificate[0]) {
				t.Fatal("the certificate of before is not shown")
			}
			if again.Followed() {
				t.Error("the new one has signed nothing")
			}
		})
	}
	again := newManager(t, s, file)
	again.Cluster, again.Told = both, true
	stop = run(t, again)
	defer stop()
	again.Addresses(addresses("192.0.2.1"))
	for deadline := time.Now().Add(time.Minute); !again.Followed(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no certificate of the new one within a minute")
		}
	}
}

// FuzzStored: a damaged file is refused, whatever is in it.
func FuzzStored(f *testing.F) {
	m := &Manager{NodeName: "n1", Cluster: []byte("ca")}
	f.Add(string(m.header()))
	f.Add(string(m.header()) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, data string) {
		if c, err := m.decode([]byte(data)); err == nil && (c.Leaf == nil || !strings.HasPrefix(data, string(m.header()))) {
			t.Errorf("%q was taken", data)
		}
	})
}

// TestNewCA: with another CA that signs a certificate of it is asked for, and kept for
// the next start; a second CA that is only believed changes nothing.
func TestNewCA(t *testing.T) {
	s, next := newSigner(t, time.Hour), newSigner(t, time.Hour)
	bundle := func(list ...*signer) (out []byte) {
		for _, s := range list {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})...)
		}
		return out
	}
	file := filepath.Join(t.TempDir(), "serving.pem")
	m := newManager(t, s, file)
	m.Cluster = bundle(s)
	stop := run(t, m)
	m.Addresses(addresses("192.0.2.1"))
	first := await(t, m, nil, "192.0.2.1")
	m.SetCluster(bundle(s, next), true)
	if !m.Followed() {
		t.Error("a CA that does not sign yet is to have signed")
	}
	s.cert, s.key = next.cert, next.key
	m.SetCluster(bundle(next, s), true)
	await(t, m, first, "192.0.2.1")
	if !m.Followed() {
		t.Error("the new one has not signed")
	}
	stop()
	again := newManager(t, s, file)
	again.Cluster = bundle(next, s)
	again.load()
	if c, _ := again.Certificate(nil); c == again.SelfSigned || c.Leaf.CheckSignatureFrom(next.cert) != nil {
		t.Error("it is not there after a restart")
	}
}

// TestClocks: a certificate that has not begun is asked for anew once, at once when somebody
// has set the clock: the cluster's clock was ahead when it signed. If the next has not begun
// either, it is this node's clock that is behind, and one an hour is enough.
func TestClocks(t *testing.T) {
	s := newSigner(t, time.Hour)
	s.ahead.Store(int64(24 * time.Hour))
	m := newManager(t, s, filepath.Join(t.TempDir(), "serving.pem"))
	stop := run(t, m)
	defer stop()
	m.Addresses(addresses("192.0.2.1"))
	await(t, m, nil, "192.0.2.1")
	m.Look()
	time.Sleep(200 * time.Millisecond)
	if n := s.signed.Load(); n != 1 {
		t.Errorf("%d certificates were asked for while the clock is behind", n)
	}
	ahead := *m.current.Load()
	ahead.early = false // as if all clocks had been ahead then
	m.current.Store(&ahead)
	s.ahead.Store(0)
	m.Look()
	second := await(t, m, &ahead.Certificate, "192.0.2.1")
	if second.Leaf.NotBefore.After(time.Now()) {
		t.Error("the next has not begun either")
	}
	m.Look()
	time.Sleep(200 * time.Millisecond)
	if n := s.signed.Load(); n != 2 {
		t.Errorf("%d certificates were asked for", n)
	}
}

// TestLongWait: the time of renewal is by a clock that may be set meanwhile, so that nothing
// waits for longer than an hour without a look at it.
func TestLongWait(t *testing.T) {
	s := newSigner(t, 365*24*time.Hour)
	m := newManager(t, s, filepath.Join(t.TempDir(), "serving.pem"))
	m.Addresses(addresses("192.0.2.1"))
	stop := run(t, m)
	await(t, m, nil, "192.0.2.1")
	stop()
	for name, c := range map[string]struct {
		ahead time.Duration
		early bool
		want  time.Duration
	}{
		"a year's": {0, false, 255 * 24 * time.Hour},
		"nearly over, by a clock that was set forward": {-364 * 24 * time.Hour, false, -time.Hour},
		"not begun":                   {time.Hour, false, 0},
		"this node's clock is behind": {time.Hour, true, lookEvery},
	} {
		leaf := *m.current.Load().Leaf
		leaf.NotBefore, leaf.NotAfter = leaf.NotBefore.Add(c.ahead), leaf.NotAfter.Add(c.ahead)
		one := newSigned(tls.Certificate{Leaf: &leaf}, nil)
		one.early = c.early
		left := one.left(time.Now())
		exact := c.want >= 0 && c.want <= lookEvery
		if exact && left != c.want || c.want < 0 && left > c.want || c.want > 0 && left < c.want {
			t.Errorf("%s: %v", name, left)
		}
		if c.want > lookEvery {
			m.current.Store(&signed{Certificate: m.current.Load().Certificate, renew: one.renew})
			if _, only := m.due(m.wanted, 0); !only {
				t.Errorf("%s: it waits for %v without a look at the clock", name, left)
			}
		}
	}
}
