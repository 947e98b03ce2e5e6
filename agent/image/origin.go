package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// registry is who a pull speaks with: the hosts that the image's name and
// CertsDir give. All other hosts are those that one of them names, in a
// redirect or as the issuer of tokens. They get nothing that is not for them,
// and do not lead to services of this machine alone.
type registry struct {
	auth *Auth

	mu      sync.Mutex
	hosts   []string
	headers []string // that CertsDir has sent to them
	plain   bool     // plain HTTP is expected of one of them
	local   bool     // one of them is this machine
}

// set makes the hosts known, before anything is sent to them.
func (o *registry) set(hosts []docker.RegistryHost) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range hosts {
		_, limited := h.Client.Transport.(careful)
		o.hosts = append(o.hosts, h.Host)
		o.plain = o.plain || h.Scheme == "http" || !limited // which falls back to HTTP
		o.local = o.local || docker.IsLocalhost(h.Host)
		for name := range h.Header {
			o.headers = append(o.headers, name)
		}
	}
}

func (o *registry) has(host string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// prepare makes a request fit to be sent to where it goes. The request is
// changed.
func (o *registry) prepare(r *http.Request) (*http.Request, error) {
	own := o.has(r.URL.Host)
	o.mu.Lock()
	plain, local, headers := o.plain, o.local, o.headers
	o.mu.Unlock()
	if own && r.Response == nil && r.Header.Get("Authorization") == "" && o.auth != nil && o.auth.RegistryToken != "" &&
		o.auth.isFor(r.URL.Host) {
		r.Header.Set("Authorization", "Bearer "+o.auth.RegistryToken)
	}
	if !own && r.Response != nil {
		for _, name := range headers {
			r.Header.Del(name)
		}
	}
	// A request with a body is one for a token and has the password in it.
	if secret := r.Header.Get("Authorization") != "" || r.Body != nil; secret && r.URL.Scheme == "http" && !plain {
		return nil, fmt.Errorf("the registry would have credentials sent to %s over plain HTTP: it must name an address with https: %w",
			r.URL.Host, errdefs.ErrFailedPrecondition)
	}
	if !own && !local && !proxied(r) {
		r = r.WithContext(context.WithValue(r.Context(), elsewhere{}, true))
	}
	return r, nil
}

// proxied tells whether a proxy will be dialed, wherever it is, in place of the
// request's host.
func proxied(r *http.Request) bool {
	proxy, err := http.ProxyFromEnvironment(r)
	return err != nil || proxy != nil
}

// elsewhere is the key of a request that goes where a registry said.
type elsewhere struct{}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// outward dials what a registry named, but no service that listens for this
// machine, or for its link, alone.
func outward(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if ctx.Value(elsewhere{}) == nil {
			return dial(ctx, network, address)
		}
		d := net.Dialer{Timeout: dialWait,
			Control: func(_, address string, _ syscall.RawConn) error { return checkOutward(address) }}
		return d.DialContext(ctx, network, address)
	}
}

var errInward = errors.New("the registry names a service of this machine or its link")

func checkOutward(address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	a := at.Addr().Unmap()
	if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast() {
		return fmt.Errorf("%w: %s", errInward, a)
	}
	return nil
}
