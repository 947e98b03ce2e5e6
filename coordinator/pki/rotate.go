package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Phase is how far a rotation of keys has come. The files alone say it.
type Phase string

const (
	// Whole: no rotation is under way.
	Whole Phase = ""
	// Added: the new key is believed beside the old one, which signs.
	Added Phase = "added"
	// Signing: the new key signs, what the old one signed is believed.
	Signing Phase = "signing"
)

// Rotating is a signing key that is changed by three steps, each of which everybody
// has to have taken before the next: Whole, Added, Signing, Whole.
type Rotating struct {
	Name string
	// Files are those that change together.
	Files             []string
	phase             func(Files) (Phase, error)
	add, promote, end func(Files, time.Time) error
	check             func(Files) error
}

// The files that are there while a rotation is under way: the key that will sign, and
// the one that has signed, which vouches for the last step.
const (
	saNextKey = "sa-next.key"
	caNextKey = "ca-next.key"
	caOldKey  = "ca-old.key"
)

// ServiceAccounts is the key that signs tokens; CAs the cluster's CA.
var (
	ServiceAccounts = Rotating{
		Name: "serviceaccount", Files: []string{"sa.key", "sa.pub", saNextKey},
		phase: phaseOfServiceAccounts, add: addServiceAccountKey, promote: promoteServiceAccountKey,
		end: dropServiceAccountKey, check: checkServiceAccountKeys,
	}
	CAs = Rotating{
		Name: "ca", Files: []string{CAFile, "ca.key", caNextKey, caOldKey},
		phase: phaseOfCA, add: addCA, promote: promoteCA, end: dropCA,
		check: checkCAs,
	}
)

// Phase of the files.
func (r Rotating) Phase(f Files) (Phase, error) {
	p, err := r.phase(f)
	if err != nil {
		return p, fmt.Errorf("rotate %s: %w", r.Name, err)
	}
	return p, nil
}

// Check fails for files that a coordinator could not use.
func (r Rotating) Check(f Files) error {
	for name := range f {
		if !slices.Contains(r.Files, name) {
			return fmt.Errorf("%s: %q is none of its files", r.Name, name)
		}
	}
	if err := r.check(f); err != nil {
		return fmt.Errorf("%s: %w", r.Name, err)
	}
	_, err := r.Phase(f)
	return err
}

func checkServiceAccountKeys(f Files) error {
	signer, public, err := f.ServiceAccountKeys()
	if err != nil {
		return err
	}
	own := func(k crypto.PublicKey) bool { return same(k, signer.Public()) }
	if len(f["sa.pub"]) > 0 && !slices.ContainsFunc(public, own) {
		return errors.New("what sa.key signs nobody would accept: sa.pub has not its public key")
	}
	return nil
}

// checkCAs: the first certificate is of the key that signs, and all are of CAs.
func checkCAs(f Files) error {
	certs, err := f.Trusted()
	if err != nil {
		return err
	}
	for _, cert := range certs {
		if !cert.IsCA {
			return fmt.Errorf("%s has a certificate of no CA: %s", CAFile, cert.Subject.CommonName)
		}
	}
	if first := certs[0]; time.Now().After(first.NotAfter) {
		return fmt.Errorf("the CA that signs has ended on %s", first.NotAfter.Format(time.RFC3339))
	}
	return f.fit("ca")
}

// Next returns the files of the step after the one that they are in.
func (r Rotating) Next(f Files, now time.Time) (Phase, Files, error) {
	at, err := r.Phase(f)
	if err != nil {
		return at, nil, err
	}
	next := Files{}
	for name, data := range f {
		next[name] = data
	}
	switch at {
	case Whole:
		at, err = Added, r.add(next, now)
	case Added:
		at, err = Signing, r.promote(next, now)
	case Signing:
		at, err = Whole, r.end(next, now)
	}
	if err != nil {
		return at, nil, fmt.Errorf("rotate %s: %w", r.Name, err)
	}
	return at, next, nil
}

func newKey() (key *ecdsa.PrivateKey, keyPEM []byte, err error) {
	if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return key, keyPEM, err
}

func encodePublic(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// publicKeys reads a bundle.
func publicKeys(data []byte) (out []crypto.PublicKey, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return out, nil
		}
		if block.Type != "PUBLIC KEY" {
			continue
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, key)
	}
}

func same(a, b crypto.PublicKey) bool {
	e, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && e.Equal(b)
}

// ServiceAccountKeys are the key that signs tokens, and all that tokens may be signed
// with.
func (f Files) ServiceAccountKeys() (crypto.Signer, []crypto.PublicKey, error) {
	signer, err := parseKey(f["sa.key"])
	if err != nil {
		return nil, nil, fmt.Errorf("load sa.key: %w", err)
	}
	public, err := publicKeys(f["sa.pub"])
	if err != nil {
		return nil, nil, fmt.Errorf("load sa.pub: %w", err)
	}
	return signer, public, nil
}

func phaseOfServiceAccounts(f Files) (Phase, error) {
	signer, public, err := f.ServiceAccountKeys()
	if err != nil {
		return "", err
	}
	if f[saNextKey] != nil {
		return Added, nil
	}
	for _, key := range public {
		if !same(signer.Public(), key) {
			return Signing, nil
		}
	}
	return Whole, nil
}

// setPublic lists a key first, then the others.
func setPublic(f Files, first crypto.PublicKey, others []crypto.PublicKey) error {
	var b []byte
	for i, key := range append([]crypto.PublicKey{first}, others...) {
		if i > 0 && same(key, first) {
			continue
		}
		data, err := encodePublic(key)
		if err != nil {
			return err
		}
		b = append(b, data...)
	}
	f["sa.pub"] = b
	return nil
}

func addServiceAccountKey(f Files, _ time.Time) error {
	signer, public, err := f.ServiceAccountKeys()
	if err != nil {
		return err
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	f[saNextKey] = keyPEM
	return setPublic(f, signer.Public(), append(public, key.Public()))
}

func promoteServiceAccountKey(f Files, _ time.Time) error {
	next, err := parseKey(f[saNextKey])
	if err != nil {
		return err
	}
	_, public, err := f.ServiceAccountKeys()
	if err != nil {
		return err
	}
	f["sa.key"] = f[saNextKey]
	delete(f, saNextKey)
	return setPublic(f, next.Public(), public)
}

func dropServiceAccountKey(f Files, _ time.Time) error {
	signer, _, err := f.ServiceAccountKeys()
	if err != nil {
		return err
	}
	return setPublic(f, signer.Public(), nil)
}

// parseCerts reads a bundle.
func parseCerts(data []byte) (out []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		out = append(out, cert)
	}
	if len(out) == 0 {
		return nil, errors.New("no PEM certificate in it")
	}
	return out, nil
}

// Trusted are the CAs that are believed; the first signs.
func (f Files) Trusted() ([]*x509.Certificate, error) {
	certs, err := parseCerts(f[CAFile])
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", CAFile, err)
	}
	return certs, nil
}

// Authorities are the trusted CAs whose keys are here.
func (f Files) Authorities() (out []*Authority, err error) {
	certs, err := f.Trusted()
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"ca.key", caNextKey, caOldKey} {
		if f[name] == nil {
			continue
		}
		key, err := parseKey(f[name])
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", name, err)
		}
		for _, cert := range certs {
			if same(key.Public(), cert.PublicKey) {
				out = append(out, &Authority{Cert: cert, PEM: f[CAFile], key: key})
				break
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no key of a CA in it")
	}
	return out, nil
}

func phaseOfCA(f Files) (Phase, error) {
	if _, err := f.Authorities(); err != nil {
		return "", err
	}
	switch {
	case f[caNextKey] != nil:
		return Added, nil
	case f[caOldKey] != nil:
		return Signing, nil
	}
	return Whole, nil
}

func addCA(f Files, now time.Time) error {
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	cert, err := newCA(key, "shoal-ca-"+now.UTC().Format("20060102T150405Z"), now)
	if err != nil {
		return err
	}
	f[caNextKey] = keyPEM
	f[CAFile] = append(append(bytes.TrimRight(f[CAFile], "\n"), '\n'), cert...)
	return nil
}

func newCA(key *ecdsa.PrivateKey, subject string, now time.Time) (certPEM []byte, err error) {
	template, err := newTemplate(pkix.Name{CommonName: subject}, now, CALifetime)
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", subject, err)
	}
	return encodeCert(der), nil
}

func promoteCA(f Files, _ time.Time) error {
	next, err := parseKey(f[caNextKey])
	if err != nil {
		return err
	}
	certs, err := f.Trusted()
	if err != nil {
		return err
	}
	var first, others []byte
	for _, cert := range certs {
		if same(next.Public(), cert.PublicKey) {
			first = encodeCert(cert.Raw)
		} else {
			others = append(others, encodeCert(cert.Raw)...)
		}
	}
	if first == nil {
		return fmt.Errorf("%s has no certificate for %s", CAFile, caNextKey)
	}
	f[CAFile] = append(first, others...)
	f[caOldKey], f["ca.key"] = f["ca.key"], f[caNextKey]
	delete(f, caNextKey)
	return nil
}

func dropCA(f Files, _ time.Time) error {
	old, err := parseKey(f[caOldKey])
	if err != nil {
		return err
	}
	certs, err := f.Trusted()
	if err != nil {
		return err
	}
	var keep []byte
	for _, cert := range certs {
		if !same(old.Public(), cert.PublicKey) {
			keep = append(keep, encodeCert(cert.Raw)...)
		}
	}
	f[CAFile] = keep
	delete(f, caOldKey)
	return nil
}
