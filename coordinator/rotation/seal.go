package rotation

import (
	"crypto"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/shoal-project/shoal/coordinator/pki"
)

// keyFile has the key that opens what is sealed to this coordinator. It is the only one
// of the directory that no other coordinator gets.
const keyFile = "sealing.key"

// The hybrid of X25519 and ML-KEM keeps what lies in old copies of the store closed to
// who may break one of the two.
func kem() hpke.KEM   { return hpke.MLKEM768X25519() }
func kdf() hpke.KDF   { return hpke.HKDFSHA256() }
func aead() hpke.AEAD { return hpke.AES256GCM() }

// ownKey reads this coordinator's key, or makes it.
func ownKey(dir pki.Dir) (hpke.PrivateKey, error) {
	data, err := os.ReadFile(dir.Path(keyFile))
	if err == nil {
		key, err := kem().NewPrivateKey(data)
		if err != nil {
			return nil, fmt.Errorf("load %s: %w; remove it, and another is made", dir.Path(keyFile), err)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load sealing key: %w", err)
	}
	key, err := kem().GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("make sealing key: %w", err)
	}
	if data, err = key.Bytes(); err != nil {
		return nil, fmt.Errorf("make sealing key: %w", err)
	}
	// What is sealed to it before it is on the disk nobody could open after a power cut.
	if err := pki.WriteFile(dir.Path(keyFile), data, 0o600); err != nil {
		return nil, err
	}
	return key, dir.Sync()
}

// digest names contents of files.
func digest(files pki.Files) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, part := range [][]byte{[]byte(name), files[name]} {
			_ = binary.Write(h, binary.BigEndian, uint64(len(part)))
			h.Write(part)
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// maxFiles is more than the files of any set take, and maxNote than a note does.
const (
	maxFiles = 2 << 20
	maxNote  = 1 << 20
)

// seal encrypts files of a step to the owner of a public key.
func seal(files pki.Files, about []byte, key []byte) ([]byte, error) {
	public, err := kem().NewPublicKey(key)
	if err != nil {
		return nil, err
	}
	plain, err := json.Marshal(files)
	if err != nil {
		return nil, err
	}
	return hpke.Seal(public, kdf(), aead(), about, plain)
}

func open(key hpke.PrivateKey, about, sealed []byte) (files pki.Files, err error) {
	plain, err := hpke.Open(key, kdf(), aead(), about, sealed)
	if err != nil {
		return nil, errors.New("they are sealed with another key than this coordinator's, or damaged")
	}
	return files, json.Unmarshal(plain, &files)
}

// sign has each CA whose key is here vouch for a text.
func sign(files pki.Files, text []byte) (out [][]byte, err error) {
	authorities, err := files.Authorities()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	for _, a := range authorities {
		signature, err := a.Key().Sign(rand.Reader, sum[:], crypto.SHA256)
		if err != nil {
			return nil, fmt.Errorf("sign with the cluster's CA: %w", err)
		}
		out = append(out, signature)
	}
	return out, nil
}

// vouched tells whether a CA that this coordinator believes has signed a text.
func vouched(files pki.Files, text []byte, signatures [][]byte) bool {
	certs, err := files.Trusted()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(certs, func(cert *x509.Certificate) bool { return signedBy(cert, text, signatures) })
}

// maxSignatures is more than there are CAs at one time.
const maxSignatures = 8

func signedBy(cert *x509.Certificate, text []byte, signatures [][]byte) bool {
	algorithm := x509.ECDSAWithSHA256
	if cert.PublicKeyAlgorithm == x509.RSA {
		algorithm = x509.SHA256WithRSA
	}
	for _, s := range signatures[:min(len(signatures), maxSignatures)] {
		if cert.CheckSignature(algorithm, text, s) == nil {
			return true
		}
	}
	return false
}
