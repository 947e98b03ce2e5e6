package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

// Limits of a connection to another node.
const (
	dialTime   = 3 * time.Second
	headerTime = 5 * time.Second
	idleTime   = 30 * time.Second
	maxHeader  = 16 << 10
	perNode    = 8 // connections
)

// nodesGroup is the organization of nodes' certificates, nodePrefix begins their names.
const (
	nodesGroup = "system:nodes"
	nodePrefix = "system:node:"
)

// newTransport reaches nodes by their names, over TLS with certificates of the cluster on
// both sides.
func (p *Peers) newTransport() *http.Transport {
	return &http.Transport{
		DialTLSContext:         p.dial,
		DisableCompression:     true,
		ResponseHeaderTimeout:  headerTime,
		MaxResponseHeaderBytes: maxHeader,
		MaxConnsPerHost:        perNode,
		MaxIdleConnsPerHost:    perNode,
		IdleConnTimeout:        idleTime,
	}
}

var errUnknown = errors.New("no such node is alive")

func (p *Peers) dial(ctx context.Context, _, address string) (net.Conn, error) {
	node, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	members := p.cfg.Members()
	i := slices.IndexFunc(members, func(m Member) bool { return m.Name == node })
	if i < 0 {
		return nil, errUnknown
	}
	own, roots, err := p.cfg.Credentials()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{
		MinVersion:   tls.VersionTLS13, // whose sessions have a key that can be exported
		Certificates: []tls.Certificate{*own},
		NextProtos:   []string{"http/1.1"},
		// What Go would verify is a name among the certificate's addresses; a kubelet's
		// says by its subject whose it is. VerifyConnection verifies all there is.
		InsecureSkipVerify: true,
		VerifyConnection:   func(s tls.ConnectionState) error { return verifyNode(s, roots, node) },
	}}
	return d.DialContext(ctx, "tcp", net.JoinHostPort(members[i].Addr.String(), port))
}

// verifyNode tells whether the other end is that node, by a certificate that the cluster
// has signed for it as a server.
func verifyNode(s tls.ConnectionState, roots *x509.CertPool, node string) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the node shows no certificate")
	}
	leaf, middle := s.PeerCertificates[0], x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		middle.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err != nil {
		return fmt.Errorf("certificate of node %s: %w", node, err)
	}
	if leaf.Subject.CommonName != nodePrefix+node || !slices.Contains(leaf.Subject.Organization, nodesGroup) {
		return fmt.Errorf("the certificate is that of %q, not of node %s", leaf.Subject.CommonName, node)
	}
	return nil
}
