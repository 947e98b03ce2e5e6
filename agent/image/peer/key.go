package peer

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"

	"github.com/opencontainers/go-digest"
)

// Key names a layer of an image. Who has not the image's manifest cannot tell which.
type Key [sha256.Size]byte

const (
	keyContext   = "shoal layer key 1 "
	proofContext = "shoal layer proof 1 "
	// exporter is the label of the TLS session's key that a proof is about.
	exporter = "EXPORTER-shoal-image-layer"
)

// KeyOf is the key of a layer that a manifest names.
func KeyOf(manifest []byte, layer digest.Digest) (k Key) {
	copy(k[:], authenticated(manifest, keyContext, []byte(layer)))
	return k
}

// Proof shows the other end of a TLS connection that this one has the manifest: it is what a
// request for a layer holds in its header. An error is of a session whose key cannot be
// exported: TLS 1.3 is needed.
func Proof(state *tls.ConnectionState, manifest []byte, layer digest.Digest) (string, error) {
	session, err := state.ExportKeyingMaterial(exporter, nil, sha256.Size)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(authenticated(manifest, proofContext, session, []byte(layer))), nil
}

func authenticated(manifest []byte, context string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, manifest)
	mac.Write([]byte(context))
	for _, p := range parts {
		mac.Write(p)
	}
	return mac.Sum(nil)
}
