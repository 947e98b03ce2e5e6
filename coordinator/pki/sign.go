package pki

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"
)

// shortLived certificates keep their whole lifetime, as upstream's signers do:
// the others give what they are backdated for from its end.
const shortLived = 8 * time.Hour

// What a request may be at most. Anybody may send one whose signature is then
// verified, which with a huge RSA key takes minutes; crypto/tls has the same
// limit for peers' keys.
const (
	maxRequest = 64 << 10
	maxRSABits = 8192
)

// ParseRequest reads a PEM encoded certificate request. It does not check the
// request's signature.
func ParseRequest(data []byte) (*x509.CertificateRequest, error) {
	if len(data) > maxRequest {
		return nil, fmt.Errorf("the certificate request is longer than %d bytes", maxRequest)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if key, ok := request.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
		return nil, fmt.Errorf("the RSA key of %d bits is longer than %d", key.N.BitLen(), maxRSABits)
	}
	return request, nil
}

// Terms are what a certificate that somebody asked for may be used for, and how
// long.
type Terms struct {
	Usage    x509.KeyUsage
	ExtUsage []x509.ExtKeyUsage
	Lifetime time.Duration
}

// Sign answers a request whose signature is valid with a certificate of its
// subject, names and key, PEM encoded. It ends with the CA's at the latest.
func (a *Authority) Sign(r *x509.CertificateRequest, t Terms, now time.Time) ([]byte, error) {
	if !now.Before(a.Cert.NotAfter) {
		return nil, fmt.Errorf("sign certificate of %s: the CA has expired on %s", r.Subject.CommonName,
			a.Cert.NotAfter.Format(time.RFC3339))
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", r.Subject.CommonName, err)
	}
	template, err := newTemplate(r.Subject, now, t.Lifetime)
	if err != nil {
		return nil, err
	}
	if t.Lifetime >= shortLived {
		template.NotAfter = template.NotAfter.Add(-backdate)
	}
	if template.NotAfter.After(a.Cert.NotAfter) {
		template.NotAfter = a.Cert.NotAfter
	}
	template.KeyUsage, template.ExtKeyUsage = t.Usage, t.ExtUsage
	template.DNSNames, template.IPAddresses = r.DNSNames, r.IPAddresses
	template.EmailAddresses, template.URIs = r.EmailAddresses, r.URIs
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, r.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", r.Subject.CommonName, err)
	}
	return encodeCert(der), nil
}
