package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

func encodeRequest(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestRequestLimits(t *testing.T) {
	// The key of a genuine request takes the place of another's: its signature is
	// never looked at.
	short, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	genuine, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "n"}}, short)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseRequest(encodeRequest(genuine)); err != nil {
		t.Error(err)
	}
	long := hugeKeyRequest(t)
	if _, err := ParseRequest(encodeRequest(long)); err == nil || !strings.Contains(err.Error(), "longer than 8192") {
		t.Errorf("a huge key: %v", err)
	}
	if _, err := ParseRequest(bytes.Repeat([]byte{'a'}, maxRequest+1)); err == nil || !strings.Contains(err.Error(), "longer than 65536 bytes") {
		t.Errorf("a long request: %v", err)
	}
}

// hugeKeyRequest makes a request with an RSA key of 16384 bits by hand: to make
// such a key would take minutes.
func hugeKeyRequest(t *testing.T) []byte {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), 16383)
	public, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537})
	if err != nil {
		t.Fatal(err)
	}
	subject, err := asn1.Marshal(pkix.Name{CommonName: "n"}.ToRDNSequence())
	if err != nil {
		t.Fatal(err)
	}
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11},
		Parameters: asn1.NullRawValue}
	info, err := asn1.Marshal(struct {
		Version       int
		Subject       asn1.RawValue
		PublicKey     asn1.RawValue
		RawAttributes []asn1.RawValue `asn1:"tag:0"`
	}{Subject: asn1.RawValue{FullBytes: subject}, PublicKey: asn1.RawValue{FullBytes: public}})
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: info}, algorithm, asn1.BitString{Bytes: make([]byte, 2048), BitLength: 2048 * 8}})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// FuzzParseRequest: what anybody may send neither panics nor takes long, and what
// is parsed can be signed.
func FuzzParseRequest(f *testing.F) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	request, err := cert.MakeCSR(key, &pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}},
		[]string{"n1"}, []net.IP{net.IPv4(192, 0, 2, 1)})
	if err != nil {
		f.Fatal(err)
	}
	dir := Dir(f.TempDir())
	if err := dir.Ensure(Cluster{}, time.Now()); err != nil {
		f.Fatal(err)
	}
	ca, err := dir.CA()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request)
	f.Add(request[:len(request)/2])
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := ParseRequest(data)
		if err != nil || parsed.CheckSignature() != nil {
			return
		}
		if _, err := ca.Sign(parsed, Terms{Usage: x509.KeyUsageDigitalSignature, Lifetime: time.Hour},
			time.Now()); err != nil {
			t.Log(err) // names that certificates cannot have
		}
	})
}
