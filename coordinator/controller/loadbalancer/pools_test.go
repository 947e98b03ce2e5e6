package loadbalancer

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParsePools(t *testing.T) {
	reserved := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.244.0.0/16")}
	for _, tt := range []struct{ name, text, want string }{
		{"block", "addresses: [192.0.2.64/30]", "192.0.2.64-192.0.2.67"},
		{"block_of_IPv6", `addresses: ["2001:db8::/126"]`, "2001:db8::-2001:db8::3"},
		{"range", "addresses: [192.0.2.1 - 192.0.2.3]", "192.0.2.1-192.0.2.3"},
		{"address", "addresses: [192.0.2.1]", "192.0.2.1-192.0.2.1"},
		{"several", `addresses: [192.0.2.1, "2001:db8::1"]`, "192.0.2.1-192.0.2.1 2001:db8::1-2001:db8::1"},
		{"none", "addresses: []", "error: no addresses"},
		{"unknown_field", "address: [192.0.2.1]", `error: `},
		{"backwards", "addresses: [192.0.2.3-192.0.2.1]", "error: "},
		{"two_families", `addresses: ["192.0.2.3-2001:db8::1"]`, "error: "},
		{"no_address", "addresses: [web]", "error: "},
		{"loopback", "addresses: [127.0.0.1]", "error: "},
		{"link_local", `addresses: ["fe80::1"]`, "error: "},
		{"mapped", `addresses: ["::ffff:192.0.2.1"]`, "error: "},
		{"of_Services", "addresses: [10.96.0.10]", "error: "},
		{"around_pods", "addresses: [10.0.0.1-10.250.0.1]", "error: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			pools, err := parsePools(map[string]string{"a": tt.text}, reserved)
			if err != nil {
				got = "error: " + err.Error()
			}
			for _, p := range pools {
				for _, s := range p.spans {
					got += fmt.Sprintf(" %s-%s", s.first, s.last)
				}
			}
			got = strings.TrimSpace(got)
			if got != tt.want && !(strings.HasPrefix(tt.want, "error") && strings.HasPrefix(got, "error")) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPoolsDoNotOverlap(t *testing.T) {
	_, err := parsePools(map[string]string{"a": "addresses: [192.0.2.0/24]", "b": "addresses: [192.0.2.7]"}, nil)
	if err == nil || !strings.Contains(err.Error(), `192.0.2.7 is in pool "a"`) {
		t.Errorf("got %v", err)
	}
}

// Of two Services with one address, as after a change of leaders in the middle of a
// write, exactly one gives it up, whichever is looked at first.
func TestOneOfTwoGivesUp(t *testing.T) {
	pools, err := parsePools(map[string]string{"a": "addresses: [192.0.2.1-192.0.2.9]"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	make := func(name string, seconds int64) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(seconds, 0)}}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status, _ = statusFor(s, plan{addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, pools: []string{"a"}},
			metav1.Unix(0, 0))
		return s
	}
	old, young := make("old", 1), make("young", 2)
	by := func(s, other *corev1.Service) taken {
		return func(a netip.Addr) string {
			if a == addresses(other)[0] && !precedes(s, other) {
				return other.Name
			}
			return ""
		}
	}
	if p := planFor(old, pools, by(old, young)); len(p.addrs) != 1 || p.addrs[0].String() != "192.0.2.1" {
		t.Errorf("the older has %v", p.addrs)
	}
	if p := planFor(young, pools, by(young, old)); len(p.addrs) != 1 || p.addrs[0].String() != "192.0.2.2" {
		t.Errorf("the younger has %v", p.addrs)
	}
}
