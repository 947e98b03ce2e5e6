package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/time/rate"

	"github.com/shoal-project/shoal/agent/image/peer"
)

// fleet is a number of nodes with their stores, who hear of each other.
type fleet struct {
	*rogue
	ca      *x509.Certificate
	key     *ecdsa.PrivateKey
	roots   *x509.CertPool
	mu      sync.Mutex
	nodes   map[string]*fleetNode
	sent    atomic.Int64 // bytes of layers by the registry
	spoiled atomic.Pointer[string]
	refused atomic.Int32  // so many questions are not answered, as when too many are asked
	line    *rate.Limiter // of the registry; nil: no limit
}

type fleetNode struct {
	name     string
	store    *Store
	peers    *peer.Peers
	server   *http.Server
	port     uint16
	cert     *tls.Certificate
	down     atomic.Bool
	mute     atomic.Bool  // it answers no questions
	frozen   atomic.Int64 // it sends so many bytes more, and then nothing; 0: as many as there are
	received atomic.Int64
	fault    atomic.Pointer[func(w http.ResponseWriter, r *http.Request, good http.Handler)]
}

func newFleet(t *testing.T, n int) *fleet {
	f := &fleet{rogue: newRogue(t), nodes: map[string]*fleetNode{}, roots: x509.NewCertPool()}
	f.ca, f.key = authority(t)
	f.roots.AddCert(f.ca)
	f.instead["/blobs/"] = http.HandlerFunc(f.blob)
	for i := range n {
		f.join(t, fmt.Sprintf("node%02d", i), t.TempDir())
	}
	return f
}

func (f *fleet) blob(w http.ResponseWriter, r *http.Request) {
	_, name, _ := strings.Cut(r.URL.Path, "/blobs/")
	body := f.blobs[digest.Digest(name)]
	if body == nil {
		http.NotFound(w, r)
		return
	}
	http.ServeContent(slow{w, f}, r, "", time.Time{}, bytes.NewReader(body))
}

// slow sends what the registry's line carries.
type slow struct {
	http.ResponseWriter
	f *fleet
}

func (s slow) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), 16<<10)]
		if s.f.line != nil {
			if err := s.f.line.WaitN(context.Background(), len(part)); err != nil {
				return n, err
			}
		}
		var m int
		m, err = s.ResponseWriter.Write(part)
		s.f.sent.Add(int64(m))
		n, p = n+m, p[m:]
	}
	return n, err
}

func authority(t *testing.T) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}

func (f *fleet) certificate(t *testing.T, cn string, groups ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:   pkix.Name{CommonName: cn, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tpl, f.ca, &key.PublicKey, f.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

var errDown = errors.New("no answer")

func (f *fleet) join(t *testing.T, name, dir string) *fleetNode {
	t.Helper()
	s, err := Open(t.Context(), Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &fleetNode{name: name, store: s, cert: f.certificate(t, "system:node:"+name, "system:nodes")}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	n.port = uint16(number)
	n.peers = peer.New(peer.Config{
		Name: name, Port: n.port,
		Members: f.members,
		Ask: func(ctx context.Context, member string, question []byte) ([]byte, error) {
			f.mu.Lock()
			other := f.nodes[member]
			f.mu.Unlock()
			if other == nil || other.down.Load() || n.down.Load() || f.refused.Add(-1) >= 0 {
				return nil, errDown
			}
			if other.mute.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			said := other.peers.Answer(name, question)
			if said == nil {
				return nil, errDown
			}
			return said, nil
		},
		Credentials: func() (*tls.Certificate, *x509.CertPool, error) { return n.cert, f.roots, nil },
		Store:       s.ForPeers(),
		Received:    func(k int) { n.received.Add(int64(k)) },
		Sent:        func(int) {},
		Log:         slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	s.SetPeers(n.peers)
	mux := http.NewServeMux()
	mux.Handle("GET "+peer.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.down.Load() {
			panic(http.ErrAbortHandler)
		}
		if bad := f.spoiled.Load(); bad != nil && *bad == name {
			w = spoiling{w}
		}
		if n.frozen.Load() != 0 {
			w = freezing{w, n, r}
		}
		if fault := n.fault.Load(); fault != nil {
			(*fault)(w, r, n.peers)
			return
		}
		n.peers.ServeHTTP(w, r)
	}))
	n.server = &http.Server{Handler: mux, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{*n.cert}, ClientAuth: tls.RequestClientCert,
			NextProtos: []string{"http/1.1"}}}
	go func() { _ = n.server.ServeTLS(l, "", "") }()
	t.Cleanup(func() {
		n.server.Close()
		n.peers.Close()
		s.Close()
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name] = n
	return n
}

func (f *fleet) members() (out []peer.Member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, n := range f.nodes {
		if !n.down.Load() {
			out = append(out, peer.Member{Name: name, Addr: netip.MustParseAddr("127.0.0.1")})
		}
	}
	return out
}

// spoiling changes a byte of what is sent.
type spoiling struct{ http.ResponseWriter }

func (s spoiling) Write(p []byte) (int, error) {
	q := bytes.Clone(p)
	q[0] ^= 1
	return s.ResponseWriter.Write(q)
}

func (s spoiling) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// freezing sends some bytes, and then nothing any more, as a machine that has no power.
type freezing struct {
	http.ResponseWriter
	n *fleetNode
	r *http.Request
}

func (f freezing) Write(p []byte) (int, error) {
	if f.n.frozen.Add(-int64(len(p))) < 1 {
		f.n.frozen.Store(1)
		<-f.r.Context().Done()
		return 0, errDown
	}
	return f.ResponseWriter.Write(p)
}

func (f freezing) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// noise is a layer of a file of that size that does not compress.
func noise(t *testing.T, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "noise", Mode: 0o644, Size: int64(size)}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// pullAll has every node that is up pull at once, and returns how long the last took.
func (f *fleet) pullAll(t *testing.T, but ...string) time.Duration {
	t.Helper()
	begin := time.Now()
	var wg sync.WaitGroup
	for name, n := range f.nodes {
		if n.down.Load() || strings.Contains(strings.Join(but, " "), name) {
			continue
		}
		wg.Go(func() {
			if _, err := n.store.Pull(t.Context(), f.name(), nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	wg.Wait()
	return time.Since(begin)
}

// TestFleetPullsOnce: twenty nodes pull an image of three layers at the same time; the
// registry, whose line is slow, sends little more than one. Nodes that answer none for
// seconds, as on a machine that stands still, are taken for away, and the registry sends
// more: so it may happen twice.
func TestFleetPullsOnce(t *testing.T) {
	const tries = 3
	var sent, most int64
	for range tries {
		if sent, most = pullTogether(t); sent <= most {
			return
		}
	}
	t.Errorf("the registry sent %d bytes, each of %d times more than %d", sent, tries, most)
}

// pullTogether has twenty nodes pull, and returns what the registry sent and may send.
func pullTogether(t *testing.T) (sent, most int64) {
	t.Helper()
	size := int64(0)
	f := newFleet(t, 20)
	f.image(t, nil, noise(t, 3<<20), noise(t, 3<<19), noise(t, 1<<19))
	for _, b := range f.blobs {
		size += int64(len(b))
	}
	f.line = rate.NewLimiter(2<<20, 64<<10)
	one := f.join(t, "single", t.TempDir())
	one.store.SetPeers(nil)
	begin := time.Now()
	if _, err := one.store.Pull(t.Context(), f.name(), nil); err != nil {
		t.Fatal(err)
	}
	single := time.Since(begin)
	one.down.Store(true)
	f.sent.Store(0)
	all := f.pullAll(t)
	sent = f.sent.Load()
	t.Logf("one node %.1f s, the last of 20 %.1f s (%.2f times); the registry sent %.2f images", single.Seconds(),
		all.Seconds(), all.Seconds()/single.Seconds(), float64(sent)/float64(size))
	return sent, size*11/10 + 20*(64<<10)
}

// TestLayersOfOneThatHasThem: who pulls later gets layers from who has them, also
// when the first one asked has removed them.
func TestLayersOfOneThatHasThem(t *testing.T) {
	f := newFleet(t, 4)
	f.image(t, nil, noise(t, 5<<20))
	f.pullAll(t, "node02 node03")
	f.sent.Store(0)
	f.pullAll(t, "node03")
	if f.sent.Load() > 64<<10 || f.nodes["node02"].received.Load() < 5<<20 {
		t.Errorf("the registry sent %d bytes, other nodes %d", f.sent.Load(), f.nodes["node02"].received.Load())
	}
	for _, name := range []string{"node00", "node02"} {
		if err := f.nodes[name].store.Remove(t.Context(), f.name(), func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
	f.pullAll(t)
	if f.sent.Load() > 5<<19 {
		t.Errorf("the registry sent %d bytes though a node had the layer", f.sent.Load())
	}
}

// TestKeeperIsBusy: nodes that get no answer at first do not go to the registry.
func TestKeeperIsBusy(t *testing.T) {
	f := newFleet(t, 3)
	f.image(t, nil, noise(t, 1<<20))
	f.pullAll(t, "node01 node02")
	time.Sleep(100 * time.Millisecond) // the keeper is told
	f.sent.Store(0)
	f.refused.Store(1)
	f.pullAll(t)
	if f.sent.Load() > 64<<10 {
		t.Errorf("the registry sent %d bytes", f.sent.Load())
	}
}

// TestSourceDies: a node that others get a layer from ends; they go on.
func TestSourceDies(t *testing.T) {
	f := newFleet(t, 6)
	f.image(t, nil, noise(t, 8<<20))
	f.line = rate.NewLimiter(4<<20, 64<<10)
	go func() {
		time.Sleep(700 * time.Millisecond)
		for _, n := range f.nodes {
			if n.received.Load() == 0 { // it is the one at the registry
				n.down.Store(true)
				n.server.Close()
				return
			}
		}
	}()
	f.pullAll(t)
	if sent := f.sent.Load(); sent > 8<<20*5/2 {
		t.Errorf("the registry sent %d bytes", sent)
	}
}

// TestSourceFreezes: the only node that has a layer sends the half of it, and then nothing,
// without an end of its connections. The rest comes from the registry.
func TestSourceFreezes(t *testing.T) {
	f := newFleet(t, 2)
	f.image(t, nil, noise(t, 12<<20))
	f.pullAll(t, "node01")
	f.sent.Store(0)
	f.nodes["node00"].frozen.Store(6 << 20)
	if took := f.pullAll(t); took > time.Minute {
		t.Errorf("the pull took %v", took)
	}
	// What the registry has sent is counted as it goes to a socket, which may be closed before
	// its last megabytes are read.
	if got := f.nodes["node01"].received.Load(); got < 4<<20 || f.sent.Load() > 11<<20 {
		t.Errorf("%d bytes came from the node, %d from the registry", got, f.sent.Load())
	}
}

// TestSpoiledLayer: what a node sends is wrong. The layer comes from the registry.
func TestSpoiledLayer(t *testing.T) {
	f := newFleet(t, 3)
	f.image(t, nil, noise(t, 3<<20))
	f.pullAll(t, "node01 node02")
	bad := "node00"
	f.spoiled.Store(&bad)
	for range 2 {
		f.pullAll(t)
		if err := f.nodes["node01"].store.Remove(t.Context(), f.name(), func(string) bool { return false }); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhoGetsLayers: the digest of a layer is not enough to get it.
func TestWhoGetsLayers(t *testing.T) {
	f := newFleet(t, 2)
	manifest := f.image(t, nil, noise(t, 1<<20))
	f.pullAll(t, "node01")
	get := func(cert *tls.Certificate, layer, of string, proof func(*tls.ConnectionState) string) int {
		t.Helper()
		c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.nodes["node00"].port),
			&tls.Config{RootCAs: f.roots, InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		state := c.ConnectionState()
		fmt.Fprintf(c, "GET %s?manifest=%s HTTP/1.1\r\nHost: x\r\nRange: bytes=0-9\r\n"+
			"Shoal-Layer-Proof: %s\r\nConnection: close\r\n\r\n", strings.Replace(peer.Path, "{digest}", layer, 1), of,
			proof(&state))
		said, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		code, err := strconv.Atoi(strings.Fields(string(said))[1])
		if err != nil {
			t.Fatal(err)
		}
		return code
	}
	node := f.nodes["node01"].cert
	of := digest.FromBytes(manifest)
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest, &m); err != nil {
		t.Fatal(err)
	}
	layer := m.Layers[0].Digest
	proves := func(s *tls.ConnectionState, manifest []byte) string {
		t.Helper()
		proof, err := peer.Proof(s, manifest, layer)
		if err != nil {
			t.Error(err)
		}
		return proof
	}
	right := func(s *tls.ConnectionState) string { return proves(s, manifest) }
	old := ""
	for _, x := range []struct {
		what  string
		layer string
		proof func(*tls.ConnectionState) string
		want  int
	}{
		{"it has the manifest", layer.String(), func(s *tls.ConnectionState) string { old = right(s); return old }, 206},
		{"no proof", layer.String(), func(*tls.ConnectionState) string { return "" }, 404},
		{"another connection's proof", layer.String(), func(*tls.ConnectionState) string { return old }, 404},
		{"another manifest", layer.String(), func(s *tls.ConnectionState) string {
			return proves(s, append(bytes.Clone(manifest), ' '))
		}, 404},
		{"not a layer of it", of.String(), right, 404},
	} {
		if got := get(node, x.layer, of.String(), x.proof); got != x.want {
			t.Errorf("%s: %d, want %d", x.what, got, x.want)
		}
	}
}
