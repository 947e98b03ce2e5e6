package members

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/crypto/scrypt"
)

// Bundle is what makes a machine a coordinator of a cluster. Whoever has it has the
// cluster.
type Bundle struct {
	// Files are those of pki.Dir.Shared; Encryption is the store's EncryptionConfiguration.
	Files      map[string][]byte `json:"files"`
	Encryption []byte            `json:"encryption"`
	Settings   Settings          `json:"settings"`
	// Join are the members' URLs, Gossip their addresses in the gossip.
	Join   []string `json:"join"`
	Gossip []string `json:"gossip"`
}

// Settings are fields of the configuration that all coordinators have alike.
type Settings struct {
	ServiceCIDR   string `json:"serviceCIDR"`
	ClusterCIDR   string `json:"clusterCIDR"`
	ClusterDNS    string `json:"clusterDNS"`
	ClusterDomain string `json:"clusterDomain"`
	NodePortRange string `json:"nodePortRange"`
	// 0 is of a coordinator of before, which has the default.
	NodeCIDRMaskSizeIPv4 int `json:"nodeCIDRMaskSizeIPv4,omitempty"`
	NodeCIDRMaskSizeIPv6 int `json:"nodeCIDRMaskSizeIPv6,omitempty"`
	// VirtualAddress leads to whichever of them lives; empty: none.
	VirtualAddress string `json:"virtualAddress,omitempty"`
}

// Sealed is a Bundle under a key that is made of a token's secret (HKDF with SHA-256,
// AES-256-GCM).
type Sealed struct {
	Salt  []byte `json:"salt"`
	Nonce []byte `json:"nonce"`
	Data  []byte `json:"data"`
}

const (
	sealInfo  = "shoal coordinator bundle v1"
	keyBytes  = 32
	saltBytes = 32
)

// Seal encrypts a bundle.
func Seal(b Bundle, secret string) (Sealed, error) {
	plain, err := json.Marshal(b)
	if err != nil {
		return Sealed{}, fmt.Errorf("seal the cluster's keys: %w", err)
	}
	s := Sealed{Salt: make([]byte, saltBytes)}
	_, _ = rand.Read(s.Salt) // never fails
	aead, err := cipherOf(secret, s.Salt)
	if err != nil {
		return Sealed{}, fmt.Errorf("seal the cluster's keys: %w", err)
	}
	s.Nonce = make([]byte, aead.NonceSize())
	_, _ = rand.Read(s.Nonce)
	s.Data = aead.Seal(nil, s.Nonce, plain, []byte(sealInfo))
	return s, nil
}

// Open decrypts it.
func (s Sealed) Open(secret string) (b Bundle, err error) {
	aead, err := cipherOf(secret, s.Salt)
	if err != nil {
		return b, fmt.Errorf("open the cluster's keys: %w", err)
	}
	if len(s.Nonce) != aead.NonceSize() {
		return b, errors.New("open the cluster's keys: the answer is cut short")
	}
	plain, err := aead.Open(nil, s.Nonce, s.Data, []byte(sealInfo))
	if err != nil {
		return b, errors.New("open the cluster's keys: they are not sealed with this token")
	}
	if err := json.Unmarshal(plain, &b); err != nil {
		return b, fmt.Errorf("open the cluster's keys: %w", err)
	}
	return b, nil
}

func cipherOf(secret string, salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, []byte(secret), salt, sealInfo, keyBytes)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Locked is a Bundle under a passphrase, which people choose: each guess at it costs
// some tenths of a second and 64 MiB (scrypt, with what its authors advise for files).
type Locked struct {
	Salt   []byte `json:"salt"`
	Sealed Sealed `json:"sealed"`
}

const scryptN, scryptR, scryptP = 1 << 16, 8, 1

// Lock encrypts a bundle with a passphrase.
func Lock(b Bundle, passphrase string) (Locked, error) {
	l := Locked{Salt: make([]byte, saltBytes)}
	_, _ = rand.Read(l.Salt) // never fails
	secret, err := l.secret(passphrase)
	if err != nil {
		return l, err
	}
	l.Sealed, err = Seal(b, secret)
	return l, err
}

// Unlock decrypts it.
func (l Locked) Unlock(passphrase string) (Bundle, error) {
	secret, err := l.secret(passphrase)
	if err != nil {
		return Bundle{}, err
	}
	b, err := l.Sealed.Open(secret)
	if err != nil {
		return b, errors.New("open the cluster's keys: the passphrase is another one, or the file is damaged")
	}
	return b, nil
}

func (l Locked) secret(passphrase string) (string, error) {
	key, err := scrypt.Key([]byte(passphrase), l.Salt, scryptN, scryptR, scryptP, keyBytes)
	if err != nil {
		return "", fmt.Errorf("derive a key of the passphrase: %w", err)
	}
	return string(key), nil
}
