package core

import (
	"errors"
	"net"
	"net/http"
	"testing"
)

func TestReachable(t *testing.T) {
	for ip, want := range map[string]bool{
		"10.244.1.2": true, "203.0.113.1": true, "2001:db8::1": true, "fd00::1": true,
		"127.0.0.1": false, "::1": false, "0.0.0.0": false, "::": false, "169.254.169.254": false, "fe80::1": false,
		"224.0.0.1": false, "ff02::1": false, "255.255.255.255": false,
		"::ffff:127.0.0.1": false, "::ffff:0.0.0.0": false, "::ffff:169.254.1.1": false, "": false, "localhost": false,
	} {
		if got := reachable(ip); got != want {
			t.Errorf("%q: got %v", ip, got)
		}
	}
}

// A node's name is resolved, and what it has come to is looked at once more when
// it is dialed.
func TestNamesOfTheServersOwnMachine(t *testing.T) {
	if err := mayProxyTo(t.Context(), "localhost"); !errors.Is(err, errNotAllowed) {
		t.Errorf("check: got %v", err)
	}
	if err := mayProxyTo(t.Context(), "127.0.0.1"); !errors.Is(err, errNotAllowed) {
		t.Errorf("check: got %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"localhost", "127.0.0.1"} {
		for name, rt := range map[string]http.RoundTripper{"pods and services": plain, "agents": guardTransport(&http.Transport{})} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+net.JoinHostPort(host, port), nil)
			if err != nil {
				t.Fatal(err)
			}
			if r, err := rt.RoundTrip(req); !errors.Is(err, errNotAllowed) {
				if err == nil {
					r.Body.Close()
				}
				t.Errorf("%s: dial %s: got %v", name, host, err)
			}
		}
	}
}
