package cidr

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestPrefixes(t *testing.T) {
	for _, c := range []struct {
		texts       []string
		all, v4, v6 string
		in, out     string // addresses
	}{
		{nil, "[]", "[]", "[]", "", "10.0.0.1"},
		{[]string{"", "nonsense", "10.0.0.0"}, "[]", "[]", "[]", "", "10.0.0.1"},
		{[]string{"10.244.0.0/16"}, "[10.244.0.0/16]", "[10.244.0.0/16]", "[]", "10.244.9.9", "10.245.0.0"},
		{[]string{"fd00::/48, 10.1.0.0/16"}, "[fd00::/48 10.1.0.0/16]", "[10.1.0.0/16]", "[fd00::/48]", "fd00::9", "fd01::"},
		{[]string{"10.1.0.0/24", "10.2.0.0/24"}, "[10.1.0.0/24 10.2.0.0/24]", "[10.1.0.0/24 10.2.0.0/24]", "[]",
			"10.2.0.9", "10.3.0.0"},
	} {
		p := Parse(c.texts...)
		if got := fmt.Sprint(p, p.V4(), p.V6()); got != c.all+" "+c.v4+" "+c.v6 {
			t.Errorf("%q: got %s", c.texts, got)
		}
		if c.in != "" && !p.Contains(netip.MustParseAddr(c.in)) || p.Contains(netip.MustParseAddr(c.out)) {
			t.Errorf("%v: %s is to be in it, %s is not", p, c.in, c.out)
		}
	}
	// A range that nobody could read, as a Service's may be, is of no family.
	if p := (Prefixes{{}}); len(p.V4()) != 0 || len(p.V6()) != 0 || p.Contains(netip.Addr{}) {
		t.Errorf("the zero range is of a family: %v %v", p.V4(), p.V6())
	}
}
