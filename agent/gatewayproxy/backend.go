package gatewayproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

var errNoEndpoint = errors.New("the backend has no endpoint")

// endpoints are a backend's addresses, in a random order.
func (p *Proxy) endpoints(b *gatewayfeed.Backend, udp bool) []netip.AddrPort {
	list := slices.Clone((*p.backends.Load())[b.Key(udp)])
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// transports keep connections to backends: one for those of HTTP/1.1, one for those of
// HTTP/2 without TLS, and one for each way of TLS.
type transports struct {
	mu  sync.Mutex
	all map[string]*http.Transport
}

// forget drops the ones of TLS: certificates may have changed.
func (t *transports) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, tr := range t.all {
		if name != "" && name != gatewayfeed.H2C {
			delete(t.all, name)
			tr.CloseIdleConnections()
		}
	}
}

func (t *transports) get(name string, make func() *http.Transport) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if tr := t.all[name]; tr != nil {
		return tr
	}
	if t.all == nil {
		t.all = map[string]*http.Transport{}
	}
	tr := make()
	t.all[name] = tr
	return tr
}

// transport keeps connections by the pod's address.
func transport() *http.Transport {
	d := net.Dialer{Timeout: dialTime}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return d.DialContext(ctx, network, address)
		},
		DisableCompression:     true,
		MaxIdleConns:           1024,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        idleTime,
		MaxResponseHeaderBytes: 1 << 20,
		ExpectContinueTimeout:  time.Second,
		TLSHandshakeTimeout:    headerTime,
	}
}

func (x *exchange) transport(b *gatewayfeed.Backend) *http.Transport {
	if b.TLS == nil {
		return x.transports.get(b.Protocol, func() *http.Transport {
			t := transport()
			if b.Protocol == gatewayfeed.H2C {
				t.Protocols = new(http.Protocols)
				t.Protocols.SetUnencryptedHTTP2(true)
			}
			return t
		})
	}
	name, err := json.Marshal(b.TLS)
	if err != nil {
		panic(err) // strings and flags can be told
	}
	return x.transports.get(string(name)+b.Protocol, func() *http.Transport {
		t := transport()
		t.TLSClientConfig = x.state.Load().clientTLS(b.TLS)
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP2(true)
		if b.Protocol != gatewayfeed.H2C { // gRPC has no other
			t.Protocols.SetHTTP1(true)
		}
		return t
	})
}

// clientTLS verifies a backend by what its policy says (BackendTLSPolicy).
func (s *state) clientTLS(b *gatewayfeed.BackendTLS) *tls.Config {
	c := &tls.Config{ServerName: b.Hostname, MinVersion: tls.VersionTLS12}
	if !b.System {
		c.RootCAs = x509.NewCertPool()
	}
	pools := []*x509.CertPool{}
	for _, name := range b.Authorities {
		pools = append(pools, s.authorities[name])
	}
	if b.Certificate != "" {
		if pair := s.certificates[b.Certificate]; pair != nil {
			c.Certificates = []tls.Certificate{*pair}
		}
	}
	// One of several bundles vouches, for one of several names: by hand.
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(cs tls.ConnectionState) error { return verifyBackend(b, pools, cs) }
	return c
}

func verifyBackend(b *gatewayfeed.BackendTLS, pools []*x509.CertPool, cs tls.ConnectionState) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the backend shows no certificate")
	}
	leaf, between := cs.PeerCertificates[0], x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if b.System {
		pools = append(slices.Clone(pools), nil) // the system's
	}
	err := errors.New("the backend's policy names no authority")
	for _, roots := range pools {
		if _, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between}); err == nil {
			break
		}
	}
	if err != nil {
		return err
	}
	if len(b.Names)+len(b.URIs) == 0 {
		return leaf.VerifyHostname(b.Hostname)
	}
	for _, u := range leaf.URIs {
		if slices.Contains(b.URIs, u.String()) {
			return nil
		}
	}
	for _, name := range b.Names {
		if leaf.VerifyHostname(name) == nil || slices.Contains(leaf.DNSNames, name) {
			return nil
		}
	}
	return fmt.Errorf("the backend's certificate has none of the names %q", slices.Concat(b.Names, b.URIs))
}

// roundTripper asks one of the pods of the exchange's backend, and another one if it
// cannot be reached: no request goes to a pod that is gone while there are others.
type roundTripper struct{}

func (roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	replay, err := newReplay(r)
	if err != nil {
		return nil, err
	}
	retry := x.found.Retry
	for attempt := 0; ; attempt++ {
		resp, err := x.ask(r, replay)
		if retry == nil || attempt >= retry.Attempts || !replay.again() || r.Context().Err() != nil {
			return resp, err
		}
		if err == nil {
			if !slices.Contains(retry.Codes, resp.StatusCode) {
				return resp, nil
			}
			_, _ = io.CopyN(io.Discard, resp.Body, replayed)
			_ = resp.Body.Close()
		} else if errors.Is(err, errNoEndpoint) {
			return nil, err
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(retry.Backoff):
		}
	}
}

// ask asks the backend once; an address that refuses the connection has seen nothing of
// the request.
func (x *exchange) ask(r *http.Request, body *replay) (*http.Response, error) {
	err := errNoEndpoint
	for _, address := range x.endpoints(x.backend, false) {
		var resp *http.Response
		if resp, err = x.askOne(r, address, body); err == nil {
			return resp, nil
		}
		var refused *net.OpError
		if !errors.As(err, &refused) || refused.Op != "dial" || !body.again() || r.Context().Err() != nil {
			break
		}
	}
	return nil, err
}

func (x *exchange) askOne(r *http.Request, address netip.AddrPort, body *replay) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	if t := x.found.BackendTimeout; t > 0 {
		ctx, cancel = context.WithTimeout(r.Context(), t)
	}
	out := r.Clone(ctx)
	out.URL.Host = address.String()
	out.Body = body.reader()
	resp, err := x.transport(x.backend).RoundTrip(out)
	if err != nil {
		if ctx.Err() != nil && r.Context().Err() == nil {
			err = context.DeadlineExceeded
		}
		cancel()
		return nil, err
	}
	if w, ok := resp.Body.(io.ReadWriteCloser); ok { // of a connection that is no longer HTTP's
		resp.Body = &upgraded{w, cancel}
		return resp, nil
	}
	resp.Body = &ending{resp.Body, cancel}
	resp.Request = r
	return resp, nil
}

// ending ends the time of an answer with it.
type ending struct {
	io.ReadCloser
	end func()
}

func (e *ending) Close() error {
	defer e.end()
	return e.ReadCloser.Close()
}

type upgraded struct {
	io.ReadWriteCloser
	end func()
}

func (u *upgraded) Close() error {
	defer u.end()
	return u.ReadWriteCloser.Close()
}

// replay keeps the beginning of a request's body, so that it can be sent again.
type replay struct {
	body    io.ReadCloser
	kept    bytes.Buffer
	keep    bool // nothing is lost yet
	whole   bool // all of it is kept
	touched bool
	mu      sync.Mutex
}

func newReplay(r *http.Request) (*replay, error) {
	p := &replay{body: r.Body, keep: true}
	if r.Body == nil || r.Body == http.NoBody {
		p.whole = true
		return p, nil
	}
	x, _ := r.Context().Value(exchangeKey{}).(*exchange)
	if x == nil || x.found.Retry == nil || r.ContentLength < 0 || r.ContentLength > replayed {
		p.keep = false
		return p, nil
	}
	_, err := p.kept.ReadFrom(io.LimitReader(r.Body, replayed))
	p.whole = true
	return p, err
}

// again tells whether the body can be sent once more.
func (p *replay) again() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.whole || !p.touched
}

func (p *replay) reader() io.ReadCloser {
	switch {
	case p.body == nil || p.body == http.NoBody:
		return http.NoBody
	case p.whole:
		return io.NopCloser(bytes.NewReader(p.kept.Bytes()))
	}
	return &once{p}
}

// once is the client's own body; a transport that does not reach its backend closes it
// unread. Its server closes it in the end.
type once struct{ *replay }

func (o *once) Read(b []byte) (int, error) {
	o.mu.Lock()
	o.touched = true
	o.mu.Unlock()
	return o.body.Read(b)
}

func (o *once) Close() error { return nil }

// mirror sends copies of a request to other backends, as far as there is room.
func (x *exchange) mirror(r *http.Request) {
	list := slices.Concat(x.found.Filters.Mirrors, x.backend.Filters.Mirrors)
	var chosen []gatewayfeed.Mirror
	for _, m := range list {
		if m.Backend.Service != "" && rand.Int32N(max(m.Denominator, 1)) < m.Numerator {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 || r.ContentLength > mirrored || r.Header.Get("Upgrade") != "" || r.ContentLength < 0 {
		return
	}
	var body []byte
	if r.ContentLength > 0 {
		var err error
		if body, err = io.ReadAll(io.LimitReader(r.Body, mirrored)); err != nil {
			return // so will the backend's be
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	for i := range chosen {
		select {
		case x.copies <- struct{}{}:
		default:
			return
		}
		go func() {
			defer func() { <-x.copies }()
			x.sendCopy(r, &chosen[i].Backend, body)
		}()
	}
}

func (x *exchange) sendCopy(r *http.Request, b *gatewayfeed.Backend, body []byte) {
	list := x.endpoints(b, false)
	if len(list) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out := r.Clone(ctx)
	out.RequestURI = ""
	copied := *x
	copied.backend = b
	for _, line := range r.Header["Connection"] { // what it names is for this connection alone
		for name := range strings.SplitSeq(line, ",") {
			out.Header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding",
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		out.Header.Del(name)
	}
	(&httputil.ProxyRequest{In: r, Out: out}).SetXForwarded()
	copied.rewrite(out)
	out.URL.Host = list[0].String()
	out.Body = http.NoBody
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := copied.transport(b).RoundTrip(out)
	if err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, resp.Body, mirrored)
	_ = resp.Body.Close()
}
