package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// localTransport is an http.RoundTripper that calls the server's handler in
// process: the whole chain runs, without a socket and without TLS.
type localTransport struct {
	handler http.Handler
	// serving is closed once handler is set; requests wait for it, so that no
	// client starts with an error and a back-off.
	serving chan struct{}
}

func newLocalTransport() *localTransport { return &localTransport{serving: make(chan struct{})} }

func (t *localTransport) serve(h http.Handler) {
	t.handler = h
	close(t.serving)
}

// RoundTrip implements http.RoundTripper. The answer of a watch streams, any
// other is complete when it returns.
func (t *localTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	select {
	case <-t.serving:
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	ctx, cancel := ownContext(req.Context())
	in := req.Clone(ctx)
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if streams(req) {
		return stream(t.handler, in, cancel)
	}
	defer cancel()
	w := &bufferedResponse{header: http.Header{}}
	if err := serveSafely(t.handler, w, in); err != nil {
		return nil, err
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	forgetLongWait(w)
	return w.response(req), nil
}

// longWait is the longest time, in seconds, after which a client in this process
// asks again by itself when it is told to.
const longWait = 2

// forgetLongWait takes from an answer that the client shall come back later, where
// that is not soon. The library's clients would wait, ten times, and hold what called
// them: where the conversion webhook of custom resources fails, those wait half a
// minute each, and a namespace that is deleted told nobody for five minutes what
// keeps it, while all others waited for it. Who calls from here has a queue of its
// own to try again.
func forgetLongWait(w *bufferedResponse) {
	if seconds, err := strconv.Atoi(w.header.Get("Retry-After")); err == nil && seconds > longWait {
		w.header.Del("Retry-After")
	}
}

// ownContext ends when parent does, and has none of its values: a plugin asks the
// API while it admits a request, and the answer must not be recorded, or be
// refused, as a part of that request.
func ownContext(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(parent, cancel)
	return ctx, func() { stop(); cancel() }
}

// serveSafely turns a panic into an error, as net/http's server does for
// clients on a socket: the API server's filters log it and panic again.
func serveSafely(h http.Handler, w http.ResponseWriter, req *http.Request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the handler of %s %s panicked", req.Method, req.URL.Path)
		}
	}()
	h.ServeHTTP(w, req)
	return nil
}

func streams(req *http.Request) bool {
	return strings.Contains(req.URL.RawQuery, "watch=") || strings.Contains(req.URL.RawQuery, "follow=") ||
		strings.Contains(req.URL.Path, "/proxy")
}

func newResponse(req *http.Request, code int, header http.Header, body io.ReadCloser, length int64) *http.Response {
	return &http.Response{
		Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, Body: body, ContentLength: length, Request: req,
	}
}

type bufferedResponse struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (w *bufferedResponse) Header() http.Header { return w.header }
func (w *bufferedResponse) Flush()              {}

func (w *bufferedResponse) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

func (w *bufferedResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *bufferedResponse) response(req *http.Request) *http.Response {
	w.WriteHeader(http.StatusOK)
	return newResponse(req, w.code, w.header, io.NopCloser(&w.body), int64(w.body.Len()))
}

// stream runs the handler beside its reader, and calls ended after it.
func stream(h http.Handler, req *http.Request, ended func()) (*http.Response, error) {
	r, w := io.Pipe()
	out := &streamedResponse{header: http.Header{}, body: w, started: make(chan struct{})}
	go func() {
		defer ended()
		err := serveSafely(h, out, req)
		out.WriteHeader(http.StatusOK)
		_ = w.CloseWithError(err)
	}()
	select {
	case <-out.started:
		return newResponse(req, out.code, out.sent, r, -1), nil
	case <-req.Context().Done():
		_ = r.Close()
		return nil, req.Context().Err()
	}
}

type streamedResponse struct {
	header  http.Header
	body    *io.PipeWriter
	once    sync.Once
	started chan struct{}
	code    int
	sent    http.Header
}

func (w *streamedResponse) Header() http.Header { return w.header }
func (w *streamedResponse) Flush()              { w.WriteHeader(http.StatusOK) }

func (w *streamedResponse) WriteHeader(code int) {
	w.once.Do(func() {
		w.code, w.sent = code, w.header.Clone()
		close(w.started)
	})
}

func (w *streamedResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// CloseNotify is what tells the handlers' wrappers that flushing works; nobody
// reads the channel: the request's context ends instead.
func (w *streamedResponse) CloseNotify() <-chan bool { return nil }

// CloseNotify: see streamedResponse.
func (w *bufferedResponse) CloseNotify() <-chan bool { return nil }
