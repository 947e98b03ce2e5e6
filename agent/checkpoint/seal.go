package checkpoint

import (
	"bytes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// A sealed record is
//
//	shoal-sealed-v1 KEYID\n NONCE(24) CIPHERTEXT
//
// by XChaCha20-Poly1305, whose nonces are long enough to be random for any
// number of records. Its store, its key and the line before it are
// authenticated with it: a record cannot be taken for another's.
const (
	sealedHead = "shoal-sealed-v1 "
	idBytes    = 8
	headSize   = len(sealedHead) + 2*idBytes + 1
)

// overhead is what a sealed record has beside its head and its text.
const overhead = chacha20poly1305.NonceSizeX + chacha20poly1305.Overhead

// maxRecord is far above what the API takes for an object (3 MiB).
const maxRecord = 32 << 20

var (
	errOtherKey = errors.New("sealed with another key")
	errTooLarge = fmt.Errorf("larger than %d bytes", maxRecord)
)

// Keys seal records with the first one and open them with any.
type Keys struct {
	list     []sealKey
	fromFile []byte // what Remember keeps
}

type sealKey struct {
	id   string
	aead cipher.AEAD
}

// minSecret is what a key is made of at least.
const minSecret = 32

// NewKeys derives a key and its public name from each secret.
func NewKeys(secrets ...[]byte) (*Keys, error) {
	k := &Keys{}
	for _, s := range secrets {
		if len(s) < minSecret {
			return nil, fmt.Errorf("checkpoint key of %d bytes: it must have at least %d", len(s), minSecret)
		}
		raw, err := hkdf.Key(sha256.New, s, nil, "shoal checkpoint v1: seal", chacha20poly1305.KeySize)
		if err != nil {
			return nil, fmt.Errorf("derive checkpoint key: %w", err)
		}
		id, err := hkdf.Key(sha256.New, s, nil, "shoal checkpoint v1: name", idBytes)
		if err != nil {
			return nil, fmt.Errorf("derive checkpoint key: %w", err)
		}
		aead, err := chacha20poly1305.NewX(raw)
		if err != nil {
			return nil, fmt.Errorf("derive checkpoint key: %w", err)
		}
		k.list = append(k.list, sealKey{id: hex.EncodeToString(id), aead: aead})
	}
	return k, nil
}

// sealed tells a record of any key from one in the clear.
func sealed(data []byte) bool { return bytes.HasPrefix(data, []byte(sealedHead)) }

// current tells whether a record, or its beginning, is under the first key.
func (k *Keys) current(data []byte) bool {
	return bytes.HasPrefix(data, []byte(sealedHead+k.list[0].id+"\n"))
}

// knows tells whether a record, or its beginning, is under one of the keys.
func (k *Keys) knows(data []byte) bool { return k.of(data) != nil }

func (k *Keys) of(data []byte) *sealKey {
	for i := range k.list {
		if bytes.HasPrefix(data, []byte(sealedHead+k.list[i].id+"\n")) {
			return &k.list[i]
		}
	}
	return nil
}

func (k *Keys) seal(store, key string, body []byte) ([]byte, error) {
	by := k.list[0]
	head := sealedHead + by.id + "\n"
	out := make([]byte, headSize+by.aead.NonceSize(), headSize+by.aead.NonceSize()+len(body)+by.aead.Overhead())
	copy(out, head)
	nonce := out[headSize:]
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return by.aead.Seal(out, nonce, body, bound(head, store, key)), nil
}

func (k *Keys) open(store, key string, data []byte) ([]byte, error) {
	by := k.of(data)
	if by == nil {
		return nil, errOtherKey
	}
	rest := data[headSize:]
	if len(rest) < by.aead.NonceSize()+by.aead.Overhead() {
		return nil, errors.New("cut off")
	}
	nonce, text := rest[:by.aead.NonceSize()], rest[by.aead.NonceSize():]
	body, err := by.aead.Open(nil, nonce, text, bound(string(data[:headSize]), store, key))
	if err != nil {
		return nil, errors.New("changed, or of another record")
	}
	return body, nil
}

// bound is what is authenticated with a record. Neither part of a path has a
// zero byte.
func bound(head, store, key string) []byte {
	return []byte(head + store + "\x00" + key)
}
