package podnet

import (
	"encoding/json"
	"net/netip"
	"testing"
)

func TestAddr(t *testing.T) {
	for text, want := range map[string]netip.Addr{
		"":          {},
		"0.0.0.0":   {},
		"::":        {},
		"192.0.2.1": netip.AddrFrom4([4]byte{192, 0, 2, 1}),
		"::1":       netip.IPv6Loopback(),
	} {
		if got, err := (HostPort{HostIP: text}).Addr(); err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"everywhere", "010.0.0.1", "192.0.2.1:80"} {
		if got, err := (HostPort{HostIP: text}).Addr(); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
}

// TestPortMappings: plugins read host ports as CONVENTIONS.md has them.
func TestPortMappings(t *testing.T) {
	for _, text := range []string{
		`{"hostPort":8080,"containerPort":80}`,
		`{"hostPort":8053,"containerPort":53,"protocol":"udp","hostIP":"192.0.2.1"}`,
	} {
		var p HostPort
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(p); err != nil || string(got) != text {
			t.Errorf("%s became %s, %v", text, got, err)
		}
	}
}
