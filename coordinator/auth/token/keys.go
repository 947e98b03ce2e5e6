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

	"github.com/go-jose/go-jose/v4"
)

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
