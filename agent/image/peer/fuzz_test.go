package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

type noStore struct{}

var errNone = errors.New("none")

func (noStore) Manifest(context.Context, digest.Digest) ([]byte, error)    { return nil, errNone }
func (noStore) Layer(context.Context, ocispec.Descriptor) (Layer, error)   { return nil, errNone }
func (noStore) Manifests(context.Context) (out [][]byte, err error)        { return nil, nil }
func noCredentials() (c *tls.Certificate, roots *x509.CertPool, err error) { return nil, nil, errNone }
func noAnswer(context.Context, string, []byte) (answer []byte, err error)  { return nil, errNone }
func two() []Member {
	return []Member{{Name: "a", Addr: netip.MustParseAddr("127.0.0.1")}, {Name: "b"}}
}

func lonely() *Peers {
	return New(Config{Name: "a", Port: 1, Members: two, Ask: noAnswer, Credentials: noCredentials, Store: noStore{},
		Received: func(int) {}, Sent: func(int) {}})
}

// FuzzQuestion: no question of a member ends the process, or has more kept than one may.
func FuzzQuestion(f *testing.F) {
	key := Key{1}
	for _, q := range []question{
		{Verb: find, Keys: raw([]Key{key}), Port: 1, Lost: []string{"a", "b"}, Stalled: true},
		{Verb: have, Keys: raw([]Key{key, {2}}), Port: 10250},
		{Verb: still, Keys: raw([]Key{key}), Port: 1},
		{Verb: gone, Keys: raw([]Key{key}), Port: 1},
	} {
		f.Add(q.encode())
	}
	f.Add([]byte("L{"))
	f.Fuzz(func(t *testing.T, asked []byte) {
		p := lonely()
		said := p.Answer("b", asked)
		if said == nil {
			return
		}
		if _, err := decodeAnswer(said); err != nil {
			t.Errorf("%q: its own answer %q: %v", asked, said, err)
		}
		if n := p.book.ofNode["b"]; n > maxKeys {
			t.Errorf("%d entries by one question", n)
		}
	})
}

// FuzzAnswer: nothing that a keeper of keys answers has a node ask more than it may.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"sources":[{"node":"b","port":10250}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, said []byte) {
		a, err := decodeAnswer(said)
		if err == nil && len(a.Sources) > maxGiven {
			t.Errorf("%d sources", len(a.Sources))
		}
	})
}

// FuzzRequest: whatever a node asks for, what it cannot prove to have it does not get.
func FuzzRequest(f *testing.F) {
	f.Add("sha256:"+digest.FromString("x").Encoded(), "sha256:"+digest.FromString("y").Encoded(), "bytes=0-9", "AAAA")
	f.Add("x", "", "bytes=9223372036854775807-9223372036854775807", "")
	f.Fuzz(func(t *testing.T, layer, manifest, span, proof string) {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.SetPathValue("digest", layer)
		r.URL.RawQuery = manifestParameter + "=" + manifest
		r.Header.Set("Range", span)
		r.Header.Set(proofHeader, proof)
		w := httptest.NewRecorder()
		lonely().ServeHTTP(w, r)
		if w.Code < 400 {
			t.Errorf("%q of %q: %d", layer, manifest, w.Code)
		}
		if from, to, err := parseRange(span); err == nil && (from < 0 || to < from || to-from >= maxRange) {
			t.Errorf("%q: %d-%d", span, from, to)
		}
	})
}
