package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/lru"
)

// maxTransports bounds how many nodes' connections are kept for reuse.
const maxTransports = 1024

// nodePrefix begins the common name of a node's certificates; apiServer is that of
// the API server's own, which the same CA signs.
const (
	nodePrefix = "system:node:"
	apiServer  = "kube-apiserver"
)

// Config is what New needs.
type Config struct {
	// CertFile and KeyFile are the API server's client certificate. They are read
	// for each connection, so that a renewed one needs no restart; while they do not
	// fit each other, as between two writes, the pair that did last is shown.
	CertFile, KeyFile string
	// Authorities sign kubelets' serving certificates; nil: nothing is verified.
	Authorities *x509.CertPool
	// Reverse has the connections of nodes that cannot be dialled; nil: all can.
	Reverse *Reverse
}

// Transports hands out a transport for each node, so that the certificate of one
// node is not taken for that of another.
type Transports struct {
	config Config
	last   atomic.Pointer[tls.Certificate] // that fitted its key

	mu     sync.Mutex
	byNode *lru.Cache
}

// New returns the transports. It fails when the client certificate cannot be read.
func New(c Config) (*Transports, error) {
	t := &Transports{config: c}
	if _, err := t.clientCertificate(nil); err != nil {
		return nil, err
	}
	t.byNode = lru.NewWithEvictionFunc(maxTransports, func(_ lru.Key, v any) {
		if transport, ok := v.(*http.Transport); ok {
			transport.CloseIdleConnections()
		}
	})
	return t, nil
}

// SetAuthorities has other CAs believed, by new connections.
func (t *Transports) SetAuthorities(pool *x509.CertPool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.config.Authorities = pool
	t.byNode.Clear()
}

// Reconnect has further requests use new connections: kubelets refuse those that showed
// them a certificate that has ended since. Requests under way go on.
func (t *Transports) Reconnect() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byNode.Clear()
}

// To returns the transport to a node's kubelet.
func (t *Transports) To(node string) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.byNode.Get(node); ok {
		return known.(*http.Transport)
	}
	transport := &http.Transport{
		TLSClientConfig:     t.tls(node),
		DialContext:         t.dial(node),
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: 10 * time.Second,
	}
	t.byNode.Add(node, transport)
	return transport
}

type dialerKey struct{}

// WithDialer has the transports' DialContext dial by this one.
func WithDialer(ctx context.Context, d *net.Dialer) context.Context {
	return context.WithValue(ctx, dialerKey{}, d)
}

// usual dials for whoever asks for no other.
var usual = &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}

func dialer(ctx context.Context) *net.Dialer {
	if d, ok := ctx.Value(dialerKey{}).(*net.Dialer); ok {
		return d
	}
	return usual
}

// dial reaches a node by the connection that it keeps, if there is one: it keeps one only
// where nobody could dial it. What goes through is TLS in both cases, by tls.
func (t *Transports) dial(node string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		direct := dialer(ctx)
		if t.config.Reverse == nil {
			return direct.DialContext(ctx, network, address)
		}
		arrived := t.config.Reverse.arrival()
		c, there, err := t.config.Reverse.Dial(ctx, node, address)
		if there && err == nil {
			return c, nil
		}
		return t.dialBoth(ctx, direct, node, network, address, arrived, err)
	}
}

// dialBoth dials a node, and takes its connection if that comes meanwhile, as after a restart
// of either side. failed is why the connection that was there does not do.
func (t *Transports) dialBoth(
	ctx context.Context, direct *net.Dialer, node, network, address string, arrived <-chan struct{}, failed error,
) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type attempt struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan attempt, 1)
	go func() {
		c, err := direct.DialContext(ctx, network, address)
		dialled <- attempt{c, err}
	}()
	for {
		select {
		case d := <-dialled:
			if d.err != nil {
				return nil, errors.Join(d.err, failed)
			}
			return d.conn, nil
		case <-arrived:
			arrived = t.config.Reverse.arrival()
			c, there, err := t.config.Reverse.Dial(ctx, node, address)
			if !there || err != nil {
				failed = err
				continue
			}
			go func() {
				if d := <-dialled; d.conn != nil {
					_ = d.conn.Close()
				}
			}()
			return c, nil
		}
	}
}

func (t *Transports) tls(node string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, GetClientCertificate: t.clientCertificate}
	if t.config.Authorities == nil {
		c.InsecureSkipVerify = true
		return c
	}
	c.RootCAs = t.config.Authorities
	c.VerifyConnection = func(s tls.ConnectionState) error { return checkName(s.PeerCertificates, node) }
	return c
}

func (t *Transports) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(t.config.CertFile, t.config.KeyFile)
	if err == nil {
		t.last.Store(&cert)
		return &cert, nil
	}
	if last := t.last.Load(); last != nil {
		return last, nil
	}
	return nil, fmt.Errorf("load kubelet client certificate: %w", err)
}

// checkName refuses the certificate of another node, or of an API server: a node
// tells its addresses itself, and could tell those of a neighbour (KEP-4872), or
// send the API server to itself. Names of another form are an administrator's
// choice; the address has been verified before.
func checkName(chain []*x509.Certificate, node string) error {
	if len(chain) == 0 {
		return fmt.Errorf("the kubelet of node %q shows no certificate", node)
	}
	common := chain[0].Subject.CommonName
	if common == apiServer {
		return fmt.Errorf("x509: certificate is of an API server, not of node %q", node)
	}
	if name, ok := strings.CutPrefix(common, nodePrefix); ok && name != node {
		return fmt.Errorf("x509: certificate is of node %q, not of node %q", name, node)
	}
	return nil
}
