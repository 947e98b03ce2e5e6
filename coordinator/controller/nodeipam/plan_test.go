package nodeipam

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestGive(t *testing.T) { // NODE-36
	p := netip.MustParsePrefix
	for _, tt := range []struct {
		cluster string
		used    []netip.Prefix
		want    string
	}{
		{"10.244.0.0/16", nil, "10.244.0.0/24"},
		{"10.244.0.0/16", []netip.Prefix{p("10.244.0.0/24"), p("10.244.2.0/24")}, "10.244.1.0/24"},
		{"10.244.0.0/16", []netip.Prefix{p("10.244.0.0/23"), p("192.168.0.0/24"), p("fd00::/64")}, "10.244.2.0/24"},
		{"10.244.0.0/16", []netip.Prefix{p("10.244.0.128/25")}, "10.244.1.0/24"},
		{"10.244.0.0/16", []netip.Prefix{p("10.0.0.0/8")}, ""},
		{"10.244.0.0/24", nil, "10.244.0.0/24"},
		{"10.244.0.0/24", []netip.Prefix{p("10.244.0.0/24")}, ""},
		{"0.0.0.0/0", []netip.Prefix{p("0.0.0.0/24")}, "0.0.1.0/24"},
		{"10.244.0.0/25", nil, ""},
		{"fd00::/48", nil, "fd00::/64"},
		{"fd00::/48", []netip.Prefix{p("fd00::/64"), p("fd00:0:0:2::/64"), p("10.244.0.0/24")}, "fd00:0:0:1::/64"},
		{"fd00::/48", []netip.Prefix{p("fd00::/62"), p("fd01::/64")}, "fd00:0:0:4::/64"},
		{"fd00:1:2:ab00::/56", []netip.Prefix{p("fd00:1:2:ab00::1/128")}, "fd00:1:2:ab01::/64"},
		{"fd00::/64", nil, "fd00::/64"},
		{"fd00::/64", []netip.Prefix{p("fd00::/64")}, ""},
		{"fd00::/48", []netip.Prefix{p("fd00::/16")}, ""},
		{"fd00::/65", nil, ""},
		{"fd00::/8", []netip.Prefix{p("fd00::/64")}, ""},
	} {
		bits := 24
		if p(tt.cluster).Addr().Is6() {
			bits = 64
		}
		b := newBlocks(p(tt.cluster), bits)
		for i, u := range tt.used {
			b.hold(fmt.Sprint(i), "", []netip.Prefix{u})
		}
		got, err := b.give("new", "")
		if tt.want == "" && err == nil || tt.want != "" && got.String() != tt.want {
			t.Errorf("%s without %v: %s, %v", tt.cluster, tt.used, got, err)
		}
	}
}

func TestBlocksComeBack(t *testing.T) { // NODE-36
	b := newBlocks(netip.MustParsePrefix("10.244.0.0/22"), 24)
	give := func(node, want string) {
		t.Helper()
		got, err := b.give(node, "1")
		if want == "" && err == nil || want != "" && got.String() != want {
			t.Errorf("%s: %s, %v; want %q", node, got, err, want)
		}
	}
	give("a", "10.244.0.0/24")
	give("a", "10.244.0.0/24") // once given, the same again
	give("b", "10.244.1.0/24")
	// Two nodes that say they hold the same: it is free when both are gone.
	b.hold("c", "1", []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")})
	b.free("a")
	give("d", "10.244.2.0/24")
	b.free("c")
	give("e", "10.244.0.0/24")
	give("f", "10.244.3.0/24")
	give("g", "")
	b.free("b")
	give("g", "10.244.1.0/24")
}
