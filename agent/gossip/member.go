package gossip

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// State is what the group believes about a member.
type State string

// The states. alive -> leaving -> left is a planned end; alive -> dead a
// failure; each of them goes back to alive when the member does. A start begins with
// unheard, which ends as alive or, after some seconds, as dead.
const (
	StateAlive   State = "alive"
	StateLeaving State = "leaving" // alive, but ends soon: no new traffic
	StateLeft    State = "left"    // ended as planned
	StateDead    State = "dead"    // stopped answering
	StateUnheard State = "unheard" // alive before this process began, and not heard since
)

// Up tells whether the member answers probes.
func (s State) Up() bool { return s == StateAlive || s == StateLeaving }

// Member is one member as last seen; it is a copy and may be kept.
type Member struct {
	Name string
	Meta
	PodCIDRs []netip.Prefix // what the API gives its node
	NodeIPs  []netip.Addr   // what leads to them
	Granted  time.Time      // when the API gave that; of two members with one range the later counts

	Addr  netip.AddrPort // where its gossip is reached
	State State
	Since time.Time // when State began, by this machine's clock
	Local bool      // this very process
	// Seen is where its packets come from, if it is at none of its own addresses: behind
	// a router that translates them.
	Seen netip.AddrPort
	// AtHome: a packet of it came from an address of its own lately.
	AtHome bool
}

// forgetAfter is how long a member that is gone stays in the snapshot.
const forgetAfter = 24 * time.Hour

// observe records what memberlist says about n. It is called under
// memberlist's node lock: it copies, marks and returns.
func (g *Group) observe(n *memberlist.Node, up bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old, known := g.members[n.Name]
	m := Member{Name: n.Name, Local: n.Name == g.cfg.Name}
	if a, ok := netip.AddrFromSlice(n.Addr); ok {
		m.Addr = netip.AddrPortFrom(a.Unmap(), n.Port)
	}
	meta, grant := g.wordsOf(n, old)
	m.Meta, m.PodCIDRs, m.NodeIPs, m.Granted = meta, grant.PodCIDRs, grant.NodeIPs, grant.Issued
	m.State = stateOf(up, meta.Leaving)
	m.Since = time.Now()
	if known && old.State == m.State {
		m.Since = old.Since
	}
	g.members[n.Name] = m
	if old.State.Up() {
		g.ups--
	}
	if m.State.Up() {
		g.ups++
		delete(g.accusers, n.Name)
	} else {
		delete(g.trips, n.Name)
		delete(g.digests, n.Name)
	}
	poke(g.changed)
	g.fitSuspicion(g.ups)
	g.notify()
}

// wordsOf returns what a member says, and what the API gives it. Both were
// checked on their way in; the caller holds g.mu.
func (g *Group) wordsOf(n *memberlist.Node, old Member) (Meta, Grant) {
	if n.Name == g.cfg.Name {
		return g.own.Meta, g.own.given
	}
	p := g.book.peer(n.Name)
	if p == nil {
		return old.Meta, Grant{PodCIDRs: old.PodCIDRs, NodeIPs: old.NodeIPs, Issued: old.Granted}
	}
	return p.Meta, p.grant
}

// alone tells whether this member knows no other that answers.
func (g *Group) alone() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ups <= 1
}

// isUp tells whether a member that answers probes is at an address.
func (g *Group) isUp(addr string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if m.State.Up() && m.Addr.String() == addr {
			return true
		}
	}
	return false
}

func stateOf(up, leaving bool) State {
	switch {
	case up && leaving:
		return StateLeaving
	case up:
		return StateAlive
	case leaving:
		return StateLeft
	}
	return StateDead
}

// forgetOld drops members that are gone for long; the caller holds g.mu.
func (g *Group) forgetOld(now time.Time) {
	for name, m := range g.members {
		if !m.State.Up() && now.Sub(m.Since) > forgetAfter {
			delete(g.members, name)
			delete(g.accusers, name)
		}
	}
}

// notify pokes every subscriber; the caller holds g.mu.
func (g *Group) notify() {
	for _, c := range g.subscribers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// Members returns all members, this one included, sorted by name. Members that
// died or left stay listed for a day.
func (g *Group) Members() []Member {
	g.mu.Lock()
	out := make([]Member, 0, len(g.members))
	now := time.Now()
	for _, m := range g.members {
		m.Seen, m.AtHome = g.sightings.at(m.Name, now), g.sightings.atHome(m.Name, now)
		out = append(out, m)
	}
	g.mu.Unlock()
	slices.SortFunc(out, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// hasAddr tells whether an address is a member's.
func (g *Group) hasAddr(a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.members {
		if m.Addr.Addr() == a || slices.Contains(m.NodeIPs, a) {
			return true
		}
	}
	return false
}

// Changed returns a new subscription: a channel that holds one token whenever
// Members may answer differently than before. It lives as long as the group.
func (g *Group) Changed() <-chan struct{} {
	c := make(chan struct{}, 1)
	g.mu.Lock()
	g.subscribers = append(g.subscribers, c)
	g.mu.Unlock()
	return c
}

// delegate is what memberlist calls. None of its methods may block or call
// back into memberlist.
type delegate struct{ *Group }

func (d delegate) NotifyJoin(n *memberlist.Node)   { d.observe(n, true) }
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.observe(n, true) }
func (d delegate) NotifyLeave(n *memberlist.Node)  { d.observe(n, false) }

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.own.encoded
}

func (delegate) NotifyMsg([]byte)                {}
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// NotifyConflict tells of two machines with one name; memberlist keeps the first.
func (d delegate) NotifyConflict(old, other *memberlist.Node) {
	d.log.Error("two machines use one name; rename one of them",
		"name", old.Name, "addr", old.Address(), "other", other.Address())
}

// NodeAddresses are the addresses of the nodes among members that have not left.
func NodeAddresses(members []Member) []netip.Addr {
	var out []netip.Addr
	for _, m := range members {
		if m.State != StateLeft {
			out = append(out, m.NodeIPs...)
		}
	}
	return out
}
