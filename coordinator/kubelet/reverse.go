package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shoal-project/shoal/agent/reverse"
)

// Reverse holds the connections of nodes that cannot be dialled, one a node: the newest, for
// of the one before only this side may not know yet that it has ended.
type Reverse struct {
	Log *slog.Logger

	mu     sync.Mutex
	nodes  map[string]*link
	came   chan struct{} // closed when the next node comes; nil: nobody waits
	closed bool
}

// link is the connection of one node.
type link struct {
	http2 *http2.ClientConn
	conn  *watched
}

// watched tells when it is closed.
type watched struct {
	net.Conn
	once  sync.Once
	ended chan struct{}
}

// Close implements net.Conn.
func (w *watched) Close() error {
	err := w.Conn.Close()
	w.once.Do(func() { close(w.ended) })
	return err
}

// Signs of life, as the other side's.
const (
	pingAfter = 15 * time.Second
	pingTime  = 10 * time.Second
	// openTime bounds opening a stream: the node is asked nothing else.
	openTime = 10 * time.Second
)

// ServeHTTP takes the connection of a node, and returns when it has ended. The node is who
// its client certificate says; no token, and nobody who impersonates a node, can be one here.
func (v *Reverse) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	node, until, ok := certified(r)
	switch {
	case !ok:
		http.Error(w, "only a node may connect here, by its client certificate", http.StatusForbidden)
		return
	case r.Method != http.MethodGet || r.ProtoMajor != 1 || r.Header.Get("Upgrade") != reverse.Protocol:
		w.Header().Set("Upgrade", reverse.Protocol)
		http.Error(w, "use GET by HTTP/1.1 with Upgrade: "+reverse.Protocol, http.StatusUpgradeRequired)
		return
	}
	l, err := v.take(w)
	if err != nil {
		v.Log.Debug("a node's connection for its kubelet API is not taken", "node", node, "err", err)
		return
	}
	if !v.enter(node, l) {
		_ = l.conn.Close()
		return
	}
	defer v.leave(node, l)
	// Who it is counts as long as the certificate does; the node comes again with its next.
	end := time.NewTimer(time.Until(until))
	defer end.Stop()
	select {
	case <-l.conn.ended:
	case <-end.C:
	}
}

// certified is the node whose client certificate a request shows.
func certified(r *http.Request) (node string, until time.Time, ok bool) {
	u, known := request.UserFrom(r.Context())
	if !known || r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return "", until, false
	}
	cert := r.TLS.PeerCertificates[0]
	node, ok = strings.CutPrefix(u.GetName(), nodePrefix)
	ok = ok && node != "" && cert.Subject.CommonName == u.GetName() && slices.Contains(u.GetGroups(), user.NodesGroup)
	return node, cert.NotAfter, ok
}

func (v *Reverse) take(w http.ResponseWriter) (*link, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "the connection cannot change its protocol", http.StatusInternalServerError)
		return nil, err
	}
	c := &watched{Conn: conn, ended: make(chan struct{})}
	if err := welcome(c, buffered.Reader.Buffered()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	t := &http2.Transport{
		AllowHTTP: true, DisableCompression: true, StrictMaxConcurrentStreams: true,
		ReadIdleTimeout: pingAfter, PingTimeout: pingTime, WriteByteTimeout: pingAfter, MaxHeaderListSize: 4 << 10,
	}
	client, err := t.NewClientConn(c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &link{client, c}, nil
}

// welcome answers a node that has said nothing further yet.
func welcome(c net.Conn, buffered int) error {
	if buffered != 0 {
		return errors.New("the node speaks before it is answered")
	}
	if err := c.SetDeadline(time.Now().Add(openTime)); err != nil {
		return err
	}
	_, err := io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"+
		"Upgrade: "+reverse.Protocol+"\r\n\r\n")
	return errors.Join(err, c.SetDeadline(time.Time{}))
}

func (v *Reverse) enter(node string, l *link) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return false
	}
	if v.nodes == nil {
		v.nodes = map[string]*link{}
	}
	if before := v.nodes[node]; before != nil {
		_ = before.conn.Close()
	}
	v.nodes[node] = l
	if v.came != nil {
		close(v.came)
		v.came = nil
	}
	return true
}

func (v *Reverse) leave(node string, l *link) {
	_ = l.conn.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.nodes[node] == l {
		delete(v.nodes, node)
	}
}

// Close ends all connections; no further ones are taken.
func (v *Reverse) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	for _, l := range v.nodes {
		_ = l.conn.Close()
	}
}

// arrival is closed when the next node connects.
func (v *Reverse) arrival() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.came == nil {
		v.came = make(chan struct{})
	}
	return v.came
}

// Dial opens a connection to a node's kubelet API; false: the node has no connection here.
func (v *Reverse) Dial(ctx context.Context, node, address string) (net.Conn, bool, error) {
	v.mu.Lock()
	l := v.nodes[node]
	v.mu.Unlock()
	if l == nil {
		return nil, false, nil
	}
	c, err := l.open(ctx, address)
	if err != nil {
		return nil, true, fmt.Errorf("through the connection of node %s: %w", node, err)
	}
	return c, true, nil
}

// open makes a stream of the node's connection one of its own.
func (l *link) open(ctx context.Context, address string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	// The stream outlives what asks for it.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	late := time.AfterFunc(openTime, cancel)
	stop := context.AfterFunc(ctx, cancel)
	in, out := io.Pipe()
	req := (&http.Request{
		Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "node", Path: "/" + port}, Host: "node",
		Header: http.Header{}, Body: in, ContentLength: -1,
	}).WithContext(life)
	resp, err := l.http2.RoundTrip(req)
	if err == nil && (!late.Stop() || !stop()) {
		err = errors.Join(context.DeadlineExceeded, resp.Body.Close())
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
		err = errors.Join(fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(why))), resp.Body.Close())
	}
	if err != nil {
		cancel()
		_ = out.Close()
		return nil, err
	}
	ours, theirs := net.Pipe()
	go func() {
		defer cancel()
		defer out.Close()
		reverse.Join(ours, resp.Body, out, nil)
	}()
	return reverse.Conn{Conn: theirs, Local: l.conn.LocalAddr(), Remote: l.conn.RemoteAddr()}, nil
}
