package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// once is a transport that makes one connection a request, as probes must see how the
// container is now, and trusts any certificate (the pod's own). What net/http's own does
// for connections that are used again, two goroutines each, takes as much CPU time as the
// rest of a probe.
type once struct{}

// maxHead is how many bytes an answer may have before its body.
const maxHead = 1 << 20

var (
	readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	writers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 1<<10) }}
)

// RoundTrip implements http.RoundTripper.
func (once) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	c, err := dial(ctx, r)
	if err != nil {
		return nil, err
	}
	if at, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(at) // of an open connection it always can
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	resp, in, err := ask(c, r)
	if err != nil {
		stop()
		_ = c.Close()
		return nil, inTime(ctx, err)
	}
	resp.Body = &onceBody{ReadCloser: resp.Body, ctx: ctx, stop: stop, c: c, in: in}
	return resp, nil
}

func dial(ctx context.Context, r *http.Request) (net.Conn, error) {
	port := r.URL.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[r.URL.Scheme]
	}
	address := net.JoinHostPort(r.URL.Hostname(), port)
	brief := &net.Dialer{KeepAlive: -1} // four calls of the kernel less
	if r.URL.Scheme != "https" {
		return brief.DialContext(ctx, "tcp", address)
	}
	d := tls.Dialer{NetDialer: brief, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
	c, err := d.DialContext(ctx, "tcp", address)
	if bad := (tls.RecordHeaderError{}); errors.As(err, &bad) && string(bad.RecordHeader[:]) == "HTTP/" {
		err = errors.New("http: server gave HTTP response to HTTPS client") // as net/http says it
	}
	return c, err
}

// ask sends a request and reads the head of the answer; in has the rest.
func ask(c net.Conn, r *http.Request) (*http.Response, *bufio.Reader, error) {
	out := writers.Get().(*bufio.Writer)
	defer writers.Put(out)
	out.Reset(c)
	r = r.Clone(r.Context())
	r.Close = true
	if err := errors.Join(r.Write(out), out.Flush()); err != nil {
		return nil, nil, err
	}
	in := readers.Get().(*bufio.Reader)
	in.Reset(io.LimitReader(c, maxHead+maxBody))
	for {
		resp, err := http.ReadResponse(in, r)
		if err != nil {
			readers.Put(in)
			return nil, nil, err
		}
		if resp.StatusCode >= http.StatusOK || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, in, nil
		}
	}
}

// inTime says what a deadline's error stands for.
func inTime(ctx context.Context, err error) error {
	if cause := ctx.Err(); cause != nil {
		return cause
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}

// onceBody ends the connection with the body.
type onceBody struct {
	io.ReadCloser
	ctx  context.Context
	stop func() bool
	c    net.Conn
	in   *bufio.Reader
}

func (b *onceBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = inTime(b.ctx, err)
	}
	return n, err
}

// Close does not read what is left: nothing comes after it.
func (b *onceBody) Close() error {
	if b.in == nil {
		return nil
	}
	b.stop()
	readers.Put(b.in)
	b.in = nil
	return b.c.Close()
}
