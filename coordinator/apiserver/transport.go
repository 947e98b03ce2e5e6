package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// localTransport is an http.RoundTripper that calls the server's handler in
// process: the whole chain runs, without a socket and without TLS.
type localTransport struct{ handler atomic.Pointer[http.Handler] }

func (t *localTransport) serve(h http.Handler) { t.handler.Store(&h) }

var errNotServing = errors.New("connection refused: the API server does not serve yet")

// RoundTrip implements http.RoundTripper. The answer of a watch streams, any
// other is complete when it returns.
func (t *localTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	h := t.handler.Load()
	if h == nil {
		return nil, errNotServing
	}
	in := req.Clone(req.Context())
	in.RequestURI = req.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if streams(req) {
		return stream(*h, in)
	}
	w := &bufferedResponse{header: http.Header{}}
	(*h).ServeHTTP(w, in)
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	return w.response(req), nil
}

func streams(req *http.Request) bool {
	return strings.Contains(req.URL.RawQuery, "watch=") || strings.Contains(req.URL.RawQuery, "follow=") || strings.Contains(req.URL.Path, "/proxy")
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

// stream runs the handler beside its reader.
func stream(h http.Handler, req *http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	out := &streamedResponse{header: http.Header{}, body: w, started: make(chan struct{})}
	go func() {
		h.ServeHTTP(out, req)
		out.WriteHeader(http.StatusOK)
		_ = w.Close()
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
