package gossip

import (
	"net/netip"
	"testing"
	"time"
)

// TestSightings: a member that is heard from elsewhere is there, unless it was at an
// own address a moment ago.
func TestSightings(t *testing.T) {
	var s sightings
	now := time.Now()
	at := netip.MustParseAddrPort("203.0.113.7:40000")
	if s.at("a", now).IsValid() {
		t.Error("nobody was heard, and it is somewhere")
	}
	if !s.note("a", at, false, now) || s.at("a", now) != at {
		t.Errorf("heard from %s, seen at %s", at, s.at("a", now))
	}
	moved := netip.AddrPortFrom(at.Addr(), 40001)
	if s.note("a", moved, false, now) || s.at("a", now) != moved {
		t.Errorf("another port is a change, or is not followed: %s", s.at("a", now))
	}
	if !s.note("a", netip.MustParseAddrPort("192.0.2.1:7946"), true, now) || s.at("a", now).IsValid() {
		t.Error("heard from its own address, and still elsewhere")
	}
	// Its packet, sent again by somebody else.
	if s.note("a", at, false, now.Add(ownFor-time.Second)); s.at("a", now.Add(ownFor-time.Second)).IsValid() {
		t.Error("a repeated packet moves a member")
	}
	if s.note("a", at, false, now.Add(ownFor)); s.at("a", now.Add(ownFor)) != at {
		t.Error("a member that moved is not followed")
	}
	s.forget(map[string]bool{"b": true})
	if s.at("a", now.Add(ownFor)).IsValid() {
		t.Error("who is no member is remembered")
	}
}
