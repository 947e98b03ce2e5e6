package pod

import (
	"slices"
	"testing"
)

// TestPodIPs: whatever a network's plugin gives, the API takes one address of a family.
func TestPodIPs(t *testing.T) {
	for _, c := range []struct {
		all, node, want []string
	}{
		{nil, []string{"192.0.2.1"}, nil},
		{[]string{"10.0.0.1", "fd00::1"}, nil, []string{"10.0.0.1", "fd00::1"}},
		{[]string{"fd00::1", "10.0.0.1"}, []string{"192.0.2.1"}, []string{"10.0.0.1", "fd00::1"}},
		{[]string{"10.0.0.1", "fd00::1"}, []string{"2001:db8::1", "192.0.2.1"}, []string{"fd00::1", "10.0.0.1"}},
		{[]string{"10.0.0.1", "10.1.0.1"}, []string{"192.0.2.1"}, []string{"10.0.0.1"}},
		{[]string{"fd00::1", "fd00::2"}, []string{"192.0.2.1"}, []string{"fd00::1"}},
	} {
		if got := podIPs(c.all, c.node); !slices.Equal(got, c.want) {
			t.Errorf("%v on %v: %v, want %v", c.all, c.node, got, c.want)
		}
	}
}
