package gatewayfeed

import (
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"time"
)

// Protocols of listeners, as the Gateway API names them.
const (
	HTTP  = "HTTP"
	HTTPS = "HTTPS"
	TLS   = "TLS"
	TCP   = "TCP"
	UDP   = "UDP"
)

// The ports of Ingresses: which numbers they have is the node's configuration.
const (
	IngressHTTP  = "http"
	IngressHTTPS = "https"
)

// Config is all that a node's proxy does.
type Config struct {
	Ports []Port `json:"ports,omitempty"`
	// Certificates are those that listeners name, and backends that want to see one, by a
	// name that is theirs alone; Authorities are bundles that peers' are verified by.
	Certificates map[string]Certificate `json:"certificates,omitempty"`
	Authorities  map[string]string      `json:"authorities,omitempty"`
}

// Certificate is a chain with its key, in PEM.
type Certificate struct {
	Chain string `json:"chain"`
	Key   string `json:"key"`
}

// Port is a socket on each node.
type Port struct {
	Number uint16 `json:"number,omitempty"`
	// Ingress names a port by what it is for, in place of a number.
	Ingress string `json:"ingress,omitempty"`
	// Public is the port that clients use.
	Public    uint16     `json:"public,omitempty"`
	Listeners []Listener `json:"listeners,omitempty"`
}

// UDP tells whether the port is one of datagrams.
func (p *Port) UDP() bool { return len(p.Listeners) > 0 && p.Listeners[0].Protocol == UDP }

// Key names the socket.
func (p *Port) Key() string {
	network := "tcp"
	if p.UDP() {
		network = "udp"
	}
	if p.Ingress != "" {
		return network + "/" + p.Ingress
	}
	return fmt.Sprintf("%s/%d", network, p.Number)
}

// Listener is who answers for some names on a port.
type Listener struct {
	Name     string `json:"name"` // namespace/gateway/listener, for logs and metrics
	Protocol string `json:"protocol"`
	// Hostname is one that clients ask for, or all below a domain: *.example.com. "": all.
	Hostname string `json:"hostname,omitempty"`
	// Passthrough: TLS is the backend's.
	Passthrough  bool        `json:"passthrough,omitempty"`
	Certificates []string    `json:"certificates,omitempty"`
	Clients      *ClientAuth `json:"clients,omitempty"`
	Routes       []Route     `json:"routes,omitempty"` // of HTTP; the oldest first
	Streams      []Stream    `json:"streams,omitempty"`
}

// ClientAuth says which certificates clients show.
type ClientAuth struct {
	Authorities []string `json:"authorities,omitempty"`
	// Insecure lets those in that show none, or one that nobody vouches for.
	Insecure bool `json:"insecure,omitempty"`
}

// Stream is a route of connections or datagrams.
type Stream struct {
	Name string `json:"name"`
	// Hostnames are the names that TLS clients ask for; none: all.
	Hostnames []string  `json:"hostnames,omitempty"`
	Backends  []Backend `json:"backends,omitempty"`
}

// Route is a route of requests.
type Route struct {
	Name string `json:"name"` // kind/namespace/name
	// Hostnames are those that clients ask for; none: all.
	Hostnames []string `json:"hostnames,omitempty"`
	// OneLabel: a wildcard stands for one label, as in an Ingress (ING-15), not for
	// several, as in a Gateway.
	OneLabel bool   `json:"oneLabel,omitempty"`
	GRPC     bool   `json:"grpc,omitempty"`
	Rules    []Rule `json:"rules,omitempty"`
}

// Rule says what happens to requests that match.
type Rule struct {
	Matches  []Match   `json:"matches,omitempty"` // one of them; none: every request
	Filters  Filters   `json:"filters,omitzero"`
	Backends []Backend `json:"backends,omitempty"`
	// RequestTimeout is for the whole answer, BackendTimeout for that of one backend.
	RequestTimeout time.Duration `json:"requestTimeout,omitempty"`
	BackendTimeout time.Duration `json:"backendTimeout,omitempty"`
	Retry          *Retry        `json:"retry,omitempty"`
}

// Retry says which answers are asked for again.
type Retry struct {
	Codes    []int         `json:"codes,omitempty"`
	Attempts int           `json:"attempts,omitempty"` // beside the first
	Backoff  time.Duration `json:"backoff,omitempty"`
}

// The kinds of a Value's comparison.
const (
	Exact  = ""
	Prefix = "prefix" // of a path, by its elements
	Regex  = "regex"  // RE2, of the whole
)

// Match is what a request must have, all of it.
type Match struct {
	PathKind string  `json:"pathKind,omitempty"`
	Path     string  `json:"path,omitempty"` // "": any
	Method   string  `json:"method,omitempty"`
	Headers  []Value `json:"headers,omitempty"`
	Query    []Value `json:"query,omitempty"`
}

// Value is one that a request has under a name.
type Value struct {
	Name  string `json:"name"`
	Kind  string `json:"kind,omitempty"`
	Value string `json:"value"`
}

// Filters change a request or its answer.
type Filters struct {
	Request  *Headers  `json:"request,omitempty"`
	Response *Headers  `json:"response,omitempty"`
	Redirect *Redirect `json:"redirect,omitempty"`
	Rewrite  *Rewrite  `json:"rewrite,omitempty"`
	Mirrors  []Mirror  `json:"mirrors,omitempty"`
	CORS     *CORS     `json:"cors,omitempty"`
	// Fail: there is one that cannot be done; the request is answered with 500.
	Fail bool `json:"fail,omitempty"`
}

// Headers are changes, done in this order.
type Headers struct {
	Set    []Header `json:"set,omitempty"`
	Add    []Header `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
}

// Header is a name with a value.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// PathChange replaces the path, or its prefix that the rule matched.
type PathChange struct {
	Prefix bool   `json:"prefix,omitempty"`
	To     string `json:"to"`
}

// Redirect sends the client elsewhere; what is empty stays as it is.
type Redirect struct {
	Scheme   string      `json:"scheme,omitempty"`
	Hostname string      `json:"hostname,omitempty"`
	Port     uint16      `json:"port,omitempty"`
	Path     *PathChange `json:"path,omitempty"`
	Code     int         `json:"code"`
}

// Rewrite changes what the backend is asked for.
type Rewrite struct {
	Hostname string      `json:"hostname,omitempty"`
	Path     *PathChange `json:"path,omitempty"`
}

// Mirror asks another backend too; its answer does not count.
type Mirror struct {
	Backend Backend `json:"backend"`
	// Numerator of Denominator requests.
	Numerator   int32 `json:"numerator"`
	Denominator int32 `json:"denominator"`
}

// CORS answers browsers that ask what other origins may do
// (https://fetch.spec.whatwg.org/#http-cors-protocol).
type CORS struct {
	Origins     []string `json:"origins,omitempty"`
	Methods     []string `json:"methods,omitempty"`
	Headers     []string `json:"headers,omitempty"`
	Expose      []string `json:"expose,omitempty"`
	Credentials bool     `json:"credentials,omitempty"`
	MaxAge      int32    `json:"maxAge,omitempty"`
}

// The protocols of backends beside HTTP/1.1.
const (
	H2C = "h2c"
)

// Backend is a port of a Service. One without a Service may not be used, or is not there:
// its share of the requests is answered with 500.
type Backend struct {
	Namespace string      `json:"namespace,omitempty"`
	Service   string      `json:"service,omitempty"`
	Port      uint16      `json:"port,omitempty"`
	Weight    uint32      `json:"weight,omitempty"`
	Protocol  string      `json:"protocol,omitempty"`
	TLS       *BackendTLS `json:"tls,omitempty"`
	Filters   Filters     `json:"filters,omitzero"`
}

// Key names the port among those whose addresses a proxy is told.
func (b *Backend) Key(udp bool) string {
	if b.Service == "" {
		return ""
	}
	network := "tcp"
	if udp {
		network = "udp"
	}
	return fmt.Sprintf("%s/%s/%s/%d", network, b.Namespace, b.Service, b.Port)
}

// BackendTLS says how the backend proves who it is.
type BackendTLS struct {
	Hostname    string   `json:"hostname"`
	Names       []string `json:"names,omitempty"` // of which the certificate has one, in place of Hostname
	URIs        []string `json:"uris,omitempty"`
	Authorities []string `json:"authorities,omitempty"`
	System      bool     `json:"system,omitempty"` // those of the node's system
	Certificate string   `json:"certificate,omitempty"`
}

// Backends goes through all that the configuration names.
func (c *Config) Backends(each func(b *Backend, udp bool)) {
	filters := func(f *Filters, udp bool) {
		for i := range f.Mirrors {
			each(&f.Mirrors[i].Backend, udp)
		}
	}
	list := func(all []Backend, udp bool) {
		for i := range all {
			each(&all[i], udp)
			filters(&all[i].Filters, udp)
		}
	}
	for i := range c.Ports {
		udp := c.Ports[i].UDP()
		for _, l := range c.Ports[i].Listeners {
			for _, s := range l.Streams {
				list(s.Backends, udp)
			}
			for _, r := range l.Routes {
				for j := range r.Rules {
					list(r.Rules[j].Backends, udp)
					filters(&r.Rules[j].Filters, udp)
				}
			}
		}
	}
}

// Only is the configuration of some of the ports, with the certificates and authorities that
// these name and no others. It shares what it has with c.
func (c *Config) Only(wanted func(*Port) bool) *Config {
	out := &Config{}
	for i := range c.Ports {
		if wanted(&c.Ports[i]) {
			out.Ports = append(out.Ports, c.Ports[i])
		}
	}
	certificate := func(name string) {
		if v, ok := c.Certificates[name]; ok {
			if out.Certificates == nil {
				out.Certificates = map[string]Certificate{}
			}
			out.Certificates[name] = v
		}
	}
	authorities := func(names []string) {
		for _, name := range names {
			if v, ok := c.Authorities[name]; ok {
				if out.Authorities == nil {
					out.Authorities = map[string]string{}
				}
				out.Authorities[name] = v
			}
		}
	}
	for i := range out.Ports {
		for _, l := range out.Ports[i].Listeners {
			for _, name := range l.Certificates {
				certificate(name)
			}
			if l.Clients != nil {
				authorities(l.Clients.Authorities)
			}
		}
	}
	out.Backends(func(b *Backend, _ bool) {
		if b.TLS != nil {
			certificate(b.TLS.Certificate)
			authorities(b.TLS.Authorities)
		}
	})
	return out
}

// Add has c have the ports of another too, with what they name: what is of one name is the
// same, as names tell of what is in them.
func (c *Config) Add(other *Config) {
	c.Ports = append(c.Ports, other.Ports...)
	if len(other.Certificates) > 0 && c.Certificates == nil {
		c.Certificates = map[string]Certificate{}
	}
	maps.Copy(c.Certificates, other.Certificates)
	if len(other.Authorities) > 0 && c.Authorities == nil {
		c.Authorities = map[string]string{}
	}
	maps.Copy(c.Authorities, other.Authorities)
}

// Apply changes headers; nil changes nothing.
func (h *Headers) Apply(to http.Header) {
	if h == nil {
		return
	}
	for _, s := range h.Set {
		to.Set(s.Name, s.Value)
	}
	for _, a := range h.Add {
		to.Add(a.Name, a.Value)
	}
	for _, name := range h.Remove {
		to.Del(name)
	}
}

// Whole compiles an expression that has to match all of a text; RE2 takes time in proportion
// to it, whatever the expression. What is right alone may not be so within others' words.
func Whole(expr string) (*regexp.Regexp, error) {
	return regexp.Compile(`\A(?:` + expr + `)\z`)
}

// ProxyAnnotation of a Node says whether the node answers for Gateways: "false" where it does
// not. Agents of before did not say it.
const ProxyAnnotation = "shoal-project.io/gateway-proxy"

// Nodes' proxies answer for Gateways on these ports: below those of NodePorts and of the
// kernel's own choice (ip_local_port_range).
const FirstPort, LastPort = 28000, 29999
