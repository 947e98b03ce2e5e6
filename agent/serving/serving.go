package serving

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"github.com/shoal-project/shoal/agent/metrics"
)

const (
	// patience is how long a request may be open until the log tells of it, and
	// openTime how long it is waited for: then another one is made, for a request
	// may have been deleted.
	patience = 30 * time.Second
	openTime = 15 * time.Minute
	// backdate is by how much a signer lets certificates begin before they are made.
	backdate = 5 * time.Minute
	// A request that failed is made again after firstPause, doubled up to lastPause.
	firstPause = time.Second
	lastPause  = time.Minute
	// lookEvery is how long a wait is at most: the clock may be set meanwhile.
	lookEvery = time.Hour
)

// Manager keeps one node's serving certificate.
type Manager struct {
	Client   kubernetes.Interface
	NodeName string
	// File holds certificate and key. Cluster is the CA of the cluster that the
	// file must be of: another cluster's certificate is not used.
	File string
	// SetCluster replaces Cluster when the cluster's CAs change; the first signs.
	Cluster []byte
	// Told: Cluster is what the cluster itself has told, before this start too, and its
	// first CA signs; a kubeconfig may list CAs in any order.
	Told bool
	// SelfSigned serves until there is a certificate of the cluster.
	SelfSigned *tls.Certificate
	// Failures counts requests for a certificate that failed; nil: nobody asks.
	Failures *metrics.Counts
	Log      *slog.Logger

	once    sync.Once
	wake    chan struct{}
	current atomic.Pointer[signed]
	keeping sync.Mutex // what is shown is what is in the file

	mu     sync.Mutex
	wanted *x509.CertificateRequest
	// outdated ends the wait for what is not wanted any more.
	outdated context.CancelFunc
}

// signed is a certificate of the cluster and the time to ask for the next.
type signed struct {
	tls.Certificate
	renew time.Time
	pem   []byte
	// early: it had not begun by this node's clock when the cluster had just signed it, so
	// that it is this clock that is behind.
	early bool
}

// left is how long there is until the next one is asked for. One that has not begun may be
// of a time at which the cluster's clock was ahead: nobody believes it.
func (c *signed) left(now time.Time) time.Duration {
	switch {
	case !now.Before(c.Leaf.NotBefore):
		return c.renew.Sub(now)
	case c.early:
		return lookEvery
	}
	return 0
}

// newSigned chooses the time of renewal as upstream's kubelet does: at 70 to 90 %
// of the certificate's life, so that nodes that joined together do not ask together.
func newSigned(c tls.Certificate, pem []byte) *signed {
	begin := c.Leaf.NotBefore
	if backdated := begin.Add(backdate); backdated.Before(c.Leaf.NotAfter) {
		begin = backdated // else a life of minutes would be over from the start
	}
	life := c.Leaf.NotAfter.Sub(begin)
	return &signed{Certificate: c, renew: begin.Add(time.Duration(float64(life) * (0.7 + 0.2*rand.Float64()))), pem: pem}
}

func (m *Manager) waker() chan struct{} {
	m.once.Do(func() { m.wake = make(chan struct{}, 1) })
	return m.wake
}

// Certificate is for tls.Config.GetCertificate.
func (m *Manager) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := m.current.Load(); c != nil && time.Now().Before(c.Leaf.NotAfter) {
		return &c.Certificate, nil
	}
	return m.SelfSigned, nil
}

// Addresses takes what the Node says in the API: the certificate is for that.
func (m *Manager) Addresses(list []corev1.NodeAddress) {
	next := m.request(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	if next == nil || same(next, m.wanted) {
		return
	}
	m.wanted = next
	if m.outdated != nil {
		m.outdated()
	}
	m.Look()
}

// request is what the node asks for; nil while it has no address.
func (m *Manager) request(list []corev1.NodeAddress) *x509.CertificateRequest {
	r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + m.NodeName, Organization: []string{"system:nodes"}}}
	for _, a := range list {
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			if ip := net.ParseIP(a.Address); ip != nil {
				r.IPAddresses = append(r.IPAddresses, ip)
			}
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
			// A host name may be an address.
			if ip := net.ParseIP(a.Address); ip != nil {
				r.IPAddresses = append(r.IPAddresses, ip)
			} else {
				r.DNSNames = append(r.DNSNames, a.Address)
			}
		}
	}
	if len(r.DNSNames) == 0 && len(r.IPAddresses) == 0 {
		return nil
	}
	slices.Sort(r.DNSNames)
	r.DNSNames = slices.Compact(r.DNSNames)
	slices.SortFunc(r.IPAddresses, func(a, b net.IP) int { return slices.Compare(a, b) })
	r.IPAddresses = slices.CompactFunc(r.IPAddresses, net.IP.Equal)
	return r
}

func same(a, b *x509.CertificateRequest) bool {
	return b != nil && slices.Equal(a.DNSNames, b.DNSNames) &&
		slices.EqualFunc(a.IPAddresses, b.IPAddresses, net.IP.Equal)
}

// Run asks for certificates until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	m.load()
	var pause time.Duration
	told := false
	for {
		ask, done, r := m.next(ctx)
		due, only := m.due(r, pause)
		select {
		case <-ctx.Done():
			done()
			return nil
		case <-m.waker():
			done()
			pause = 0
			continue
		case <-due:
		}
		if only {
			done()
			pause = 0
			continue
		}
		err := m.obtain(ask, r, &told)
		superseded := ask.Err() != nil
		done()
		switch {
		case err == nil:
			pause, told = firstPause, false
		case superseded:
			pause = 0
		default:
			m.Failures.Inc()
			m.Log.Debug("no serving certificate yet", "err", err)
			pause = min(max(2*pause, firstPause), lastPause)
		}
	}
}

// next is what is wanted now, and a context that ends when something else is.
func (m *Manager) next(ctx context.Context) (context.Context, context.CancelFunc, *x509.CertificateRequest) {
	ctx, cancel := context.WithCancel(ctx)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outdated = cancel
	return ctx, cancel, m.wanted
}

// Look has the certificate looked at: somebody has set the clock.
func (m *Manager) Look() {
	select {
	case m.waker() <- struct{}{}:
	default:
	}
}

// due tells when to ask for r: never while the addresses are not known, after a
// pause when there is no certificate for them, or else when that gets old. only: then it
// is only to be looked at again.
func (m *Manager) due(r *x509.CertificateRequest, pause time.Duration) (at <-chan time.Time, only bool) {
	if r == nil {
		return nil, false
	}
	if c := m.current.Load(); c != nil && covers(c.Leaf, r) && m.Followed() {
		left := c.left(time.Now())
		pause, only = max(pause, min(left, lookEvery)), left > lookEvery
	}
	return time.After(pause), only
}

// obtain makes a key, has the cluster sign a certificate for it, and takes that.
func (m *Manager) obtain(ctx context.Context, r *x509.CertificateRequest, told *bool) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader)
	if err != nil {
		return err
	}
	request, err := cert.MakeCSRFromTemplate(key, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if !*told {
		late := time.AfterFunc(patience, func() { m.tell(r) })
		defer func() { *told = !late.Stop() }()
	}
	name, uid, err := csr.RequestCertificateWithContext(ctx, m.Client, request,
		"", certificatesv1.KubeletServingSignerName, nil,
		certificate.DefaultKubeletServingGetUsages(key), key)
	if err != nil {
		return err
	}
	certPEM, err := csr.WaitForCertificate(ctx, m.Client, name, uid)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if err := m.take(certPEM, keyPEM); err != nil {
		return err
	}
	if !covers(m.current.Load().Leaf, r) {
		return errors.New("the signed certificate is not for all that was asked")
	}
	if !m.Followed() {
		return errors.New("the cluster has signed with the CA that goes")
	}
	return nil
}

// tell says that the certificate is late, and what may be done.
func (m *Manager) tell(r *x509.CertificateRequest) {
	m.Log.Warn(
		"the cluster has not signed this node's serving certificate yet: the API server may refuse to show logs and to exec; "+
			"see `kubectl get csr`, and approve the request if its names and addresses are this node's",
		"names", r.DNSNames, "addresses", r.IPAddresses)
}

// covers tells whether a certificate has all that r asks for, and is still good.
func covers(c *x509.Certificate, r *x509.CertificateRequest) bool {
	if time.Now().After(c.NotAfter) {
		return false
	}
	for _, name := range r.DNSNames {
		if c.VerifyHostname(name) != nil {
			return false
		}
	}
	for _, ip := range r.IPAddresses {
		if c.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}
