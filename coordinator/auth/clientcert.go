package auth

import (
	"crypto/x509"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
)

const (
	// certificateTTL is how long a verified certificate is believed without
	// verifying it again; never beyond its own end.
	certificateTTL = 5 * time.Minute
	// maxCertificates bounds what is remembered; at the bound all is forgotten.
	maxCertificates = 4096
)

// certificates authenticates client certificates. It remembers those it has
// verified: the signature check costs more than most requests, and clients send
// many requests over one connection. The TLS handshake has proven that the
// client holds the key.
type certificates struct {
	mu     sync.RWMutex
	verify *x509request.Authenticator
	known  map[string]verified // by the leaf's DER
}

type verified struct {
	response *authenticator.Response
	until    time.Time
}

func newCertificates(roots *x509.CertPool) *certificates {
	c := &certificates{}
	c.trust(roots)
	return c
}

// trust has these CAs believed, and no others.
func (c *certificates) trust(roots *x509.CertPool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.verify = x509request.NewDynamic(verifier(roots), x509request.CommonNameUserConversion)
	c.known = map[string]verified{}
}

// AuthenticateRequest implements authenticator.Request.
func (c *certificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	return c.authenticate(req, time.Now())
}

func (c *certificates) authenticate(req *http.Request, now time.Time) (*authenticator.Response, bool, error) {
	leaf := req.TLS.PeerCertificates[0]
	c.mu.RLock()
	v, ok := c.known[string(leaf.Raw)]
	verify := c.verify
	c.mu.RUnlock()
	if ok && now.Before(v.until) {
		return v.response, true, nil
	}
	resp, ok, err := verify.AuthenticateRequest(req)
	if err == nil && ok {
		until := earliestEnd(req.TLS.PeerCertificates, now.Add(certificateTTL))
		c.remember(verify, leaf, verified{response: resp, until: until})
	}
	return resp, ok, err
}

// remember keeps what was verified, unless others are believed since.
func (c *certificates) remember(by *x509request.Authenticator, leaf *x509.Certificate, v verified) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.verify != by {
		return
	}
	if len(c.known) >= maxCertificates {
		clear(c.known)
	}
	c.known[string(leaf.Raw)] = v
}

func earliestEnd(certs []*x509.Certificate, until time.Time) time.Time {
	for _, c := range certs {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
	}
	return until
}
