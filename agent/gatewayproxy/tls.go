package gatewayproxy

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"strings"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// serverTLS ends TLS for a listener. TLS 1.2 is the least, as Go's default is.
func (s *state) serverTLS(l *gatewayfeed.Listener) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if l.Protocol == gatewayfeed.HTTPS {
		c.NextProtos = []string{"h2", "http/1.1"}
	}
	var list []*tls.Certificate
	for _, name := range l.Certificates {
		if pair := s.certificates[name]; pair != nil {
			list = append(list, pair)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("it has no certificate that can be read")
	}
	c.GetCertificate = func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(list, h), nil }
	if a := l.Clients; a != nil {
		s.verifyClients(c, a)
	}
	return c, nil
}

// certificate is the first that has the name, or the first of all: what it is worth is
// for the client to say.
func certificate(list []*tls.Certificate, h *tls.ClientHelloInfo) *tls.Certificate {
	for _, pair := range list {
		if h.SupportsCertificate(pair) == nil {
			return pair
		}
	}
	return list[0]
}

// verifyClients has clients show a certificate that one of several bundles vouches for.
func (s *state) verifyClients(c *tls.Config, a *gatewayfeed.ClientAuth) {
	if a.Insecure {
		c.ClientAuth = tls.RequestClientCert
		return
	}
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		between := x509.NewCertPool()
		for _, p := range cs.PeerCertificates[1:] {
			between.AddCert(p)
		}
		err := errors.New("nobody vouches for clients")
		for _, name := range a.Authorities {
			_, err = cs.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots:         s.authorities[name],
				Intermediates: between,
				KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
			})
			if err == nil {
				return nil
			}
		}
		return err
	}
}

// streamFor finds the route of connections for a name: the one with the most exact.
func streamFor(list []gatewayfeed.Stream, name string) *gatewayfeed.Stream {
	var best *gatewayfeed.Stream
	rank := -1
	for i := range list {
		hosts := list[i].Hostnames
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, h := range hosts {
			h = strings.ToLower(h)
			if MatchHost(h, name, false) && hostRank(h) > rank {
				best, rank = &list[i], hostRank(h)
			}
		}
	}
	return best
}
