package gatewayproxy

import (
	"context"
	"errors"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/shoal-project/shoal/agent/gatewayfeed"
)

// handler answers the requests of a socket.
type handler struct {
	*Proxy
	key string
}

// exchange is a request under way.
type exchange struct {
	*Proxy
	listener *listener
	found    *Found
	backend  *gatewayfeed.Backend
	public   uint16
	secure   bool
	begin    time.Time
	cors     http.Header // what answers to a browser have beside
}

type exchangeKey struct{}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	said := &answer{ResponseWriter: w}
	x := &exchange{Proxy: h.Proxy, begin: time.Now(), secure: r.TLS != nil}
	defer func() { x.tell(r, said) }()  // also when the connection is aborted
	if r.Method == http.MethodConnect { // what it leads to would not be looked at any more
		http.Error(said, "no tunnels are made", http.StatusMethodNotAllowed)
		return
	}
	po := h.state.Load().ports[h.key]
	if po == nil {
		http.Error(said, "nobody answers here any more", http.StatusServiceUnavailable)
		return
	}
	x.public = po.Public
	name := hostOf(r.Host)
	if code := x.listen(po, r, name); code != 0 {
		http.Error(said, http.StatusText(code), code)
		return
	}
	path := r.URL.Path
	if path == "" { // OPTIONS * and CONNECT have none
		path = "/"
	}
	x.found = x.listener.table.Match(&Request{
		Host: name, Path: path, Method: r.Method, Header: r.Header, Query: r.URL.Query()})
	if x.found == nil {
		http.Error(said, "no route matches", http.StatusNotFound)
		return
	}
	x.serve(said, r)
}

// listen finds who answers, or the code that says why nobody does.
func (x *exchange) listen(po *port, r *http.Request, name string) int {
	x.listener = po.choose(name, func(l *listener) bool {
		return l.Protocol == gatewayfeed.HTTP || l.Protocol == gatewayfeed.HTTPS
	})
	if !x.secure {
		if x.listener == nil {
			return http.StatusNotFound
		}
		return 0
	}
	h, _ := r.Context().Value(helloKey{}).(*hello)
	if h == nil {
		return http.StatusMisdirectedRequest
	}
	// A connection that was made for one name is used for another by a client whose
	// certificate allows both (RFC 9110 15.5.20, GEP-3567).
	asked := po.choose(h.name, func(*listener) bool { return true })
	switch {
	case asked == nil || x.listener != nil && x.listener != asked:
		return http.StatusMisdirectedRequest
	case x.listener == nil:
		return http.StatusNotFound
	}
	return 0
}

// hostOf is the name in a Host header.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

func (x *exchange) serve(w http.ResponseWriter, r *http.Request) {
	f := &x.found.Filters
	if f.CORS != nil {
		var done bool
		if x.cors, done = answerCORS(f.CORS, r); done {
			header := w.Header()
			for k, v := range x.cors {
				header[k] = v
			}
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	switch {
	case f.Fail:
		http.Error(w, "the route has a filter that cannot be done", http.StatusInternalServerError)
		return
	case f.Redirect != nil:
		x.redirect(w, r, f.Redirect)
		return
	}
	if x.backend = pick(x.found.Backends); x.backend == nil || x.backend.Service == "" {
		http.Error(w, "the route has no backend", http.StatusInternalServerError)
		return
	}
	if x.backend.Filters.Fail {
		http.Error(w, "the backend has a filter that cannot be done", http.StatusInternalServerError)
		return
	}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if t := x.found.RequestTimeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t)
		defer cancel()
	}
	x.mirror(r)
	forward.ServeHTTP(w, r.WithContext(ctx))
}

// pick chooses by weight; nil where none has any.
func pick(list []gatewayfeed.Backend) *gatewayfeed.Backend {
	var all uint64
	for i := range list {
		all += uint64(list[i].Weight)
	}
	if all == 0 {
		return nil
	}
	n := rand.Uint64N(all)
	for i := range list {
		w := uint64(list[i].Weight)
		if n < w {
			return &list[i]
		}
		n -= w
	}
	return nil
}

// forward asks backends. What a client says of itself in X-Forwarded headers is dropped:
// nobody vouches for it.
var forward = &httputil.ReverseProxy{
	Rewrite: func(r *httputil.ProxyRequest) {
		x := r.In.Context().Value(exchangeKey{}).(*exchange)
		r.SetXForwarded()
		x.rewrite(r.Out)
	},
	Transport: roundTripper{},
	ModifyResponse: func(r *http.Response) error {
		x := r.Request.Context().Value(exchangeKey{}).(*exchange)
		x.backend.Filters.Response.Apply(r.Header)
		x.found.Filters.Response.Apply(r.Header)
		if x.cors != nil {
			for k := range r.Header {
				if strings.HasPrefix(k, "Access-Control-") {
					r.Header.Del(k)
				}
			}
			for k, v := range x.cors {
				r.Header[k] = append(r.Header[k], v...)
			}
		}
		return nil
	},
	ErrorHandler:  failed,
	ErrorLog:      log.New(io.Discard, "", 0), // backends and clients that go are in the access log
	FlushInterval: -1,                         // streams of all kinds go on at once
}

// failed says what the backend could not.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusBadGateway
	var timeout net.Error
	switch {
	case errors.Is(err, errNoEndpoint):
		code = http.StatusServiceUnavailable
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		code = http.StatusGatewayTimeout
	case errors.Is(err, context.Canceled):
		code = 499 // the client has gone; nginx's number, for the log
	}
	x, _ := r.Context().Value(exchangeKey{}).(*exchange)
	if x != nil {
		x.log.Debug("a backend did not answer", "backend", x.backend.Key(false), "err", err)
	}
	http.Error(w, http.StatusText(code), code)
}

// rewrite makes the request to the backend.
func (x *exchange) rewrite(out *http.Request) {
	out.URL.Scheme = "http"
	if x.backend.TLS != nil {
		out.URL.Scheme = "https"
	}
	out.URL.Host = out.Host // the transport has the address
	if out.URL.Host == "" {
		out.URL.Host = "backend.invalid"
	}
	for _, f := range []*gatewayfeed.Filters{&x.found.Filters, &x.backend.Filters} {
		f.Request.Apply(out.Header)
		if host := out.Header.Get("Host"); host != "" {
			out.Host = host
			out.Header.Del("Host")
		}
		if w := f.Rewrite; w != nil {
			if w.Hostname != "" {
				out.Host = w.Hostname
			}
			changePath(out.URL, w.Path, x.found.Prefix)
		}
	}
}

// changePath replaces a path, or its prefix; what follows that stays as the client wrote it.
func changePath(u *url.URL, c *gatewayfeed.PathChange, prefix string) {
	if c == nil {
		return
	}
	to, written := c.To, ""
	if c.Prefix {
		written = after(u.EscapedPath(), len(prefix))
		to = strings.TrimSuffix(c.To, "/")
		if written != "" && !strings.HasPrefix(written, "/") {
			to += "/"
		}
	}
	rest, err := url.PathUnescape(written)
	if err != nil {
		rest = written // EscapedPath writes none that cannot be read
	}
	if !strings.HasPrefix(to+rest, "/") {
		to = "/" + to
	}
	u.Path, u.RawPath = to+rest, (&url.URL{Path: to}).EscapedPath()+written
}

// after is what follows the first n bytes that an escaped path stands for.
func after(escaped string, n int) string {
	for ; n > 0 && escaped != ""; n-- {
		if escaped[0] == '%' && len(escaped) >= 3 {
			escaped = escaped[3:]
		} else {
			escaped = escaped[1:]
		}
	}
	return escaped
}

// redirect sends the client elsewhere (HTTPRequestRedirectFilter).
func (x *exchange) redirect(w http.ResponseWriter, r *http.Request, d *gatewayfeed.Redirect) {
	u := &url.URL{Scheme: "http", Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	if x.secure {
		u.Scheme = "https"
	}
	port := x.public
	if d.Scheme != "" {
		u.Scheme, port = d.Scheme, wellKnown(d.Scheme)
	}
	if d.Port != 0 {
		port = d.Port
	}
	host := hostOf(r.Host)
	if d.Hostname != "" {
		host = d.Hostname
	}
	if strings.Contains(host, ":") {
		host = "[" + strings.Trim(host, "[]") + "]"
	}
	if port != 0 && port != wellKnown(u.Scheme) {
		host += ":" + strconv.Itoa(int(port))
	}
	u.Host = host
	changePath(u, d.Path, x.found.Prefix)
	x.found.Filters.Response.Apply(w.Header())
	w.Header().Set("Location", u.String())
	w.WriteHeader(d.Code)
}

func wellKnown(scheme string) uint16 {
	if scheme == "https" {
		return 443
	}
	return 80
}

// answerCORS are the headers for a browser, and whether they are all the answer.
func answerCORS(c *gatewayfeed.CORS, r *http.Request) (http.Header, bool) {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return nil, false
	}
	preflight := r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != ""
	out := http.Header{}
	if !originAllowed(c.Origins, origin) {
		return out, preflight
	}
	set := func(name, value string) {
		if value != "" {
			out.Set(name, value)
		}
	}
	out.Set("Access-Control-Allow-Origin", origin)
	out.Set("Vary", "Origin")
	if len(c.Origins) == 1 && c.Origins[0] == "*" && !c.Credentials {
		out.Set("Access-Control-Allow-Origin", "*")
		out.Del("Vary")
	}
	if c.Credentials {
		out.Set("Access-Control-Allow-Credentials", "true")
	}
	set("Access-Control-Expose-Headers", strings.Join(c.Expose, ", "))
	if !preflight {
		return out, false
	}
	list := func(all []string, asked string) string {
		if len(all) == 1 && all[0] == "*" {
			if !c.Credentials {
				return "*"
			}
			return asked // a browser takes * as a name then
		}
		return strings.Join(all, ", ")
	}
	set("Access-Control-Allow-Methods", list(c.Methods, r.Header.Get("Access-Control-Request-Method")))
	set("Access-Control-Allow-Headers", list(c.Headers, r.Header.Get("Access-Control-Request-Headers")))
	if c.MaxAge > 0 {
		out.Set("Access-Control-Max-Age", strconv.Itoa(int(c.MaxAge)))
	}
	return out, true
}

// originAllowed compares whole origins; one with a wildcard host stands for all below it.
func originAllowed(all []string, origin string) bool {
	for _, o := range all {
		before, after, wild := strings.Cut(o, "*")
		if o == "*" || o == origin {
			return true
		}
		if wild && len(origin) > len(before)+len(after) && strings.HasPrefix(origin, before) &&
			strings.HasSuffix(origin, after) {
			return true
		}
	}
	return false
}

// answer remembers what was said.
type answer struct {
	http.ResponseWriter
	code  int
	bytes int64
}

func (a *answer) WriteHeader(code int) {
	if a.code == 0 || a.code < 200 {
		a.code = code
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.code == 0 {
		a.code = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush and take the connection over.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
