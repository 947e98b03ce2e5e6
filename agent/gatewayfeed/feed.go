package gatewayfeed

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/shoal-project/shoal/agent/feed"
)

// Path is where a coordinator serves the stream.
const Path = "/shoal/v1/gatewayfeed"

// Beat is how often a coordinator says something, if only that nothing changed.
const Beat = feed.Beat

// MaxLine bounds a configuration. A coordinator does not make a larger one.
const MaxLine = 64 << 20

// MaxPorts bounds the sockets of a node.
const MaxPorts = 1024

// Update is one line; without a configuration nothing has changed.
type Update struct {
	Config *Config `json:"config,omitempty"`
}

// Reader reads lines.
type Reader = feed.Reader[Update]

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return feed.NewReader(r, MaxLine, Decode) }

// Decode reads one line. What it returns is sound: no socket is named twice, and what
// refers to a certificate or an authority refers to one that is there.
func Decode(line []byte) (*Update, error) {
	var u Update
	if err := json.Unmarshal(line, &u); err != nil {
		return nil, err
	}
	if u.Config == nil {
		return &u, nil
	}
	return &u, u.Config.Check()
}

// Check tells what a proxy could not do.
func (c *Config) Check() error {
	if len(c.Ports) > MaxPorts {
		return fmt.Errorf("more than %d ports", MaxPorts)
	}
	seen := map[string]bool{}
	for i := range c.Ports {
		p := &c.Ports[i]
		key := p.Key()
		switch {
		case seen[key]:
			return fmt.Errorf("port %s is there twice", key)
		case p.Ingress != "" && p.Ingress != IngressHTTP && p.Ingress != IngressHTTPS:
			return fmt.Errorf("%q is no port of Ingresses", p.Ingress)
		case p.Ingress == "" && (p.Number < FirstPort || p.Number > LastPort):
			return fmt.Errorf("port %d is none of %d to %d", p.Number, FirstPort, LastPort)
		}
		seen[key] = true
		for j := range p.Listeners {
			if err := c.checkListener(p, &p.Listeners[j]); err != nil {
				return fmt.Errorf("port %s: listener %q: %w", key, p.Listeners[j].Name, err)
			}
		}
	}
	var bad error
	c.Backends(func(b *Backend, _ bool) {
		if b.TLS == nil || bad != nil {
			return
		}
		for _, name := range b.TLS.Authorities {
			if _, ok := c.Authorities[name]; !ok {
				bad = fmt.Errorf("backend %s/%s: there is no authority %q", b.Namespace, b.Service, name)
			}
		}
		if name := b.TLS.Certificate; name != "" && c.Certificates[name].Key == "" {
			bad = fmt.Errorf("backend %s/%s: there is no certificate %q", b.Namespace, b.Service, name)
		}
	})
	return bad
}

func (c *Config) checkListener(p *Port, l *Listener) error {
	switch l.Protocol {
	case HTTP, HTTPS, TLS, TCP:
		if p.UDP() {
			return errors.New("the port is one of UDP")
		}
	case UDP:
		if !p.UDP() {
			return errors.New("the port is one of TCP")
		}
	default:
		return fmt.Errorf("%q is no protocol", l.Protocol)
	}
	for _, name := range l.Certificates {
		if _, ok := c.Certificates[name]; !ok {
			return fmt.Errorf("there is no certificate %q", name)
		}
	}
	if l.Clients != nil {
		for _, name := range l.Clients.Authorities {
			if _, ok := c.Authorities[name]; !ok {
				return fmt.Errorf("there is no authority %q", name)
			}
		}
	}
	return nil
}
