package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// transport leads requests to a coordinator that lives, by the node's certificate of
// now. With a new certificate new requests take new connections; what goes on upon the
// old ones, watches above all, ends there in its own time.
type transport struct {
	coordinators *coordinators
	plain        rest.Config // what else the kubeconfig says
	current      atomic.Pointer[http.Transport]
}

// newTransport is nil for a kubeconfig whose connection others must make: without
// verification, or with a program that says who asks.
func newTransport(rc *rest.Config, node, file string, c Credentials) (*transport, error) {
	u, err := url.Parse(rc.Host)
	if err != nil || u.Scheme != "https" || rc.Insecure || rc.ExecProvider != nil || rc.AuthProvider != nil ||
		len(c.CA) == 0 {
		return nil, nil
	}
	t := &transport{plain: *rc, coordinators: &coordinators{
		own: u.Host, ownName: rc.ServerName, node: node, file: file, dial: rc.Dial, conns: map[*conn]struct{}{},
		useless: map[string]int{}, doubted: map[string]time.Time{},
	}}
	if u.Port() == "" {
		t.coordinators.own = net.JoinHostPort(u.Hostname(), "443")
	}
	if rc.ServerName == "" {
		t.coordinators.ownName = u.Hostname()
	}
	if rc.Dial == nil {
		t.coordinators.dial = (&net.Dialer{Timeout: connectTime, KeepAlive: 30 * time.Second}).DialContext
	}
	t.coordinators.restore()
	return t, t.use(c)
}

// use has new connections made with these credentials.
func (t *transport) use(c Credentials) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CA) {
		return errors.New("no certificate in the cluster's CA")
	}
	conf := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ServerName: t.plain.ServerName}
	if len(c.Cert) > 0 {
		pair, err := tls.X509KeyPair(c.Cert, c.Key)
		if err != nil {
			return fmt.Errorf("client certificate: %w", err)
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	t.replace(conf)
	return nil
}

// renew has new requests take new connections, with the credentials of now.
func (t *transport) renew() { t.replace(t.current.Load().TLSClientConfig.Clone()) }

func (t *transport) replace(conf *tls.Config) {
	next := utilnet.SetTransportDefaults(&http.Transport{
		Proxy:               t.plain.Proxy,
		TLSClientConfig:     conf,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25,
		DisableCompression:  t.plain.DisableCompression,
	})
	next.DialTLSContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return t.coordinators.connect(ctx, network, handshake(next.TLSClientConfig))
	}
	if old := t.current.Swap(next); old != nil {
		old.CloseIdleConnections()
	}
}

// connectTime bounds connecting to one coordinator, whose kernel answers at once where
// there is one: a lost packet is sent again after one second and after three. While it
// lasts, a pod that asks for something waits.
const connectTime = 5 * time.Second

// handshakeTime bounds the handshake with one coordinator.
const handshakeTime = 10 * time.Second

func handshake(conf *tls.Config) func(context.Context, net.Conn, string) (net.Conn, error) {
	return func(ctx context.Context, c net.Conn, name string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, handshakeTime)
		defer cancel()
		own := conf.Clone()
		own.ServerName = name
		verified := tls.Client(c, own)
		return verified, verified.HandshakeContext(ctx)
	}
}

// to connects to one coordinator by HTTP/1.1, as requests are led to any.
func (t *transport) to(ctx context.Context, address string) (net.Conn, error) {
	raw, err := t.coordinators.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conf := t.current.Load().TLSClientConfig.Clone()
	conf.NextProtos = []string{"http/1.1"}
	c, err := handshake(conf)(ctx, raw, serverName)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", address, err), raw.Close())
	}
	return c, nil
}

// config is the kubeconfig's with this transport in the place of its own.
func (t *transport) config(rc *rest.Config) *rest.Config {
	c := rest.CopyConfig(rc)
	c.TLSClientConfig, c.Dial, c.Proxy, c.Transport = rest.TLSClientConfig{}, nil, nil, t
	return c
}
