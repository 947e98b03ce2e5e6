package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func squeezed(t testing.TB, b []byte) []byte {
	t.Helper()
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return z.Bytes()
}

func zstdOf(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(b, nil)
}

// listener is a server that notes what is sent to it.
type listener struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
}

func newListener(t *testing.T, answer http.HandlerFunc) *listener {
	t.Helper()
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		l.mu.Lock()
		l.requests = append(l.requests, q.Method+" "+q.URL.String()+" "+q.Header.Get("Authorization")+" "+string(body))
		l.mu.Unlock()
		answer(w, q)
	}))
	t.Cleanup(l.Close)
	return l
}

func (l *listener) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.requests)
}

// demand asks for authorization by a scheme.
func demand(scheme string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", scheme)
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// TestCredentialsStayWithTheRegistry: a host that a registry redirects to gets
// nothing by asking for it.
func TestCredentialsStayWithTheRegistry(t *testing.T) {
	issuer := newListener(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"token":"t"}`) })
	for name, scheme := range map[string]string{"basic": `Basic realm="x"`, "bearer": `Bearer realm="` + issuer.URL + `/token",service="x"`} {
		for kind, auth := range map[string]*Auth{
			"password":       {Username: "me", Password: "secret"},
			"identity-token": {IdentityToken: "secret"},
			"registry-token": {RegistryToken: "secret"},
		} {
			t.Run(name+"-"+kind, func(t *testing.T) {
				thief := newListener(t, demand(scheme))
				s, r := newStore(t, t.TempDir(), 0), newRogue(t)
				r.image(t, nil, layer(t))
				r.instead["/blobs/"] = http.RedirectHandler(thief.URL+"/blob", http.StatusTemporaryRedirect)
				if _, err := s.Pull(t.Context(), r.name(), auth); err == nil {
					t.Error("the image was pulled")
				}
				for _, request := range append(thief.heard(), issuer.heard()...) {
					if strings.Contains(request, "secret") || strings.Contains(request, "Basic ") {
						t.Errorf("another host heard %q", request)
					}
				}
				if len(thief.heard()) == 0 {
					t.Error("nothing was redirected")
				}
			})
		}
	}
}

// TestRegistryTokenIsNotForIssuers: who issues tokens gets none that is for
// the registry.
func TestRegistryTokenIsNotForIssuers(t *testing.T) {
	issuer := newListener(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"token":"t"}`) })
	s, r := newStore(t, t.TempDir(), 0), newRogue(t)
	r.instead["/"] = demand(`Bearer realm="` + issuer.URL + `/token",service="x"`)
	if _, err := s.Pull(t.Context(), r.name(), &Auth{RegistryToken: "secret"}); err == nil {
		t.Error("the image was pulled")
	}
	for _, request := range issuer.heard() {
		if strings.Contains(request, "secret") {
			t.Errorf("the issuer heard %q", request)
		}
	}
}

// TestTokens: a registry that sends its clients to an issuer of tokens, as the
// public ones do, with tokens that are larger than the manifest.
func TestTokens(t *testing.T) {
	token := strings.Repeat("t", 6000)
	issuer := newListener(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"token":"`+token+`","access_token":"`+token+`"}`)
	})
	for name, auth := range map[string]*Auth{"anonymous": nil, "password": {Username: "me", Password: "secret"}} {
		t.Run(name, func(t *testing.T) {
			s, r := newStore(t, t.TempDir(), 0), newRogue(t)
			r.image(t, nil, layer(t, &tar.Header{Name: "f", Size: 10}))
			inner := r.Config.Handler
			r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				if q.Header.Get("Authorization") != "Bearer "+token {
					demand(`Bearer realm="`+issuer.URL+`/token",service="x"`)(w, q)
					return
				}
				inner.ServeHTTP(w, q)
			})
			if _, err := s.Pull(t.Context(), r.name(), auth); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPrepare: what goes to whom over what.
func TestPrepare(t *testing.T) {
	public := &registry{hosts: []string{"r.example"}, headers: []string{"X-Key"}}
	redirect := &http.Response{}
	for name, x := range map[string]struct {
		own              *registry
		url, authorized  string
		body             bool
		from             *http.Response
		refused, guarded bool
	}{
		"registry":         {own: public, url: "https://R.example/v2/", authorized: "Basic x"},
		"issuer":           {own: public, url: "https://auth.example/token", body: true, guarded: true},
		"issuer-plain":     {own: public, url: "http://auth.example/token", body: true, refused: true},
		"issuer-plain-get": {own: public, url: "http://auth.example/token", authorized: "Basic x", refused: true},
		"issuer-anonymous": {own: public, url: "http://auth.example/token", guarded: true},
		"downgraded": {own: public, url: "http://r.example/v2/", authorized: "Bearer x", from: redirect,
			refused: true},
		"storage": {own: public, url: "https://store.example/blob", from: redirect, guarded: true},
		"plain-registry": {own: &registry{hosts: []string{"r.lan"}, plain: true},
			url: "http://auth.lan/", authorized: "Basic x", guarded: true},
		"registry-of-itself": {own: &registry{hosts: []string{"localhost:5000"}, local: true, plain: true},
			url: "http://127.0.0.1:5001/", authorized: "Basic x"},
	} {
		r := httptest.NewRequest(http.MethodGet, x.url, nil)
		r.Body = nil
		if x.body {
			r.Body = io.NopCloser(strings.NewReader("password"))
		}
		if x.authorized != "" {
			r.Header.Set("Authorization", x.authorized)
		}
		r.Header.Set("X-Key", "k")
		r.Response = x.from
		got, err := x.own.prepare(r)
		if (err != nil) != x.refused {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err != nil {
			continue
		}
		if guarded := got.Context().Value(elsewhere{}) != nil; guarded != x.guarded {
			t.Errorf("%s: guarded %v", name, guarded)
		}
		if key := got.Header.Get("X-Key"); x.guarded && x.from != nil && x.own == public && key != "" {
			t.Errorf("%s: another host gets the key", name)
		}
	}
}

// TestRegistryLeadsNowhereInside: a redirect does not reach what listens for
// this machine alone.
func TestRegistryLeadsNowhereInside(t *testing.T) {
	inside := newListener(t, func(http.ResponseWriter, *http.Request) {})
	c := &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	if err := limitTransport(c, &registry{hosts: []string{"r.example"}}); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"} {
		resp, err := c.Get("http://" + host + ":" + port + "/")
		if err == nil {
			resp.Body.Close()
		}
		if !errors.Is(err, errInward) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if len(inside.heard()) > 0 {
		t.Error("it was reached")
	}
	for address, ok := range map[string]bool{"169.254.169.254:80": false, "[fe80::1%eth0]:80": false,
		"10.0.0.1:443": true, "[2001:db8::1]:443": true} {
		if err := checkOutward(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestAddressesOfImages: an image cannot have the node ask anything elsewhere.
func TestAddressesOfImages(t *testing.T) {
	other := newListener(t, http.NotFound)
	s, r := newStore(t, t.TempDir(), 0), newRogue(t)
	r.image(t, func(m *ocispec.Manifest) {
		m.Config.URLs, m.Layers[0].URLs = []string{other.URL + "/config"}, []string{other.URL + "/layer"}
	}, layer(t))
	if _, err := s.Pull(t.Context(), r.name(), nil); err != nil {
		t.Error(err)
	}
	if got := other.heard(); len(got) > 0 {
		t.Errorf("it heard %q", got)
	}
}

// TestKnownDigestIsNotEnough: a registry that only names what the node has from
// another one brings nobody that image (KEP-2535).
func TestKnownDigestIsNotEnough(t *testing.T) {
	s, private := newStore(t, t.TempDir(), 0), newRogue(t)
	manifest := private.image(t, nil, layer(t, &tar.Header{Name: "f", Size: 10}))
	id, err := s.Pull(t.Context(), private.name(), nil)
	if err != nil {
		t.Fatal(err)
	}
	name := func(r *rogue) string {
		return strings.TrimSuffix(r.name(), ":1") + "@" + digest.FromBytes(manifest).String()
	}
	claims := newRogue(t)
	claims.instead["/manifests/"] = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		if q.Method == http.MethodHead {
			http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(manifest))
			return
		}
		_, _ = w.Write(bytes.Repeat([]byte(" "), len(manifest)))
	})
	if got, err := s.Pull(t.Context(), name(claims), nil); err == nil {
		t.Errorf("a registry that has nothing brings %s", got)
	}
	refers := newRogue(t)
	idx := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{
		{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}}}
	idx.SchemaVersion = 2
	refers.manifest, refers.kind = encode(t, idx), ocispec.MediaTypeImageIndex
	if got, err := s.Pull(t.Context(), refers.name(), nil); err == nil {
		t.Errorf("an index that refers to it brings %s", got)
	}
	if img, err := s.Find(id); err != nil || len(img.Tags) != 1 || len(img.Digests) != 1 {
		t.Errorf("it has the names %v %v, %v", img.Tags, img.Digests, err)
	}
	owner := newRogue(t)
	owner.blobs, owner.manifest = private.blobs, manifest
	for _, n := range []string{name(owner), owner.name(), private.name()} {
		if got, err := s.Pull(t.Context(), n, nil); err != nil || got != id {
			t.Errorf("%s: %q, %v", n, got, err)
		}
	}
}

func TestServerAddresses(t *testing.T) {
	for address, hosts := range map[string]map[string]bool{
		"":                          {"r.example.com": true},
		"r.example.com":             {"r.example.com": true, "r.example.com:5000": false, "x.example.com": false},
		"https://r.example.com/v1/": {"r.example.com": true},
		"*.example.com": {"r.example.com": true, "example.com": false, "a.b.example.com": false,
			"r.example.com.evil.org": false},
		"https://index.docker.io/v1/": {"registry-1.docker.io": true, "docker.io": false},
		"docker.io":                   {"registry-1.docker.io": true},
		"evildocker.io":               {"registry-1.docker.io": false},
	} {
		for host, want := range hosts {
			if got := (&Auth{ServerAddress: address}).isFor(host); got != want {
				t.Errorf("%s for %s: %v", address, host, got)
			}
		}
	}
}

// transport answers with a body that comes slowly.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestSlowAnswersEnd: a manifest or a token that comes byte by byte.
func TestSlowAnswersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := transport(func(r *http.Request) (*http.Response, error) {
			pr, pw := io.Pipe()
			go func() {
				defer pw.Close()
				for {
					select {
					case <-r.Context().Done():
						pw.CloseWithError(r.Context().Err())
						return
					case <-time.After(time.Second):
					}
					if _, err := pw.Write([]byte{' '}); err != nil {
						return
					}
				}
			}()
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: pr}, nil
		})
		began := time.Now()
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://r.example/v2/", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := careful{slow, &registry{hosts: []string{"r.example"}}}.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, errTooSlow) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > answerWait {
			t.Errorf("it took %v", took)
		}
	})
}
