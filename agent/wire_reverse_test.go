package main

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/reverse"
)

// TestReverseTo: connections are for coordinators with an API that have not left, and for
// none on a network of this machine.
func TestReverseTo(t *testing.T) {
	member := func(name string, role gossip.Role, state gossip.State, api string) gossip.Member {
		return gossip.Member{Name: name, State: state, Meta: gossip.Meta{Role: role, API: api}}
	}
	got := reverseTo([]gossip.Member{
		member("agent", gossip.RoleAgent, gossip.StateAlive, "https://192.0.2.1:6443"),
		member("left", gossip.RoleCoordinator, gossip.StateLeft, "https://192.0.2.2:6443"),
		member("plain", gossip.RoleCoordinator, gossip.StateAlive, "http://192.0.2.3:6443"),
		member("witness", gossip.RoleCoordinator, gossip.StateAlive, ""),
		member("dead", gossip.RoleCoordinator, gossip.StateDead, "https://192.0.2.4:6443"),
		member("up", gossip.RoleCoordinator, gossip.StateAlive, "https://[2001:db8::5]:6443"),
	})
	if want := []reverse.Coordinator{{Name: "dead", Address: "192.0.2.4:6443"},
		{Name: "up", Address: "[2001:db8::5]:6443", Up: true}}; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	local := []netip.Prefix{netip.MustParsePrefix("192.0.2.7/24"), netip.MustParsePrefix("2001:db8::7/64")}
	for address, want := range map[string]bool{
		"192.0.2.4:6443": true, "[2001:db8::5]:6443": true, "198.51.100.1:6443": false, "name:6443": false,
	} {
		if near(address, local) != want {
			t.Errorf("%s is near: %t", address, !want)
		}
	}
}
