package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Limits of what a registry sends.
const (
	maxError   = 64 << 10 // bytes of an error's body
	maxHeader  = 256 << 10
	headerWait = time.Minute // for the answer to begin
	// A registry must send this much in each such time, or the pull ends:
	// others wait for it.
	paceTime  = 2 * time.Minute
	paceBytes = 64 << 10
)

type blobSize struct{} // key of the size that is expected of an answer's body

// careful is the transport of registry clients: headers, the beginning of an
// answer and bodies are limited, those of tokens and redirects too.
type careful struct {
	next  http.RoundTripper
	token string // a bearer token; "" = none
}

func limitTransport(c *http.Client, token string) error {
	if _, done := c.Transport.(careful); done {
		return nil // a client for several hosts
	}
	t, ok := c.Transport.(*http.Transport)
	if !ok {
		return fmt.Errorf("unexpected transport %T of the registry client", c.Transport)
	}
	t = t.Clone()
	t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = headerWait, maxHeader
	c.Transport = careful{t, token}
	return nil
}

func (t careful) RoundTrip(r *http.Request) (*http.Response, error) {
	// The token goes with requests that carry nothing else, but not to where
	// the registry redirects.
	if t.token != "" && r.Header.Get("Authorization") == "" && r.Response == nil {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+t.token)
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	limit := int64(maxManifest)
	if size, ok := r.Context().Value(blobSize{}).(int64); ok {
		limit = size
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		limit = maxError
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, left: limit}
	return resp, nil
}

// limitedBody fails where more comes than was to be expected.
type limitedBody struct {
	io.ReadCloser
	left int64
}

var errTooMuch = fmt.Errorf("the registry sends more than it announced or than is allowed: %w", errdefs.ErrFailedPrecondition)

func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n + int(b.left), errTooMuch
	}
	return n, err
}

// paced is a fetcher whose bodies have the size that their descriptor says at
// most, and keep coming.
func paced(next remotes.Fetcher) remotes.Fetcher {
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		if err := checkSize(desc); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancelCause(context.WithValue(ctx, blobSize{}, desc.Size))
		body, err := next.Fetch(ctx, desc)
		if err != nil {
			cancel(nil)
			return nil, err
		}
		return newPacedBody(ctx, body, cancel), nil
	})
}

// pacedBody ends a transfer that is too slow.
type pacedBody struct {
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	got    atomic.Int64
	timer  *time.Timer
}

var errTooSlow = errors.New("the registry sends too slowly")

func newPacedBody(ctx context.Context, body io.ReadCloser, cancel context.CancelCauseFunc) *pacedBody {
	b := &pacedBody{body: body, ctx: ctx, cancel: cancel}
	b.timer = time.AfterFunc(paceTime, b.check)
	return b
}

func (b *pacedBody) check() {
	if b.got.Swap(0) >= paceBytes {
		b.timer.Reset(paceTime)
		return
	}
	b.cancel(fmt.Errorf("%w: less than %d bytes in %v", errTooSlow, paceBytes, paceTime))
	b.body.Close()
}

func (b *pacedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	b.got.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(b.ctx), errTooSlow) {
		err = context.Cause(b.ctx)
	}
	return n, err
}

// Seek continues a transfer that was cut off.
func (b *pacedBody) Seek(offset int64, whence int) (int64, error) {
	s, ok := b.body.(io.Seeker)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	return s.Seek(offset, whence)
}

func (b *pacedBody) Close() error {
	b.timer.Stop()
	defer b.cancel(nil)
	return b.body.Close()
}
