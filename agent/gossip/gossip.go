package gossip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// DefaultPort is the UDP and TCP port of the gossip.
const DefaultPort = 7946

// Config of one member. With Trust it tells and believes only what is signed
// (doc.go); without, members are believed as they are, and give no pod ranges.
type Config struct {
	Name          string   // unique; the node's name, for a coordinator a name that no node has
	BindAddr      string   // default 0.0.0.0
	BindPort      int      // 0: DefaultPort; -1: any free one
	AdvertiseAddr string   // IP that others reach this member at; default: found from BindAddr
	Join          []string // host or host:port of members to find the group by, tried for ever
	// Nodes are members that the API knows, and where they should be, for who can ask it: those
	// of whom nothing was ever heard are called as lost ones are. Nil: nobody can be asked.
	Nodes    func() map[string]netip.AddrPort
	Keys     *Keyring // shared by all members; nil: none
	Trust    Trust    // whose grants count; needs Identity
	Identity *Identity
	Grant    []byte         // of Identity; empty: SetGrant brings it, until then others do not hear this member
	Deny     []netip.Prefix // sources that are not answered: pods
	Meta     Meta
	File     string // keeps the other nodes for the next start; empty: none are kept
	// Answer answers what a verified member asks (Group.Ask), at once; nil: nothing.
	Answer func(member string, role Role, question []byte) []byte
	Log    *slog.Logger

	Transport memberlist.Transport // nil: UDP and TCP; tests give gossiptest's
}

// Group is this process's membership.
type Group struct {
	cfg  Config
	log  *slog.Logger
	list *memberlist.Memberlist
	conf *memberlist.Config // its suspicion follows the group's size (timing.go)
	book *book

	transport *guard

	repeats   repeats
	sightings sightings
	oldNews   oldNews

	mu          sync.Mutex // taken under memberlist's node lock: never call memberlist holding it
	own         own
	members     map[string]Member
	ups         int                      // how many of them are up
	trips       map[string]time.Duration // of the last probe of each that is up
	digests     map[string]Digest        // what each that is up answered last, this member's own too
	digest      []byte                   // this member's, encoded
	accusers    map[string]string        // who called each that is not up suspect or dead last
	subscribers []chan struct{}
	heard       time.Time // a member on another machine

	inFile []byte // what the file holds, as far as known; keepUp's

	update   sync.Mutex // one statement or end at a time
	stopped  bool
	granted  chan struct{} // closed when others can know this member
	once     sync.Once     // closes it
	restated chan struct{} // a new statement is due
	rekeyed  chan struct{} // the key changed
	changed  chan struct{} // members are to be written down
}

// New binds the sockets and starts answering probes. The group is looked for
// only in Run. The caller must call Run or Close.
func New(cfg Config) (*Group, error) {
	if cfg.Name == "" {
		return nil, errors.New("gossip: member has no name")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Trust != nil && cfg.Identity == nil {
		return nil, errors.New("gossip: member has no certificate to prove its name with")
	}
	g := &Group{cfg: cfg, log: cfg.Log, book: newBook(cfg.Name, cfg.Trust, cfg.Log), members: map[string]Member{},
		trips: map[string]time.Duration{}, digests: map[string]Digest{}, accusers: map[string]string{},
		granted: make(chan struct{}), restated: make(chan struct{}, 1), rekeyed: make(chan struct{}, 1),
		changed: make(chan struct{}, 1)}
	g.own.Meta, g.own.incarnation = cfg.Meta, 1 // memberlist's first
	if cfg.Trust == nil {
		g.once.Do(func() { close(g.granted) })
	} else {
		g.own.id = cfg.Identity
		if err := g.SetGrant(cfg.Grant); err != nil && len(cfg.Grant) > 0 {
			g.log.Debug("the kept gossip grant is of no use", "err", err)
		}
	}
	g.recall()
	mc := g.memberlistConfig()
	inner := cfg.Transport
	if inner == nil {
		nt, err := listen(mc.BindAddr, mc.BindPort, g.log)
		if err != nil {
			return nil, fmt.Errorf("gossip: listen on %s port %d: %w", mc.BindAddr, mc.BindPort, err)
		}
		mc.BindPort, mc.AdvertisePort = nt.Port(), nt.Port()
		inner = nt
	}
	g.conf = mc
	t := newGuard(g, inner)
	mc.Transport, g.transport = t, t
	var err error
	if g.list, err = memberlist.Create(mc); err != nil {
		return nil, errors.Join(fmt.Errorf("gossip: %w", err), t.Shutdown())
	}
	return g, nil
}

// Keys are what members share; nil without.
func (g *Group) Keys() *Keyring { return g.cfg.Keys }

// Verified tells whether members prove who they are.
func (g *Group) Verified() bool { return g.book.verified() }

// Addr is the address that other members use, for a Join of theirs.
func (g *Group) Addr() string { return g.list.LocalNode().Address() }

// Run looks for the group through the join addresses and the members it lost,
// with back-off for ever, until ctx ends; then it stops answering, without
// leaving: to the others a restart that is quick goes unnoticed.
func (g *Group) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer g.Close()
	wg.Go(func() { g.keepUp(ctx) })
	select {
	case <-ctx.Done():
		return nil
	case <-g.granted:
	}
	wg.Go(func() { g.giveUp(ctx) })
	changed := g.Changed()
	var j joiner
	for {
		wait := j.attempt(ctx, g)
		var timer <-chan time.Time
		if wait > 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			// Members come and go in bursts; one look a second is enough.
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		case <-timer:
		}
	}
}

// broadcastWait bounds the wait until a message was passed on as often as it is to
// be: of two members eight times (RetransmitMult), once in each probeInterval.
const broadcastWait = 10 * probeInterval

// Leave tells the others that this end is planned, then ends the membership.
func (g *Group) Leave() error {
	if err := g.restate(broadcastWait, func(o *own) { o.Leaving = true }); err != nil {
		return err
	}
	g.update.Lock()
	defer g.update.Unlock()
	if g.stopped {
		return nil
	}
	err := g.list.Leave(broadcastWait)
	g.shutdown()
	if err != nil {
		return fmt.Errorf("gossip: leave: %w", err)
	}
	return nil
}

// Close stops answering at once and says nothing. It may be called twice.
func (g *Group) Close() {
	g.update.Lock()
	defer g.update.Unlock()
	g.shutdown()
}

func (g *Group) shutdown() {
	if g.stopped {
		return
	}
	g.stopped = true
	if err := g.list.Shutdown(); err != nil {
		g.log.Debug("gossip shutdown", "err", err)
	}
}

// joiner holds how often and whom to call.
type joiner struct {
	delay  time.Duration
	failed bool            // the failure was told
	reach  map[string]bool // join addresses that answered since the last loss
	lost   int             // members lost at the last look
}

const (
	joinDelayMin = time.Second
	joinDelayMax = 30 * time.Second
	joinLostMax  = 3  // lost members called in one round
	joinAloneMax = 12 // of one that knows nobody alive

	// joinStagger is how much later than one call the next begins, while that waits.
	joinStagger = 100 * time.Millisecond
)

// joinCallers is how many members of a group call those that it lost, of more each one
// with that probability: else a machine that comes back is called by all at once, each
// of whom exchanges all that it knows.
const joinCallers = 12

// attempt calls who is missing and returns when to look again; 0: when something changes.
func (j *joiner) attempt(ctx context.Context, g *Group) time.Duration {
	targets, others := j.targets(g)
	if len(targets) == 0 && !others {
		j.delay, j.failed = 0, false
		if g.cfg.Nodes != nil {
			return joinDelayMax // the API may know somebody new
		}
		return 0
	}
	failure := j.call(ctx, g, targets)
	if ctx.Err() != nil {
		return 0
	}
	if failure == nil && len(targets) > 0 {
		j.delay, j.failed = 0, false
		return joinDelayMax
	}
	if !j.failed && failure != nil {
		j.failed = true
		g.log.Info("gossip: some members do not answer; trying on", "err", failure)
	}
	j.delay = min(max(2*j.delay, joinDelayMin), joinDelayMax)
	return j.delay + rand.N(j.delay/4)
}

// call joins all targets: a machine without power answers nothing for seconds, and the
// others are not to wait for that. What the first tells spares the calls of most.
func (j *joiner) call(ctx context.Context, g *Group, targets []string) error {
	errs := make([]error, len(targets))
	ended := make(chan struct{}, len(targets))
	var wg sync.WaitGroup
	running := 0
	for i, t := range targets {
		for pause := time.After(joinStagger); running > 0 && pause != nil; {
			select {
			case <-ended:
				running--
			case <-pause:
				pause = nil
			case <-ctx.Done():
				pause = nil
			}
		}
		if ctx.Err() == nil && !g.isUp(t) {
			running++
			wg.Go(func() {
				_, errs[i] = g.list.Join([]string{t})
				ended <- struct{}{}
			})
		}
	}
	wg.Wait()
	for i, t := range targets {
		if errs[i] == nil {
			j.reach[t] = true
		}
	}
	return cmp.Or(errs...)
}

// targets lists join addresses that belong to no live member and never
// answered since the last loss, and some of the members that died or were not heard
// yet, or that only the API knows; where nobody is alive, also those that left. With
// others, members are lost whom others call this time.
func (j *joiner) targets(g *Group) (targets []string, others bool) {
	up := map[string]bool{}
	var lost, left []string
	var nodes map[string]netip.AddrPort
	if g.cfg.Nodes != nil {
		nodes = g.cfg.Nodes()
	}
	g.mu.Lock()
	for _, m := range g.members {
		delete(nodes, m.Name)
		switch {
		case m.State.Up():
			up[m.Addr.String()] = true
		case m.State == StateLeft && m.Addr.IsValid():
			left = append(left, m.Addr.String())
		case m.Addr.IsValid():
			lost = append(lost, m.Addr.String())
		}
	}
	g.mu.Unlock()
	if len(lost) > j.lost || j.reach == nil || len(up) == 1 {
		j.reach = map[string]bool{}
	}
	j.lost = len(lost)
	for _, addr := range nodes {
		lost = append(lost, addr.String())
	}
	for _, t := range g.cfg.Join {
		if t = withPort(t); !up[t] && !j.reach[t] {
			targets = append(targets, t)
		}
	}
	rand.Shuffle(len(targets), func(a, b int) { targets[a], targets[b] = targets[b], targets[a] })
	most := joinLostMax
	switch {
	case len(up) <= 1:
		lost, most = append(lost, left...), joinAloneMax
	case rand.IntN(len(up)) >= joinCallers:
		return targets, len(lost) > 0
	}
	rand.Shuffle(len(lost), func(a, b int) { lost[a], lost[b] = lost[b], lost[a] })
	for _, t := range lost[:min(len(lost), most)] {
		if !slices.Contains(targets, t) {
			targets = append(targets, t)
		}
	}
	return targets, false
}

func withPort(addr string) string {
	if _, _, err := net.SplitHostPort(addr); err == nil {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(DefaultPort))
}
