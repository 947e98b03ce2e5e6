package announce

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/segment"
)

// Group is the gossip, as far as it is needed.
type Group interface {
	Members() []gossip.Member
	Changed() <-chan struct{}
	// Heard is when a member on another machine was heard last.
	Heard() time.Time
	UpdateMeta(func(*gossip.Meta)) error
}

// Config of an Announcer.
type Config struct {
	Group Group
	// Claims are the addresses that nodes are to announce, and whether they are others than
	// at the last call; ClaimsChanged holds a token whenever that may be.
	Claims        func() (list []Claim, changed bool)
	ClaimsChanged <-chan struct{}
	// Skip tells of interfaces that lead to no other machine: the pods' bridge.
	Skip func(name string) bool
	// Leaves tells whether the end of the process is that of the node's membership.
	Leaves func() bool
	// Count counts what happens to an address here: Took, HandedOver, Contradicted, CutOff.
	Count func(event string)
	Log   *slog.Logger
}

// What is counted.
const (
	Took         = "took"
	HandedOver   = "handed_over"
	Contradicted = "contradicted" // another claimed it while this node was to have it: there were two
	CutOff       = "cut_off"
)

// Announcer answers for the addresses that are this node's to announce.
type Announcer struct {
	cfg      Config
	excluded atomic.Bool
	poke     chan struct{}

	mu      sync.Mutex
	seats   map[netip.Addr]*place
	links   map[linkKey]*link
	heard   map[segment.MAC]time.Time // claims of any address
	machine map[segment.MAC]machine   // words of nodes for their own addresses
	contact time.Time                 // another node's word on the network
	peers   map[netip.Addr]bool       // addresses of other nodes' machines
	fenced  bool
	said    string // of ranges, in the gossip
	asked   int    // which peer is asked next
	// agreed: this node knows the others' states.
	agreed     bool
	candidates []Candidate // that ranks are of
	warned     map[netip.Addr]time.Time
}

type machine struct {
	ip netip.Addr
	at time.Time
}

// place is a seat, and where it is.
type place struct {
	seat
	claim Claim
	rank  int
	link  *link // nil: no interface is on its network
	// told is whom those who ask are told while the node is not the owner, if tells.
	told  segment.MAC
	tells bool
}

type linkKey struct {
	name string
	ipv6 bool
}

// link is one family on one interface.
type link struct {
	segment.Link
	key    linkKey
	ranges []netip.Prefix
	cancel context.CancelFunc
	done   chan struct{}
	failed atomic.Bool
	beaten time.Time
	turn   int // whose claim is next
}

// New makes an Announcer; Run runs it.
func New(cfg Config) *Announcer {
	return &Announcer{cfg: cfg, poke: make(chan struct{}, 1), seats: map[netip.Addr]*place{}, links: map[linkKey]*link{},
		heard: map[segment.MAC]time.Time{}, machine: map[segment.MAC]machine{}, warned: map[netip.Addr]time.Time{}}
}

// Exclude has this node announce nothing, or what it is to after all
// (node.kubernetes.io/exclude-from-external-load-balancers).
func (a *Announcer) Exclude(yes bool) {
	if a.excluded.Swap(yes) != yes {
		select {
		case a.poke <- struct{}{}:
		default:
		}
	}
}

// Owned is how many addresses this node has.
func (a *Announcer) Owned() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.seats {
		if p.owner {
			n++
		}
	}
	return n
}

// interfacesEvery is how often interfaces are looked at, and those that failed tried
// again, while there is an address to announce.
const interfacesEvery = 2 * time.Second

// leaveWait bounds how long a node that leaves goes on until others have its addresses.
const leaveWait = 2500 * time.Millisecond

// Run announces until ctx ends. As long as there is nothing to announce it only waits.
func (a *Announcer) Run(ctx context.Context) error {
	defer a.closeLinks()
	var ticks *time.Ticker
	var tickC <-chan time.Time
	defer func() {
		if ticks != nil {
			ticks.Stop()
		}
	}()
	var looked time.Time
	members := a.cfg.Group.Changed()
	ending, deadline := ctx.Done(), time.Time{}
	var claims []Claim
	for {
		refresh, changed := false, false
		select {
		case <-ending:
			if !a.cfg.Leaves() {
				return nil
			}
			ending, deadline = nil, time.Now().Add(leaveWait)
		case <-a.cfg.ClaimsChanged:
			claims, changed = a.cfg.Claims()
			refresh = changed
		case <-members:
			refresh = true
		case <-a.poke:
			refresh = true
		case <-tickC:
			refresh = time.Since(looked) > interfacesEvery
		}
		if refresh && (changed || len(claims) > 0) {
			looked = time.Now()
			a.refresh(claims, changed)
		}
		idle := a.step(time.Now())
		switch {
		case idle && ticks != nil:
			ticks.Stop()
			ticks, tickC = nil, nil
		case !idle && ticks == nil:
			ticks = time.NewTicker(tick)
			tickC = ticks.C
		}
		if !deadline.IsZero() && (a.Owned() == 0 || time.Now().After(deadline)) {
			return nil
		}
	}
}

func (a *Announcer) closeLinks() {
	a.mu.Lock()
	list := slices.Collect(maps.Values(a.links))
	clear(a.links)
	clear(a.seats)
	a.mu.Unlock()
	for _, l := range list {
		l.close()
	}
}

func (l *link) close() {
	l.cancel()
	<-l.done
}

// network is a range that an interface is on.
type network struct {
	ifi    net.Interface
	ranges []netip.Prefix // of either family
	own    []netip.Addr
}

// networks are those of interfaces that lead to other machines.
func (a *Announcer) networks() (out []network) {
	list, err := net.Interfaces()
	if err != nil {
		a.cfg.Log.Warn("the node's interfaces cannot be listed", "err", err)
		return nil
	}
	for _, ifi := range list {
		if ifi.Flags&net.FlagUp == 0 || ifi.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 ||
			len(ifi.HardwareAddr) != len(segment.MAC{}) || a.cfg.Skip(ifi.Name) {
			continue
		}
		n := network{ifi: ifi}
		addrs, _ := ifi.Addrs()
		for _, x := range addrs {
			p, err := netip.ParsePrefix(x.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			n.own = append(n.own, p.Addr())
			if !p.IsSingleIP() {
				n.ranges = append(n.ranges, p.Masked())
			}
		}
		if len(n.ranges) > 0 {
			out = append(out, n)
		}
	}
	return out
}

// at returns the network that an address is on, with the longest prefix.
func at(networks []network, addr netip.Addr) (best *network, prefix netip.Prefix) {
	for i := range networks {
		for _, p := range networks[i].ranges {
			if p.Contains(addr) && (best == nil || p.Bits() > prefix.Bits()) {
				best, prefix = &networks[i], p
			}
		}
	}
	return best, prefix
}

// refresh takes what changed: claims, members, interfaces.
func (a *Announcer) refresh(claims []Claim, changed bool) {
	var networks []network
	if len(claims) > 0 {
		networks = a.networks()
	}
	var ranges []netip.Prefix
	needed := map[linkKey]*network{}
	where := map[netip.Addr]linkKey{}
	for _, c := range claims {
		n, prefix := at(networks, c.Addr)
		if n == nil || slices.Contains(n.own, c.Addr) {
			continue
		}
		if !slices.Contains(ranges, prefix) {
			ranges = append(ranges, prefix)
		}
		k := linkKey{n.ifi.Name, c.Addr.Is6()}
		needed[k], where[c.Addr] = n, k
		for _, p := range n.ranges { // machines are asked by either family
			needed[linkKey{n.ifi.Name, p.Addr().Is6()}] = n
		}
	}
	if a.excluded.Load() {
		ranges = nil
	}
	slices.SortFunc(ranges, func(x, y netip.Prefix) int { return strings.Compare(x.String(), y.String()) })
	a.say(FormatRanges(ranges))
	a.openLinks(needed)
	members := a.cfg.Group.Members()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peers, a.agreed = peersOf(members), agreed(members)
	candidates, name := candidatesOf(members)
	changed = changed || !reflect.DeepEqual(candidates, a.candidates)
	a.candidates = candidates
	seats := make(map[netip.Addr]*place, len(claims))
	for _, c := range claims {
		p := a.seats[c.Addr]
		if p == nil {
			p = &place{}
		}
		p.claim, p.link = c, a.links[where[c.Addr]]
		if changed {
			p.rank = slices.Index(Ranking(c, candidates), name)
		}
		if p.owner && p.link == nil {
			p.owner = false
		}
		seats[c.Addr] = p
	}
	for addr, p := range a.seats {
		if p.owner && seats[addr] == nil {
			a.cfg.Log.Info("a load balancer's address is announced no more: nobody has it", "address", addr)
		}
	}
	a.seats = seats
}

// say tells the other nodes where this one announces.
func (a *Announcer) say(ranges string) {
	if ranges == a.said {
		return
	}
	if err := a.cfg.Group.UpdateMeta(func(m *gossip.Meta) { m.Announces = ranges }); err != nil {
		a.cfg.Log.Warn("other nodes cannot be told where this one announces addresses", "err", err)
		return
	}
	a.said = ranges
}

// candidatesOf are the nodes that may announce, and this node's name.
func candidatesOf(members []gossip.Member) (out []Candidate, self string) {
	for _, m := range members {
		if m.Local {
			self = m.Name
		}
		if m.Role == gossip.RoleAgent && m.Announces != "" && (m.State == gossip.StateAlive || m.Local && !m.Leaving) {
			out = append(out, Candidate{m.Name, ParseRanges(m.Announces)})
		}
	}
	return out, self
}

// alonePatience is how long a machine counts that is not heard any more.
const alonePatience = 10 * time.Minute

// peersOf are the other machines that are there, or were lately.
func peersOf(members []gossip.Member) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	var own netip.Addr
	for _, m := range members {
		if m.Local {
			own = m.Addr.Addr()
		}
		gone := m.State == gossip.StateLeft || m.State == gossip.StateDead && time.Since(m.Since) > alonePatience
		if !gone && m.Addr.IsValid() {
			out[m.Addr.Addr()] = true
		}
	}
	delete(out, own)
	return out
}

// agreed tells whether this node knows the others' states: after its start it hears of
// them one after the other.
func agreed(members []gossip.Member) bool {
	others := false
	for _, m := range members {
		if m.State == gossip.StateUnheard {
			return false
		}
		others = others || !m.Local && m.State.Up()
	}
	return others
}

// openLinks opens what is needed, and closes the rest.
func (a *Announcer) openLinks(needed map[linkKey]*network) {
	a.mu.Lock()
	var drop []*link
	for k, l := range a.links {
		if n := needed[k]; n == nil || l.failed.Load() || l.MAC() != segment.MAC(n.ifi.HardwareAddr) {
			drop = append(drop, l)
			delete(a.links, k)
		}
	}
	a.mu.Unlock()
	for _, l := range drop {
		l.close()
	}
	for k, n := range needed {
		a.mu.Lock()
		l := a.links[k]
		if l != nil {
			l.ranges = n.ranges
		}
		a.mu.Unlock()
		if l != nil {
			continue
		}
		opened, err := segment.Open(&n.ifi, k.ipv6, func(w segment.Word) { a.hear(k, w) })
		if err != nil {
			a.cfg.Log.Warn("load balancers' addresses cannot be announced on an interface", "err", err)
			continue
		}
		l = &link{Link: opened, key: k, ranges: n.ranges, done: make(chan struct{})}
		var ctx context.Context
		ctx, l.cancel = context.WithCancel(context.Background())
		go func() {
			defer close(l.done)
			if err := l.Run(ctx); err != nil {
				l.failed.Store(true)
				a.cfg.Log.Warn("load balancers' addresses are not announced for a moment", "interface", k.name,
					"err", err)
			}
		}()
		a.mu.Lock()
		a.links[k] = l
		a.mu.Unlock()
	}
}

// hear takes the word of another machine.
//
// What comes by another link than the address's is nothing to it: a machine there, or this
// one's own words, where two of its interfaces are on one segment.
func (a *Announcer) hear(by linkKey, w segment.Word) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, l := range a.links {
		if l.MAC() == w.MAC {
			return
		}
	}
	if a.peers[w.Addr] && !w.Asks {
		a.contact = now
		a.machine[w.MAC] = machine{w.Addr, now}
		return
	}
	p := a.seats[w.Addr]
	if p == nil || p.link == nil || p.link.key != by {
		return
	}
	was := p.owner
	if w.Asks {
		p.deniedBy(w.MAC, now)
		return
	}
	a.stranger(p, w, now)
	act := p.claimedBy(w.MAC, a.situation(now, p))
	a.heard[w.MAC], a.contact = now, now
	if was && p.rank == 0 {
		a.cfg.Count(Contradicted)
	} else if was {
		a.cfg.Count(HandedOver)
	}
	if act.dropped != "" {
		a.answer(now) // at once
	}
	a.do(p, act, now)
}

// warnEvery is how often it is told that a stranger has an address.
const warnEvery = 10 * time.Minute

// stranger warns of a machine that answers a question for an address and is no node: the
// address is not free. It is never taken from one that does not claim it beat by beat.
func (a *Announcer) stranger(p *place, w segment.Word, now time.Time) {
	if _, node := a.machine[w.MAC]; node || p.asked == 0 || p.rank != 0 || now.Sub(a.warned[w.Addr]) < warnEvery {
		return
	}
	a.warned[w.Addr] = now
	a.cfg.Log.Warn("another machine may have a load balancer's address; take it out of the pool if it is no node",
		"address", w.Addr, "mac", w.MAC)
}

func (a *Announcer) situation(now time.Time, p *place) situation {
	return situation{
		now:     now,
		rank:    p.rank,
		fenced:  a.fenced,
		agreed:  a.agreed,
		mine:    p.link.MAC(),
		heard:   func(m segment.MAC) time.Time { return a.heard[m] },
		machine: func(m segment.MAC) time.Time { return a.machine[m].at },
	}
}

// step does what is due now, and tells whether there is nothing to do.
func (a *Announcer) step(now time.Time) (idle bool) {
	heard := a.cfg.Group.Heard()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.seats) == 0 {
		a.answer(now)
		return true
	}
	a.fence(now, heard)
	for _, p := range a.seats {
		if p.link != nil {
			a.do(p, p.step(a.situation(now, p)), now)
		}
	}
	a.answer(now)
	a.beat(now)
	a.forget(now)
	return false
}

// fence looks whether this machine is cut off, and asks others on the network when it
// has not heard any of them for a while.
func (a *Announcer) fence(now, heard time.Time) {
	if a.contact.IsZero() {
		a.contact = now
	}
	if heard.After(a.contact) {
		a.contact = heard
	}
	limit := routedLease
	var near []netip.Addr
	for ip := range a.peers {
		if a.reach(ip) != nil {
			near, limit = append(near, ip), lease
		}
	}
	quiet := now.Sub(a.contact)
	a.fenced = len(a.peers) >= 2 && quiet > limit
	if quiet < lease/2 || len(near) == 0 {
		return
	}
	slices.SortFunc(near, netip.Addr.Compare)
	for range min(len(near), 3) {
		a.asked++
		ip := near[a.asked%len(near)]
		_ = a.reach(ip).Ask(ip)
	}
}

// reach is the link that an address is on.
func (a *Announcer) reach(ip netip.Addr) *link {
	for _, l := range a.links {
		on := func(p netip.Prefix) bool { return p.Contains(ip) }
		if l.key.ipv6 == ip.Is6() && slices.ContainsFunc(l.ranges, on) {
			return l
		}
	}
	return nil
}

// do does what one address needs; the answers are given together.
func (a *Announcer) do(p *place, act action, now time.Time) {
	addr := p.claim.Addr
	if act.took {
		a.cfg.Count(Took)
		a.cfg.Log.Info("this node announces a load balancer's address", "address", addr, "interface", p.link.key.name,
			"order", p.rank)
		a.answer(now) // before anybody hears of it
	}
	if act.dropped != "" {
		if a.fenced {
			a.cfg.Count(CutOff)
		}
		a.cfg.Log.Info("this node no longer announces a load balancer's address", "address", addr,
			"why", act.dropped)
	}
	var errs []error
	if act.claim {
		errs = append(errs, p.link.Claim(addr))
	}
	if act.ask {
		errs = append(errs, p.link.Ask(addr))
	}
	if act.machine {
		a.askMachine(p)
	}
	if err := errors.Join(errs...); err != nil {
		a.cfg.Log.Debug("address is not announced", "address", addr, "err", err)
	}
	p.told, p.tells = act.answer, act.answers
}

// askMachine asks for the own address of the node that had an address last, of all nodes'
// where it is not known.
func (a *Announcer) askMachine(p *place) {
	ask := a.peers
	if m, ok := a.machine[p.by]; ok {
		ask = map[netip.Addr]bool{m.ip: true}
	}
	n := 0
	for ip := range ask {
		if l := a.reach(ip); l != nil && n < 16 {
			_ = l.Ask(ip)
			n++
		}
	}
}

// answer has all links answer for what the seats say.
func (a *Announcer) answer(now time.Time) {
	for _, l := range a.links {
		table := map[netip.Addr]segment.MAC{}
		for addr, p := range a.seats {
			switch {
			case p.link != l:
			case p.owner:
				table[addr] = l.MAC()
			case p.tells && p.told != l.MAC():
				table[addr] = p.told
			}
		}
		l.Answer(table, now.Add(answerFor))
	}
}

// beat claims some addresses of each link again.
func (a *Announcer) beat(now time.Time) {
	for _, l := range a.links {
		if now.Sub(l.beaten) < beat {
			continue
		}
		var own []netip.Addr
		for addr, p := range a.seats {
			if p.link == l && p.owner {
				own = append(own, addr)
			}
		}
		if len(own) == 0 {
			continue
		}
		slices.SortFunc(own, netip.Addr.Compare)
		l.beaten = now
		for range (len(own) + perTurn - 1) / perTurn {
			l.turn++
			_ = l.Claim(own[l.turn%len(own)])
		}
	}
}

// forgetAfter is when what a MAC said counts no more.
const forgetAfter = 10 * time.Minute

// maxHeard bounds what is kept of machines: anybody on the network may say anything.
const maxHeard = 4096

func (a *Announcer) forget(now time.Time) {
	old := func(at time.Time) bool { return now.Sub(at) > forgetAfter }
	maps.DeleteFunc(a.heard, func(_ segment.MAC, at time.Time) bool { return old(at) || len(a.heard) > maxHeard })
	maps.DeleteFunc(a.warned, func(_ netip.Addr, at time.Time) bool { return now.Sub(at) > warnEvery })
	maps.DeleteFunc(a.machine, func(_ segment.MAC, m machine) bool { return old(m.at) || len(a.machine) > maxHeard })
}
