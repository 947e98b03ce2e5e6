package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// piece is a range of a layer that one node is asked for.
type piece struct {
	from, to int64 // to is the first byte after it
	src      *giver
	cancel   func()
	silence  *time.Timer // ends a request of which nothing comes

	// The rest is guarded by the body's mu.
	buf   []byte // of to-from bytes, n of them are there
	n     int
	taken int // handed on to the reader
	ended bool
	err   error // of a node that does not give it
}

// giver is a node that a body gets pieces from.
type giver struct {
	Given
	lost bool // it does not give the layer
	busy bool // it cannot now
}

// blame says why a node did not send all of a piece; nil: it had no more for now.
func (g *giver) blame(err error) {
	switch {
	case err == nil:
	case errors.Is(err, errBusy), errors.Is(err, context.Canceled):
		g.busy = true
	default:
		g.lost = true
	}
}

var (
	errBusy    = errors.New("the node gives layers to many others")
	errMissing = errors.New("the node does not give the layer")
	errSilent  = errors.New("the node says nothing any more")
)

// silentTime is how long nothing may come of a request that has its connection.
const silentTime = 2 * growTime

// get fills a piece; it ends early, without an error, when the node has no more for now.
func (b *body) get(ctx context.Context, c *piece, from int64) error {
	t := b.t
	at := url.URL{
		Scheme: "https", Host: net.JoinHostPort(c.src.Node, strconv.Itoa(int(c.src.Port))),
		Path:     strings.Replace(Path, "{digest}", t.desc.Digest.String(), 1),
		RawQuery: url.Values{manifestParameter: {t.name.String()}}.Encode(),
	}
	r, err := http.NewRequest(http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return err
	}
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, c.to-1))
	// The proof is about the connection that the request goes over.
	var failed error
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		// A node that lives says so each growTime, if only by ending its answer.
		c.silence.Reset(silentTime)
		failed = proveOver(i.Conn, r, t)
	}})
	resp, err := t.peers.transport.RoundTrip(r.WithContext(ctx))
	if err != nil {
		if ctx.Err() == nil {
			t.peers.ban(c.src.Node, unreachableTime)
		}
		return err
	}
	defer resp.Body.Close()
	switch {
	case failed != nil:
		return failed
	case resp.StatusCode == http.StatusServiceUnavailable:
		return errBusy
	case resp.StatusCode != http.StatusPartialContent:
		return fmt.Errorf("%w: %s", errMissing, resp.Status)
	case !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", from)):
		return fmt.Errorf("%w: it sends another range", errMissing)
	}
	began := time.Now()
	if err := b.fill(c, resp.Body); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.n < len(c.buf) && time.Since(began) < growTime/2 {
		return fmt.Errorf("%w: its answer ends early", errMissing) // one that has no more yet waits for it
	}
	return nil
}

// proveOver adds to a request what shows the other end of its connection that this node
// has the manifest.
func proveOver(c net.Conn, r *http.Request, t *Transfer) error {
	secured, ok := c.(*tls.Conn)
	if !ok {
		return errors.New("the connection is not TLS")
	}
	state := secured.ConnectionState()
	proof, err := Proof(&state, t.manifest, t.desc.Digest)
	r.Header.Set(proofHeader, proof)
	return err
}

// fill reads what a node sends into the piece.
func (b *body) fill(c *piece, from io.Reader) error {
	for {
		b.mu.Lock()
		rest := c.buf[c.n:]
		b.mu.Unlock()
		if len(rest) == 0 { // the end is read too, so that the connection can be used again
			if n, err := from.Read(make([]byte, 1)); n > 0 || err != nil && !errors.Is(err, io.EOF) {
				return errors.Join(errMissing, err)
			}
			return nil
		}
		n, err := from.Read(rest[:min(len(rest), chunk)]) // nobody else looks beyond n
		b.mu.Lock()
		c.n += n
		b.got += int64(n)
		b.mu.Unlock()
		if n > 0 {
			c.silence.Reset(silentTime)
			b.t.count(c.src, n)
			poke(b.news)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
