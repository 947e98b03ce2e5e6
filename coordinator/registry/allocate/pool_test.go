package allocate

import (
	"net/netip"
	"testing"
)

func TestPool(t *testing.T) {
	p := newPool(20, 4)
	seen := map[uint64]bool{}
	for i := range 20 {
		n, ok := p.next()
		if !ok || seen[n] || n >= 20 {
			t.Fatalf("number %d: %d %v", i, n, ok)
		}
		if i < 16 && n < 4 {
			t.Errorf("number %d is of the static band", n)
		}
		seen[n] = true
	}
	if _, ok := p.next(); ok {
		t.Error("a full pool gave a number")
	}
	p.free(7)
	if n, ok := p.next(); !ok || n != 7 {
		t.Errorf("after free: %d %v", n, ok)
	}
}

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		cidr        string
		size        uint64
		first, last string
		outside     []string
	}{
		{"10.96.0.0/16", 65534, "10.96.0.1", "10.96.255.254", []string{"10.96.0.0", "10.96.255.255", "10.97.0.1", "fd00::1"}},
		{"192.0.2.0/29", 6, "192.0.2.1", "192.0.2.6", []string{"192.0.2.0", "192.0.2.7"}},
		{"fd00::/108", 1<<20 - 1, "fd00::1", "fd00::f:ffff", []string{"fd00::", "10.0.0.1"}},
	} {
		a := newAddresses(netip.MustParsePrefix(c.cidr))
		if a.size != c.size || a.at(0).String() != c.first || a.at(a.size-1).String() != c.last {
			t.Errorf("%s: %d from %s to %s", c.cidr, a.size, a.at(0), a.at(a.size-1))
		}
		for _, ip := range []string{c.first, c.last} {
			if n, err := a.index(netip.MustParseAddr(ip)); err != nil || a.at(n).String() != ip {
				t.Errorf("%s: index of %s: %d %v", c.cidr, ip, n, err)
			}
		}
		for _, ip := range c.outside {
			if _, err := a.index(netip.MustParseAddr(ip)); err == nil {
				t.Errorf("%s holds %s", c.cidr, ip)
			}
		}
	}
}
