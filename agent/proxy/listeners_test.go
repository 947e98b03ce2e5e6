package proxy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shoal-project/shoal/agent/gossip"
)

// TestListeners: an agent's word for where its gossip listens counts at its Node's
// addresses only, and not at all for what pods are kept from.
func TestListeners(t *testing.T) {
	at, ip := netip.MustParseAddrPort, netip.MustParseAddr
	l := Listeners{
		NodeIPs:    []netip.Addr{ip("192.0.2.1")},
		Ports:      []uint16{10250, 7946},
		GossipPort: 7946,
		Members: func() []gossip.Member {
			agent := func(addr string, ips ...netip.Addr) gossip.Member {
				return gossip.Member{Meta: gossip.Meta{Role: gossip.RoleAgent}, Addr: at(addr), NodeIPs: ips}
			}
			return []gossip.Member{
				agent("192.0.2.2:7000", ip("192.0.2.2")),
				agent("198.51.100.1:22", ip("192.0.2.3")), // says another's address
				{Meta: gossip.Meta{Role: gossip.RoleCoordinator}, Addr: at("192.0.2.8:7947")},
			}
		},
	}
	check := func(what string, got []netip.AddrPort, want ...string) {
		t.Helper()
		var list []netip.AddrPort
		for _, w := range want {
			list = append(list, at(w))
		}
		slices.SortFunc(got, netip.AddrPort.Compare)
		slices.SortFunc(list, netip.AddrPort.Compare)
		if !slices.Equal(got, list) {
			t.Errorf("%s: got %v, want %v", what, got, list)
		}
	}
	check("all", l.All(), "192.0.2.1:10250", "192.0.2.1:7946", "192.0.2.2:7000", "192.0.2.2:10250", "192.0.2.2:7946",
		"192.0.2.3:10250", "192.0.2.3:7946", "192.0.2.8:7947")
	check("gossip", l.Gossip(), "192.0.2.1:7946", "192.0.2.2:7946", "192.0.2.3:7946", "192.0.2.8:7947")
	l.Members = nil
	check("alone", l.All(), "192.0.2.1:10250", "192.0.2.1:7946")
	check("without gossip", l.Gossip())
}
