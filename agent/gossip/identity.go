package gossip

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
)

// keyID names a member's public key in packets: the beginning of its SHA-256.
type keyID [8]byte

func idOf(public []byte) keyID {
	sum := sha256.Sum256(public)
	return keyID(sum[:8])
}

// Identity is a member's private key, and the certificate that tells whose it is.
type Identity struct {
	key    *ecdsa.PrivateKey
	dh     *ecdh.PrivateKey
	public []byte // uncompressed point
	id     keyID

	// Certificate is DER; nil for a member whose grant is signed where its key
	// was made.
	Certificate []byte
}

var errKeyKind = errors.New("gossip needs a certificate with an ECDSA P-256 key: make one with shoal-coordinator kubeconfig")

// NewIdentity makes a key that lives as long as the process.
func NewIdentity() (*Identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make gossip key: %w", err)
	}
	return identityOf(key, nil)
}

// LoadIdentity takes a node's client certificate and its key, PEM encoded.
func LoadIdentity(certPEM, keyPEM []byte) (*Identity, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("client certificate for the gossip: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errKeyKind
	}
	return identityOf(key, pair.Certificate[0])
}

func identityOf(key *ecdsa.PrivateKey, der []byte) (*Identity, error) {
	if key.Curve != elliptic.P256() {
		return nil, errKeyKind
	}
	dh, err := key.ECDH()
	if err != nil {
		return nil, fmt.Errorf("gossip key: %w", err)
	}
	public := dh.PublicKey().Bytes()
	return &Identity{key: key, dh: dh, public: public, id: idOf(public), Certificate: der}, nil
}

// PublicKey is what a grant holds.
func (i *Identity) PublicKey() []byte { return i.public }

// PublicKeyOf returns the key of a certificate in the form that a grant holds.
func PublicKeyOf(cert *x509.Certificate) ([]byte, error) {
	key, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errKeyKind
	}
	dh, err := key.ECDH()
	if err != nil {
		return nil, fmt.Errorf("gossip key: %w", err)
	}
	return dh.Bytes(), nil
}

// sign signs parts under a context, so that no signature counts for another purpose.
func (i *Identity) sign(context string, parts ...[]byte) ([]byte, error) {
	return signWith(i.key, context, parts...)
}

func signWith(key crypto.Signer, context string, parts ...[]byte) ([]byte, error) {
	if _, ok := key.Public().(*ecdsa.PublicKey); !ok {
		return nil, errors.New("the key is not ECDSA: its signature does not fit into gossip metadata")
	}
	sig, err := key.Sign(rand.Reader, digest(context, parts...), crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return sig, nil
}

func verifyWith(key any, sig []byte, context string, parts ...[]byte) bool {
	public, ok := key.(*ecdsa.PublicKey)
	return ok && ecdsa.VerifyASN1(public, digest(context, parts...), sig)
}

// digest hashes the context and the parts, each with its length before it.
func digest(context string, parts ...[]byte) []byte {
	h := sha256.New()
	h.Write(appendValue(nil, []byte(context)))
	for _, p := range parts {
		h.Write(appendValue(nil, p))
	}
	return h.Sum(nil)
}

// Trust are the certificates of the authorities whose grants count.
type Trust []*x509.Certificate

// ParseTrust reads a PEM bundle.
func ParseTrust(data []byte) (Trust, error) {
	var out Trust
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("authority of the gossip: %w", err)
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, errors.New("authority of the gossip: no PEM certificate in it")
	}
	return out, nil
}
