package config

import "fmt"

// Gateway is the node's part in Gateways and Ingresses.
type Gateway struct {
	// Enabled has the node answer for them, once there is one; on unless the file says
	// false.
	Enabled *bool `json:"enabled,omitempty"`
	// IngressHTTPPort and IngressHTTPSPort are where Ingresses answer on the node's
	// addresses: 80 and 443 when left out, nowhere when -1.
	IngressHTTPPort  int `json:"ingressHTTPPort,omitempty"`
	IngressHTTPSPort int `json:"ingressHTTPSPort,omitempty"`
	// AccessLog has the proxy tell each request in its log.
	AccessLog bool `json:"accessLog,omitempty"`
}

// On tells whether the node answers for Gateways and Ingresses.
func (g *Gateway) On() bool { return g.Enabled == nil || *g.Enabled }

// Ports are those of Ingresses; 0: none.
func (g *Gateway) Ports() (http, https uint16) {
	port := func(n int, def uint16) uint16 {
		switch {
		case n == 0:
			return def
		case n < 0:
			return 0
		}
		return uint16(n)
	}
	return port(g.IngressHTTPPort, 80), port(g.IngressHTTPSPort, 443)
}

// Check tells what cannot be.
func (g *Gateway) Check() error {
	for name, n := range map[string]int{"ingressHTTPPort": g.IngressHTTPPort, "ingressHTTPSPort": g.IngressHTTPSPort} {
		if n < -1 || n > 65535 {
			return fmt.Errorf("gateway.%s: %d is no port", name, n)
		}
	}
	return nil
}
