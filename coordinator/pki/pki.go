package pki

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Lifetimes. A certificate is renewed when less than a third of it is left; CertLifetime
// is that of those for which nothing else is said.
const (
	CALifetime   = 10 * 365 * 24 * time.Hour
	CertLifetime = 365 * 24 * time.Hour
	// backdate covers machines whose clock is a little behind.
	backdate = 5 * time.Minute
)

// Dir is the directory of the cluster's keys. The file names are kubeadm's.
type Dir string

// Names of files in the directory that others than the API server read.
const (
	CAFile        = "ca.crt"
	GossipKeyFile = "gossip.key"
)

// Certificates that the coordinator makes for itself, without the files' extensions.
const (
	servingCert       = "apiserver"
	kubeletClientCert = "apiserver-kubelet-client"
	frontProxyCert    = "front-proxy-client"
	peerCert          = "etcd/peer"
)

// Path returns the path of a file in the directory.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// Cluster is what the API server's certificate depends on.
type Cluster struct {
	// Names and IPs by which clients reach the API server, beside the built-in
	// ones (localhost, kubernetes.default.svc…).
	Names []string
	IPs   []net.IP
	// Domain is the cluster's DNS domain.
	Domain string
	// Lifetime of the certificates is CertLifetime when zero.
	Lifetime time.Duration
}

// Ensure makes what is missing and renews certificates that end soon. A CA is
// never renewed by itself: all that it signed would end with it.
func (d Dir) Ensure(c Cluster, now time.Time) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("make keys: %w", err)
	}
	if err := d.whole(func() error { return nil }); err != nil {
		return err
	}
	ca, err := d.ensureCA("ca", "shoal-ca", now)
	if err != nil {
		return err
	}
	front, err := d.ensureCA("front-proxy-ca", "shoal-front-proxy-ca", now)
	if err != nil {
		return err
	}
	names, ips := ServingNames(c)
	for _, want := range []struct {
		name string
		by   *Authority
		spec Spec
	}{
		{servingCert, ca, Spec{User: "kube-apiserver", Names: names, IPs: ips, Server: true}},
		{kubeletClientCert, ca, Spec{User: "kube-apiserver-kubelet-client", Groups: []string{KubeletClientGroup}}},
		{frontProxyCert, front, Spec{User: "front-proxy-client"}},
	} {
		want.spec.Lifetime = c.Lifetime
		if err := d.ensureCert(want.name, want.by, want.spec, now); err != nil {
			return err
		}
	}
	if err := d.ensureServiceAccountKey(); err != nil {
		return err
	}
	return d.ensureGossipKey()
}

// ServingNames are the names and addresses in the API server's certificate.
func ServingNames(c Cluster) ([]string, []net.IP) {
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	if c.Domain != "" {
		names = append(names, "kubernetes.default.svc."+c.Domain)
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	return append(names, c.Names...), append(ips, c.IPs...)
}

// CA loads the cluster's certificate authority.
func (d Dir) CA() (*Authority, error) {
	for until := time.Now().Add(replaceTime); ; time.Sleep(10 * time.Millisecond) {
		ca, err := d.loadCA("ca")
		if err != nil || same(ca.key.Public(), ca.Cert.PublicKey) {
			return ca, err
		}
		if time.Now().After(until) { // else the coordinator replaces both just now
			return nil, fmt.Errorf("load %s: the key is not that of the first certificate in %s; put both back from a backup",
				d.Path("ca.key"), CAFile)
		}
	}
}

// Authority signs certificates.
type Authority struct {
	Cert *x509.Certificate
	// PEM is Cert encoded.
	PEM []byte
	key crypto.Signer
}

// Key signs what is no certificate: gossip grants.
func (a *Authority) Key() crypto.Signer { return a.key }

// Spec is what a certificate says.
type Spec struct {
	// User and Groups are the subject's common name and organizations.
	User   string
	Groups []string
	Names  []string
	IPs    []net.IP
	// Server makes a serving certificate; else it is a client's. Client beside it makes
	// one for both.
	Server, Client bool
	// Lifetime is CertLifetime when zero.
	Lifetime time.Duration
}

// Issue returns a new key and its certificate, PEM encoded.
func (a *Authority) Issue(s Spec, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key of %s: %w", s.User, err)
	}
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if s.Server {
		usage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}
	if s.Server && s.Client {
		usage = append(usage, x509.ExtKeyUsageClientAuth)
	}
	if s.Lifetime == 0 {
		s.Lifetime = CertLifetime
	}
	template, err := newTemplate(pkix.Name{CommonName: s.User, Organization: s.Groups}, now, s.Lifetime)
	if err != nil {
		return nil, nil, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = usage
	template.DNSNames, template.IPAddresses = s.Names, s.IPs
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate of %s: %w", s.User, err)
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(der), keyPEM, err
}

func newTemplate(subject pkix.Name, now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: subject,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(lifetime), BasicConstraintsValid: true,
	}, nil
}

func (d Dir) ensureCA(name, subject string, now time.Time) (*Authority, error) {
	ca, err := d.loadCA(name)
	if err == nil && now.After(ca.Cert.NotAfter) {
		return nil,
			fmt.Errorf(
				"load %s: this CA expired on %s, and all that it signed with it; move %s and %s away and start again to make a new one, "+
					"then give users and further nodes new kubeconfigs (shoal-coordinator kubeconfig)",
				d.Path(name+".crt"), ca.Cert.NotAfter.Format(time.RFC3339), name+".crt", name+".key")
	}
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return ca, err
	}
	if _, err := os.Stat(d.Path(name + ".crt")); err == nil {
		return nil, fmt.Errorf("load %s: the key is missing; put it back from a backup", d.Path(name+".key"))
	}
	// The certificate alone is made again of its key: what was signed stays good, and
	// those who have the one before believe what this one signs.
	var key *ecdsa.PrivateKey
	var keyPEM []byte
	switch kept, err := d.loadKey(name); {
	case err == nil:
		ours, ok := kept.(*ecdsa.PrivateKey)
		if !ok {
			return nil, fmt.Errorf("load %s: the certificate is missing; put it back from a backup", d.Path(name+".crt"))
		}
		key = ours
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	default:
		if key, keyPEM, err = newKey(); err != nil {
			return nil, fmt.Errorf("make %s: %w", name, err)
		}
	}
	certPEM, err := newCA(key, subject, now)
	if err != nil {
		return nil, err
	}
	if keyPEM != nil {
		err = d.writePair(name, certPEM, keyPEM)
	} else {
		err = WriteFile(d.Path(name+".crt"), certPEM, 0o644)
	}
	if err != nil {
		return nil, err
	}
	return d.loadCA(name)
}

func (d Dir) loadCert(name string) (cert *x509.Certificate, certPEM []byte, err error) {
	if certPEM, err = os.ReadFile(d.Path(name + ".crt")); err != nil {
		return nil, nil, loadError(name, err)
	}
	if cert, err = parseCert(certPEM); err != nil {
		return nil, nil, fmt.Errorf("load %s: %w; put it back from a backup", d.Path(name+".crt"), err)
	}
	return cert, certPEM, nil
}

func (d Dir) loadCA(name string) (*Authority, error) {
	cert, certPEM, err := d.loadCert(name)
	if err != nil {
		return nil, err
	}
	key, err := d.loadKey(name)
	if err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, PEM: certPEM, key: key}, nil
}

func (d Dir) loadKey(name string) (crypto.Signer, error) {
	data, err := os.ReadFile(d.Path(name + ".key"))
	if err != nil {
		return nil, loadError(name, err)
	}
	key, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("load %s: %w; put it back from a backup", d.Path(name+".key"), err)
	}
	return key, nil
}

// loadError says what to do about a file that is there and cannot be read.
func loadError(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("load %s: %w", name, err)
	}
	return fmt.Errorf("load %s: %w; put it back from a backup", name, err)
}

func (d Dir) ensureCert(name string, by *Authority, s Spec, now time.Time) error {
	if d.fresh(name, by, s, now) {
		return nil
	}
	certPEM, keyPEM, err := by.Issue(s, now)
	if err != nil {
		return err
	}
	return d.writePair(name, certPEM, keyPEM)
}

// fresh tells whether the certificate on disk says what s says, was signed by
// by, belongs to its key, has begun and has a third of its life left, and no more than s
// gives: one that was made while the clock was ahead is made again once the clock is right.
func (d Dir) fresh(name string, by *Authority, s Spec, now time.Time) bool {
	cert, _, err := d.loadCert(name)
	if err != nil || cert.CheckSignatureFrom(by.Cert) != nil {
		return false
	}
	key, err := d.loadKey(name)
	if err != nil {
		return false
	}
	public, ok := key.Public().(*ecdsa.PublicKey)
	if !ok || !public.Equal(cert.PublicKey) {
		return false
	}
	begun, left := !now.Before(cert.NotBefore), cert.NotAfter.Sub(now)
	return begun && !endsSoon(cert, now) && left <= cmp.Or(s.Lifetime, CertLifetime)+backdate && covers(cert, s)
}

func endsSoon(cert *x509.Certificate, now time.Time) bool { return now.After(renewal(cert)) }

// renewal is when a third of a certificate's life is left. That it began earlier than it
// was made is none of its life.
func renewal(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-cert.NotAfter.Sub(cert.NotBefore.Add(backdate)) / 3)
}

// Renewal is when the first of the certificates ends soon that Ensure makes, and with
// peer EnsurePeer, too: they do something then.
func (d Dir) Renewal(peer bool) (first time.Time, err error) {
	names := []string{servingCert, kubeletClientCert, frontProxyCert}
	if peer {
		names = append(names, peerCert)
	}
	for _, name := range names {
		cert, _, err := d.loadCert(name)
		if err != nil {
			return first, err
		}
		if at := renewal(cert); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first, nil
}

func covers(cert *x509.Certificate, s Spec) bool {
	for _, n := range s.Names {
		if cert.VerifyHostname(n) != nil {
			return false
		}
	}
	for _, ip := range s.IPs {
		if a, ok := netip.AddrFromSlice(ip); !ok || cert.VerifyHostname(a.Unmap().String()) != nil {
			return false
		}
	}
	return cert.Subject.CommonName == s.User &&
		slices.Equal(slices.Sorted(slices.Values(cert.Subject.Organization)), slices.Sorted(slices.Values(s.Groups)))
}

func (d Dir) ensureServiceAccountKey() error {
	_, err := d.loadKey("sa")
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	public, err := encodePublic(key.Public())
	if err != nil {
		return fmt.Errorf("make service account key: %w", err)
	}
	if err := WriteFile(d.Path("sa.pub"), public, 0o644); err != nil {
		return err
	}
	return WriteFile(d.Path("sa.key"), keyPEM, 0o600)
}

// ensureGossipKey makes gossip.key: 32 random bytes in base64. Whoever rotates
// it adds lines (agent/gossip, Keyring), so what is there is only looked at.
func (d Dir) ensureGossipKey() error {
	path := d.Path(GossipKeyFile)
	data, err := os.ReadFile(path)
	if err == nil {
		for line := range bytes.Lines(data) {
			line = bytes.TrimSpace(line)
			if raw, err := base64.StdEncoding.DecodeString(string(line)); err == nil && len(raw) == 32 {
				return nil
			}
		}
		return fmt.Errorf(
			"load %s: no line is 32 bytes in base64; put it back from a backup, or remove it and restart all members",
			path)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("load gossip key: %w", err)
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("make gossip key: %w", err)
	}
	return WriteFile(path, []byte(base64.StdEncoding.EncodeToString(raw)+"\n"), 0o600)
}

func (d Dir) writePair(name string, certPEM, keyPEM []byte) error {
	if err := WriteFile(d.Path(name+".key"), keyPEM, 0o600); err != nil {
		return err
	}
	return WriteFile(d.Path(name+".crt"), certPEM, 0o644)
}

// WriteFile replaces a file's content at once: a reader, or a crash, sees the
// old or the new content, nothing between. The file's owner stays: root may do
// this for a daemon that is not root.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	return writeFile(path, data, mode, nil)
}

// writeFile gives a file that was not there to the owner of another; nil: to who writes.
func writeFile(path string, data []byte, mode os.FileMode, owner fs.FileInfo) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(data)
	if info, statErr := os.Stat(path); statErr == nil {
		owner = info
	}
	if owner != nil && os.Geteuid() == 0 {
		st := owner.Sys().(*syscall.Stat_t)
		err = errors.Join(err, f.Chown(int(st.Uid), int(st.Gid)))
	}
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = errors.Join(moveDirAside(path), os.Rename(f.Name(), path))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// moveDirAside makes room for a file where a directory is.
func moveDirAside(path string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return nil
	}
	aside := path + ".damaged"
	return errors.Join(os.RemoveAll(aside), os.Rename(path, aside))
}

// EncodeCertificate returns a certificate in PEM.
func EncodeCertificate(c *x509.Certificate) []byte { return encodeCert(c.Raw) }

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM certificate in it")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM key in it")
	}
	if key, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	if key, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return key, nil
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return signer, nil
}

// ServiceAccountKey loads the key that signs service account tokens.
func (d Dir) ServiceAccountKey() (crypto.Signer, error) { return d.loadKey("sa") }
