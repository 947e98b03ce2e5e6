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
	dialWait   = 30 * time.Second
	headerWait = time.Minute     // for the answer to begin
	answerWait = 2 * time.Minute // for all of an answer that is no blob
	// resolveWait is for all questions until it is known what a name stands for:
	// redirects, tokens and attempts are many.
	resolveWait = 5 * time.Minute
	// A registry must send this much in each such time, or the pull ends:
	// others wait for it.
	paceTime  = 2 * time.Minute
	paceBytes = 64 << 10
)

type blobSize struct{} // key of the size that is expected of an answer's body

// careful is the transport of registry clients: headers, the beginning of an
// answer and bodies are limited, those of tokens and redirects too, and what
// belongs to the registry goes to no other host.
type careful struct {
	next http.RoundTripper
	own  *registry
}

func limitTransport(c *http.Client, own *registry) error {
	if _, done := c.Transport.(careful); done {
		return nil // a client for several hosts
	}
	t, ok := c.Transport.(*http.Transport)
	if !ok {
		return fmt.Errorf("unexpected transport %T of the registry client", c.Transport)
	}
	t = t.Clone()
	t.ResponseHeaderTimeout, t.MaxResponseHeaderBytes = headerWait, maxHeader
	t.DialContext = outward(t.DialContext)
	c.Transport = careful{t, own}
	return nil
}

func (t careful) RoundTrip(r *http.Request) (*http.Response, error) {
	size, blob := r.Context().Value(blobSize{}).(int64)
	ctx, cancel := r.Context(), context.CancelFunc(func() {})
	if !blob {
		ctx, cancel = context.WithTimeoutCause(ctx, answerWait, errTooSlow)
	}
	r = r.Clone(ctx)
	// The library would ask for compressions whose memory the sender chooses.
	// Without the header this transport asks for gzip and undoes it.
	r.Header.Del("Accept-Encoding")
	resp, err := t.send(r)
	if err != nil {
		if errors.Is(context.Cause(ctx), errTooSlow) {
			err = fmt.Errorf("%w: no answer within %v", errTooSlow, answerWait)
		}
		cancel()
		return nil, err
	}
	limit := max(size, maxManifest) // for a small blob a token may come first, which is larger
	if resp.StatusCode >= http.StatusMultipleChoices {
		limit = maxError
	}
	resp.Body = &limitedBody{ReadCloser: resp.Body, ctx: ctx, cancel: cancel, left: limit}
	return resp, nil
}

func (t careful) send(r *http.Request) (*http.Response, error) {
	r, err := t.own.prepare(r)
	if err != nil {
		return nil, err
	}
	resp, err := t.next.RoundTrip(r)
	if err == nil && resp.StatusCode == http.StatusRequestedRangeNotSatisfiable && r.Header.Get("Range") != "" {
		// It does not know ranges without an end. The library goes on from where it was in
		// an answer that has everything.
		resp.Body.Close()
		r.Header.Del("Range")
		resp, err = t.next.RoundTrip(r)
	}
	if err != nil {
		return nil, err
	}
	encoding := resp.Header.Get("Content-Encoding")
	if encoding == "" || encoding == "identity" || r.Method == http.MethodHead ||
		resp.StatusCode >= http.StatusMultipleChoices {
		return resp, nil
	}
	resp.Body.Close()
	return nil, fmt.Errorf("the registry sends the Content-Encoding %q, which was not asked for: %w", encoding,
		errdefs.ErrFailedPrecondition)
}

// limitedBody fails where more comes than was to be expected, or what is no
// blob does not come in time.
type limitedBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
	left   int64
}

func (b *limitedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

var errTooMuch = fmt.Errorf("the registry sends more than it announced or than is allowed: %w",
	errdefs.ErrFailedPrecondition)

func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n + int(b.left), errTooMuch
	}
	if err != nil && !errors.Is(err, io.EOF) && errors.Is(context.Cause(b.ctx), errTooSlow) {
		err = fmt.Errorf("%w: the answer is not whole after %v", errTooSlow, answerWait)
	}
	return n, err
}

// paced is a fetcher whose bodies have the size that their descriptor says at
// most, and keep coming. Addresses that an image gives for its blobs are not
// asked, as by Docker on Linux: they would have the node ask anything anywhere.
func paced(next remotes.Fetcher, received *func(int)) remotes.Fetcher {
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		if err := checkSize(desc); err != nil {
			return nil, err
		}
		desc.URLs = nil
		ctx, cancel := context.WithCancelCause(context.WithValue(ctx, blobSize{}, desc.Size))
		body, err := next.Fetch(ctx, desc)
		if err != nil {
			cancel(nil)
			return nil, err
		}
		return newPacedBody(ctx, body, cancel, received), nil
	})
}

// pacedBody ends a transfer that is too slow.
type pacedBody struct {
	body   io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	got    atomic.Int64
	timer  *time.Timer
	// received is told how many bytes came; nil: nobody asks.
	received *func(int)
}

var errTooSlow = errors.New("the registry sends too slowly")

func newPacedBody(
	ctx context.Context, body io.ReadCloser, cancel context.CancelCauseFunc, received *func(int),
) *pacedBody {
	b := &pacedBody{body: body, ctx: ctx, cancel: cancel, received: received}
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
	if b.received != nil {
		(*b.received)(n)
	}
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
