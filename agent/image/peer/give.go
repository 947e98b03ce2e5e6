package peer

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Path is where a node gives a layer, in the kubelet's API. The query names the manifest.
const Path = "/shoal/v1/layers/{digest}"

const (
	manifestParameter = "manifest"
	proofHeader       = "Shoal-Layer-Proof"
	// maxGiving is how many requests are answered at one time, maxGivingOne those of one node: it
	// has perNode connections, and as many of an agent before that are not known to have ended.
	maxGiving    = 64
	maxGivingOne = 2 * perNode
	// maxRange is how much one request gets.
	maxRange = 4 << 20
	// growTime is how long a request waits for more of a layer that is coming in. Then its
	// answer ends in order, so that who asked knows that this node lives.
	growTime = 5 * time.Second
	// sendTime is for each piece that is sent: who takes nothing must not hold a place.
	sendTime = 30 * time.Second
)

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// ServeHTTP gives a range of a layer to a node. Its caller has verified that it is one of
// the cluster's.
func (p *Peers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	done, ok := p.admit(r)
	if !ok {
		http.Error(w, "too many get layers here", http.StatusServiceUnavailable)
		return
	}
	defer done()
	from, to, err := parseRange(r.Header.Get("Range"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestedRangeNotSatisfiable)
		return
	}
	l, desc := p.open(r)
	if l == nil { // the same answer for all reasons: it tells nothing of what is here
		http.NotFound(w, r)
		return
	}
	defer l.Close()
	if from >= desc.Size {
		http.Error(w, "range", http.StatusRequestedRangeNotSatisfiable)
		return
	}
	to = min(to, desc.Size-1)
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, desc.Size))
	w.WriteHeader(http.StatusPartialContent)
	if err := p.send(r.Context(), w, l, from, to+1); err != nil {
		panic(http.ErrAbortHandler) // the answer must not look whole
	}
}

// admit tells whether one more request is answered, of all and of its node; done says that it
// is.
func (p *Peers) admit(r *http.Request) (done func(), ok bool) {
	node := ""
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		node = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.givingAll >= maxGiving || p.giving[node] >= maxGivingOne {
		return nil, false
	}
	p.givingAll++
	p.giving[node]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.givingAll--
		if p.giving[node]--; p.giving[node] == 0 {
			delete(p.giving, node)
		}
	}, true
}

// open finds the layer that a request proves to know; nil: there is none.
func (p *Peers) open(r *http.Request) (Layer, ocispec.Descriptor) {
	none := ocispec.Descriptor{}
	name, err := digest.Parse(r.PathValue("digest"))
	if err != nil || r.TLS == nil {
		return nil, none
	}
	of, err := digest.Parse(r.URL.Query().Get(manifestParameter))
	if err != nil {
		return nil, none
	}
	manifest, err := p.cfg.Store.Manifest(r.Context(), of)
	if err != nil {
		return nil, none
	}
	right, err := Proof(r.TLS, manifest, name)
	if err != nil || !hmac.Equal([]byte(right), []byte(r.Header.Get(proofHeader))) {
		return nil, none
	}
	for _, desc := range layersOf(manifest) {
		if desc.Digest == name {
			l, err := p.cfg.Store.Layer(r.Context(), desc)
			if err != nil {
				return nil, none
			}
			return l, desc
		}
	}
	return nil, none
}

// parseRange reads "bytes=FROM-TO", the one form that is asked for here.
func parseRange(s string) (from, to int64, err error) {
	bounds, ok := strings.CutPrefix(s, "bytes=")
	if !ok {
		return 0, 0, errors.New("a range of bytes is needed")
	}
	if n, err := fmt.Sscanf(bounds, "%d-%d", &from, &to); n != 2 || err != nil {
		return 0, 0, fmt.Errorf("range %q: use bytes=FROM-TO", s)
	}
	if from < 0 || to < from || to-from >= maxRange {
		return 0, 0, fmt.Errorf("range %q: at most %d bytes", s, maxRange)
	}
	return from, to, nil
}

// send writes what is there between from and end, as it comes in. It ends without an error
// when nothing came for growTime.
func (p *Peers) send(ctx context.Context, w http.ResponseWriter, l Layer, from, end int64) error {
	control := http.NewResponseController(w)
	buf := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buf)
	defer func() { _ = control.SetWriteDeadline(time.Time{}) }() // the connection has other answers to come
	if err := errors.Join(control.SetWriteDeadline(time.Now().Add(sendTime)), control.Flush()); err != nil {
		return err
	}
	for from < end {
		there, err := grown(ctx, l, from)
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		for from < min(there, end) {
			part := buf[:min(int64(len(buf)), min(there, end)-from)]
			if n, err := l.ReadAt(part, from); n < len(part) {
				return errors.Join(io.ErrUnexpectedEOF, err)
			}
			if p.limiter != nil {
				if err := p.limiter.WaitN(ctx, len(part)); err != nil {
					return err
				}
			}
			if err := control.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
				return err
			}
			if _, err := w.Write(part); err != nil {
				return err
			}
			p.cfg.Sent(len(part))
			from += int64(len(part))
		}
		if err := control.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func grown(ctx context.Context, l Layer, n int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, growTime)
	defer cancel()
	return l.Grown(ctx, n)
}
