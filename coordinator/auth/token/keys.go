package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Keys are what tokens are signed with, and what they may be signed with. They may be
// replaced while they are in use.
type Keys struct{ current atomic.Pointer[keys] }

type keys struct {
	signer jose.Signer
	public *jose.JSONWebKeySet
	algs   []string
}

// NewKeys returns keys for Set.
func NewKeys(signer crypto.Signer, others ...crypto.PublicKey) (*Keys, error) {
	k := &Keys{}
	return k, k.Set(signer, others...)
}

// Set has tokens signed by signer from now on, and accepted that it or one of the
// others has signed.
func (k *Keys) Set(signer crypto.Signer, others ...crypto.PublicKey) error {
	all := []crypto.PublicKey{signer.Public()}
	for _, o := range others {
		if !slices.ContainsFunc(all, func(a crypto.PublicKey) bool { return equal(a, o) }) {
			all = append(all, o)
		}
	}
	public, err := keySet(all)
	if err != nil {
		return err
	}
	next := &keys{public: public}
	if next.signer, err = newSigner(signer); err != nil {
		return err
	}
	for _, key := range public.Keys {
		next.algs = append(next.algs, key.Algorithm)
	}
	slices.Sort(next.algs)
	next.algs = slices.Compact(next.algs)
	k.current.Store(next)
	return nil
}

func equal(a, b crypto.PublicKey) bool {
	e, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && e.Equal(b)
}

// Dropped tells whether a token says that a key has signed it which is not accepted (any
// more). It is not verified.
func (k *Keys) Dropped(token string) bool {
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil || len(parsed.Headers) == 0 {
		return false
	}
	id := parsed.Headers[0].KeyID
	return id != "" && len(k.public().Key(id)) == 0
}

func (k *Keys) signer() jose.Signer         { return k.current.Load().signer }
func (k *Keys) public() *jose.JSONWebKeySet { return k.current.Load().public }

// algorithms are those that tokens may be signed with.
var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.ES384, jose.ES512, jose.RS256}

// keyID names a public key without giving it away.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("service account key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

func algorithm(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return jose.ES256, nil
		case elliptic.P384():
			return jose.ES384, nil
		case elliptic.P521():
			return jose.ES512, nil
		}
		return "", fmt.Errorf("service account key: curve %s is not P-256, P-384 or P-521", k.Curve.Params().Name)
	}
	return "", fmt.Errorf("service account key: %T is neither ECDSA nor RSA", key)
}

// keySet describes public keys as RFC 7517 does.
func keySet(keys []crypto.PublicKey) (*jose.JSONWebKeySet, error) {
	set := &jose.JSONWebKeySet{}
	for _, key := range keys {
		alg, err := algorithm(key)
		if err != nil {
			return nil, err
		}
		id, err := keyID(key)
		if err != nil {
			return nil, err
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(alg), Use: "sig"})
	}
	return set, nil
}

func newSigner(key crypto.Signer) (jose.Signer, error) {
	alg, err := algorithm(key.Public())
	if err != nil {
		return nil, err
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, err
	}
	return jose.NewSigner(jose.SigningKey{
		Algorithm: alg,
		Key:       &jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(alg), Use: "sig"},
	}, nil)
}
