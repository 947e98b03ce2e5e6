package nodeipam

import (
	"net/netip"
	"testing"
)

func TestNext(t *testing.T) { // NODE-36
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
		{"10.244.0.0/24", nil, "10.244.0.0/24"},
		{"10.244.0.0/24", []netip.Prefix{p("10.244.0.0/24")}, ""},
		{"10.244.0.0/25", nil, ""},
	} {
		got, err := next(p(tt.cluster), 24, tt.used)
		if tt.want == "" && err == nil || tt.want != "" && got.String() != tt.want {
			t.Errorf("%s without %v: %s, %v", tt.cluster, tt.used, got, err)
		}
	}
}
