package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/shoal-project/shoal/coordinator/kubelet"
)

// errNotAllowed has upstream's words.
var errNotAllowed = errors.New("address not allowed")

// reachable refuses addresses of the API server's own machine and links.
func reachable(ip string) bool {
	a, err := netip.ParseAddr(ip)
	return err == nil && a.Unmap().IsGlobalUnicast()
}

// mayProxyTo checks a node's address, and every address that its name has.
func mayProxyTo(ctx context.Context, host string) error {
	if _, err := netip.ParseAddr(host); err == nil {
		if !reachable(host) {
			return errNotAllowed
		}
		return nil
	}
	found, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		return fmt.Errorf("find node's address: %w", err)
	}
	if len(found) == 0 {
		return errNotAllowed
	}
	for _, a := range found {
		if !reachable(a) {
			return errNotAllowed
		}
	}
	return nil
}

// guarded dials nothing of the API server's own machine: it looks at the address
// that a name has come to when it is dialed, which a check before cannot know
// (CVE-2020-8562).
var guarded = &net.Dialer{
	Timeout: 30 * time.Second,
	Control: func(_, address string, _ syscall.RawConn) error {
		host, _, err := net.SplitHostPort(address)
		if err != nil || !reachable(host) {
			return errNotAllowed
		}
		return nil
	},
}

// guardTransport is the transport with that dialer, which is not asked where the node keeps a
// connection: that leads to no address. Another kind of transport
// than net/http's, as tests have, stays as it is.
func guardTransport(rt http.RoundTripper) http.RoundTripper {
	t, ok := rt.(*http.Transport)
	if !ok {
		return rt
	}
	t = t.Clone()
	if dial := t.DialContext; dial != nil { // of kubelet.Transports
		t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dial(kubelet.WithDialer(ctx, guarded), network, address)
		}
	} else {
		t.DialContext = guarded.DialContext
	}
	t.DisableKeepAlives = true // it is of one request, and nobody would use its connections again
	return t
}
