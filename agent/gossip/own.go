package gossip

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// own is what this member says of itself, and how it proves it.
type own struct {
	Meta
	addr  netip.AddrPort
	id    *Identity
	next  *Identity // waits for its grant
	grant []byte
	given Grant

	serial  uint64
	ceiling uint32
	// incarnation is the highest that this member may have reached.
	incarnation uint32
	due         bool // a new statement, though its words are the same
	encoded     []byte
}

const (
	// ceilingStep is how many incarnations a statement allows: so many times a
	// member may be accused, or say something new, before it says more. A liar
	// can use up no more of them than that at a time.
	ceilingStep = 256
	// ceilingMargin is how many are left when a new statement is due.
	ceilingMargin = 64
	// restateEvery bounds how often a liar can have a statement made: the 2^32
	// incarnations last for 194 days of it.
	restateEvery = time.Second
	// refreshEvery is how often the key file is looked at.
	refreshEvery = 10 * time.Second
)

func (g *Group) identity() *Identity {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own.id
}

// credential is what a stream's head shows; nothing of a member that proves nothing.
func (g *Group) credential() (*Identity, []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own.id, g.own.grant
}

// ownWords are the member's ceiling and serial, and whether raw is what it says.
func (g *Group) ownWords(raw []byte) (ceiling uint32, serial uint64, same bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.own.ceiling, g.own.serial, bytes.Equal(raw, g.own.encoded)
}

// Certificate is what the member's grant must be made for, DER; nil if it
// proves nothing.
func (g *Group) Certificate() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.own.next != nil:
		return g.own.next.Certificate
	case g.own.id != nil:
		return g.own.id.Certificate
	}
	return nil
}

// SetIdentity takes the node's new certificate and key, and whose grants count
// from now on. The old key serves until the new one has its grant.
func (g *Group) SetIdentity(id *Identity, t Trust) {
	if !g.book.verified() {
		return
	}
	g.book.setTrust(t)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case bytes.Equal(id.public, g.own.id.public):
		g.own.id, g.own.next = id, nil
	case len(g.own.grant) == 0:
		g.own.id = id
	default:
		g.own.next = id
	}
}

// SetGrant takes what the API gives this member. A grant for another key is an
// error: the one for this key is on its way.
func (g *Group) SetGrant(raw []byte) error {
	trust, _ := g.book.state(g.cfg.Name)
	if trust == nil {
		return nil
	}
	given, err := OpenGrant(g.cfg.Name, raw, trust, time.Now())
	if err != nil {
		return fmt.Errorf("gossip grant: %w", err)
	}
	var id *Identity
	rekeyed := false
	g.mu.Lock()
	for _, i := range []*Identity{g.own.next, g.own.id} {
		if i != nil && bytes.Equal(i.public, given.Key) {
			id = i
			rekeyed = i == g.own.next
			break
		}
	}
	g.mu.Unlock()
	if id == nil {
		return fmt.Errorf("gossip grant: %w: it is for another key", errGrantForged)
	}
	err = g.restate(time.Nanosecond, func(o *own) {
		o.id, o.grant, o.given = id, bytes.Clone(raw), given
		if rekeyed {
			o.next = nil
		}
		o.Role = given.Role
	})
	if err != nil {
		return err
	}
	g.once.Do(func() { close(g.granted) })
	if rekeyed {
		poke(g.rekeyed)
	}
	return nil
}

// advertise takes the address that others reach this member at.
func (g *Group) advertise(a netip.AddrPort) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.own.addr == a {
		return nil
	}
	next := g.own
	next.addr = a
	return g.say(next)
}

// say makes next the member's words, signed. The caller holds g.mu.
func (g *Group) say(next own) error {
	next.serial = max(next.serial+1, uint64(time.Now().UnixNano()))
	next.ceiling = max(next.ceiling, next.incarnation+1+ceilingStep)
	s := statement{Meta: next.Meta, grant: next.grant, serial: next.serial, ceiling: next.ceiling}
	encoded, err := s.encode(g.cfg.Name, next.addr, next.id)
	if err != nil {
		return err
	}
	next.encoded, next.due = encoded, false
	g.own = next
	return nil
}

// UpdateMeta changes what this member tells of itself; it is sent out after the
// call. An error is returned only when the result is too long; nothing changed then.
func (g *Group) UpdateMeta(change func(*Meta)) error {
	return g.restate(time.Nanosecond, func(o *own) { change(&o.Meta) })
}

// restate changes the member's words, and waits until they were passed on or
// the wait is over.
func (g *Group) restate(wait time.Duration, change func(*own)) error {
	g.update.Lock()
	defer g.update.Unlock()
	g.mu.Lock()
	next := g.own
	change(&next)
	due := next.due || next.incarnation+ceilingMargin > next.ceiling
	if !due && next.Meta == g.own.Meta && next.id == g.own.id && bytes.Equal(next.grant, g.own.grant) {
		g.mu.Unlock()
		return nil
	}
	if g.list == nil { // New: memberlist asks for the address first
		g.own = next
		g.mu.Unlock()
		return nil
	}
	err := g.say(next)
	if err == nil && !g.stopped {
		g.own.incarnation++
	}
	g.mu.Unlock()
	if err != nil {
		return fmt.Errorf("gossip: %w", err)
	}
	if g.stopped {
		return nil
	}
	// The broadcast is queued before the wait; a lost one is repaired by the
	// periodic state exchange, so the time-out is no failure.
	if err := g.list.UpdateNode(wait); err != nil {
		g.log.Debug("gossip metadata is on its way", "state", err)
	}
	return nil
}

// heardOfSelf notes which incarnation others gave this member: with an
// accusation (raw is nil), or with words that it said, perhaps before a restart.
// Memberlist then takes the next one, which must stay below the ceiling.
func (g *Group) heardOfSelf(incarnation uint32, raw []byte, serial uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := &g.own
	same := raw != nil && bytes.Equal(raw, o.encoded)
	if incarnation > o.incarnation || incarnation == o.incarnation && !same {
		o.incarnation = incarnation + 1
	}
	if !same && serial >= o.serial {
		// Said before a restart, by a clock that was ahead of today's: what we say
		// next must be newer.
		o.serial, o.due = serial, true
	}
	if o.due || o.incarnation+ceilingMargin > o.ceiling {
		poke(g.restated)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// keepUp follows the key file, says anew what is due, and writes members down, until
// ctx ends.
func (g *Group) keepUp(ctx context.Context) {
	refresh := time.NewTicker(refreshEvery)
	defer refresh.Stop()
	defer func() { _ = g.remember() }()
	var write <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.changed:
			if write == nil {
				write = time.After(rememberAfter) // they come and go in bursts
			}
			continue
		case <-write:
			write = g.rememberAgain()
			continue
		case <-refresh.C:
			g.cfg.Keys.refresh(g.log)
			g.tidy()
			continue
		case <-g.rekeyed:
			g.meetAgain()
		case <-g.restated:
			if err := g.restate(time.Nanosecond, func(*own) {}); err != nil {
				g.log.Warn("gossip: this member cannot answer what is said of it", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(restateEvery):
		}
	}
}

// tidy has the book forget who is no member any more. The names are copied first:
// who holds g.mu asks the book (observe), so that the book must not ask back.
func (g *Group) tidy() {
	now := time.Now()
	g.repeats.tidy(now)
	known := map[string]bool{}
	g.mu.Lock()
	g.forgetOld(now)
	for name := range g.members {
		known[name] = true
	}
	g.mu.Unlock()
	g.book.forget(known)
	g.sightings.forget(known)
}

// meetAgain shows the new key to some live members by streams; they pass it on.
// The others find it out by a stream when a packet of theirs is not answered.
func (g *Group) meetAgain() {
	var live []string
	for _, m := range g.Members() {
		if !m.Local && m.State.Up() {
			live = append(live, m.Addr.String())
		}
	}
	rand.Shuffle(len(live), func(a, b int) { live[a], live[b] = live[b], live[a] })
	for _, addr := range live[:min(len(live), joinLostMax)] {
		if _, err := g.list.Join([]string{addr}); err != nil {
			g.log.Debug("gossip: new key not shown", "to", addr, "err", err)
		}
	}
}
