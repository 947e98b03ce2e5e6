package gossip

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// sighting is where a member's packets come from. One behind a router that translates
// addresses tells an address where nobody reaches it; what answers its own packets,
// from the same port to the same address, does.
type sighting struct {
	own       time.Time // when a packet came from an address that is its own
	elsewhere netip.AddrPort
}

// ownFor is how long a member that was heard from an own address is taken to be there:
// who has a packet of it can send it again, from anywhere.
const ownFor = 10 * time.Minute

type sightings struct {
	mu  sync.Mutex
	all map[string]sighting
}

// note tells whether a member is somewhere else than before.
func (s *sightings) note(name string, from netip.AddrPort, own bool, now time.Time) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.all[name]
	after := sighting{own: before.own, elsewhere: from}
	if own {
		after = sighting{own: now}
	}
	if s.all == nil {
		s.all = map[string]sighting{}
	}
	s.all[name] = after
	return before.at(now).Addr() != after.at(now).Addr()
}

// at is where a member is that is hidden; the zero one: it is not.
func (s sighting) at(now time.Time) netip.AddrPort {
	if s.atHome(now) {
		return netip.AddrPort{}
	}
	return s.elsewhere
}

func (s sighting) atHome(now time.Time) bool { return !s.own.IsZero() && now.Sub(s.own) < ownFor }

// at is described at sighting.at.
func (s *sightings) at(name string, now time.Time) netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name].at(now)
}

// atHome tells whether a member was heard from an address of its own lately.
func (s *sightings) atHome(name string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[name].atHome(now)
}

// forget drops those who are no members.
func (s *sightings) forget(known map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.all {
		if !known[name] {
			delete(s.all, name)
		}
	}
}

// sighted notes where a packet of a verified member came from.
func (g *Group) sighted(p *peer, from netip.AddrPort) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.members[p.name]
	if !known || !from.IsValid() {
		return
	}
	from = netip.AddrPortFrom(from.Addr().Unmap().WithZone(""), from.Port())
	own := from.Addr() == m.Addr.Addr() || slices.Contains(m.NodeIPs, from.Addr())
	if g.sightings.note(p.name, from, own, time.Now()) {
		g.notify()
	}
}

// whereQuestion asks where the one who asks is seen. No other question begins with 0.
var whereQuestion = []byte("\x00where")

// SeenAs asks a member from which address this one's words come to it. Those of earlier
// versions do not answer.
func (g *Group) SeenAs(ctx context.Context, member string) (netip.Addr, error) {
	said, err := g.Ask(ctx, member, whereQuestion)
	if err != nil {
		return netip.Addr{}, err
	}
	a, ok := netip.AddrFromSlice(said)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%s tells no address", member)
	}
	return a.Unmap(), nil
}
