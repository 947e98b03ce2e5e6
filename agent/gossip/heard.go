package gossip

import (
	"net/netip"
	"time"
)

// heardFrom notes that another machine's packet has come, which a member sealed.
func (g *Group) heardFrom(a netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if a != g.own.addr.Addr() {
		g.heard = time.Now()
	}
}

// Heard is when a member on another machine was heard last; zero: never.
func (g *Group) Heard() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heard
}
