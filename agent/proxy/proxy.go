package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/foreign"
	"github.com/shoal-project/shoal/cni/nft"
)

// Config of the proxy.
type Config struct {
	Table        string        // nftables table, owned; default shoal
	ServiceCIDRs cidr.Prefixes // what goes there without a backend is refused
	ClusterCIDRs cidr.Prefixes // all pods
	PodCIDRs     cidr.Prefixes // this node's pods, if known
	NodeIPs      []netip.Addr  // this node's addresses, as others know it
	DNS          []netip.Addr  // where the agent answers names itself
	// NodePorts are the ranges of the node's addresses that NodePorts and health
	// checks answer on; every address of a family that it has no range of.
	NodePorts cidr.Prefixes
	// Own lists where parts of the cluster listen, on this node and on others,
	// Gossip where the gossip does, which pods have no business with; OwnChanged
	// holds a token when they may answer differently. nil: nowhere.
	Own, Gossip func() []netip.AddrPort
	OwnChanged  <-chan struct{}
	// Syncs takes how long changes of the kernel's rules took, Programming how long
	// after what brought them about they were made; nil: nobody asks.
	Syncs, Programming *metrics.Durations
	// Programmed hears of the tables that the kernel holds from then on; nil: nobody does.
	Programmed func(*service.Tables)
	Status     Status
	Tracking   Tracking
	// Foreign tells when another program changed nftables; nil: nobody does.
	Foreign *foreign.Watcher
	Log     *slog.Logger
}

// DefaultTable is the nftables table's usual name.
const DefaultTable = "shoal"

// Source is where the tables come from.
type Source interface {
	Tables() *service.Tables // nil as long as nothing is known
	Changed() <-chan struct{}
	// Triggers takes the times of what changed endpoints since it was called last.
	Triggers() []time.Time
}

// Proxy keeps the kernel true to a Source.
type Proxy struct {
	cfg    Config
	log    *slog.Logger
	render renderer  // of the Services' primary family
	second *renderer // of the other one; nil: there is none
	health health
	flows  oldFlows // to be ended

	flowsFailed bool // to be ended, at the last try

	progress progress
}

// New touches nothing yet.
func New(cfg Config) *Proxy {
	if cfg.Table == "" {
		cfg.Table = DefaultTable
	}
	served := families(&cfg)
	p := &Proxy{cfg: cfg, log: cfg.Log, render: newRenderer(&cfg, served[0])}
	if len(served) > 1 {
		second := newRenderer(&cfg, served[1])
		p.second = &second
	}
	p.progress.families = served
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.health.log, p.health.proxy, p.health.at = p.log, &p.progress, []netip.Addr{{}}
	return p
}

const (
	retryMin = time.Second
	retryMax = 30 * time.Second
	// checkEvery is how often the table is looked for beside the times when the kernel
	// tells that another program changed something: it may lose what it tells.
	checkEvery = time.Minute
	// flowsRest is how many times longer than the search for old UDP flows
	// took no other is made: the kernel looks through all flows, 25 ms for an
	// empty table.
	flowsRest = 20
	// maxTriggers bounds what is measured of a kernel that takes no rules.
	maxTriggers = 1024
)

// Run keeps the rules true until ctx ends, and leaves them in place: Services
// go on working while the agent is away. Until the source knows anything, the
// kernel is not touched.
func (p *Proxy) Run(ctx context.Context, src Source) error {
	k, err := nft.Open()
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer k.Close()
	defer p.health.close()
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serving.Go(func() { p.serve(ctx, "proxyHealthzBindAddress", p.cfg.Status.HealthzAddr, p.healthPages()) })
	serving.Go(func() { p.serve(ctx, "proxyMetricsBindAddress", p.cfg.Status.MetricsAddr, p.metricsPages()) })
	where, moved := nodePorts(p.cfg.NodePorts), make(chan struct{}, 1)
	if list := where.loopbacks(); len(list) > 0 {
		p.log.Warn("no NodePort answers on loopback addresses, whatever nodePortAddresses says", "ranges", list)
	}
	p.moveHealth(where)
	serving.Go(func() {
		if err := where.follow(ctx, moved); err != nil {
			p.log.Warn("health checks follow the node's addresses once a minute", "err", err)
		}
	})
	changed := src.Changed()
	rules := p.cfg.Foreign.Rules()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	var st *state // nil: the kernel's state is not known
	delay := time.Duration(0)
	var triggers []time.Time
	var rested <-chan time.Time // nil: old UDP flows may be looked for
	for {
		var retry <-chan time.Time
		if more := src.Triggers(); len(triggers) < maxTriggers { // asked before the tables that hold them
			triggers = append(triggers, more...)
		}
		if next := src.Tables(); next != nil {
			p.progress.queue(time.Now())
			st, err = p.apply(k, st, next)
			if err != nil {
				if delay == 0 {
					p.log.Error("cannot set up Services; trying on", "err", err)
				}
				delay = min(max(2*delay, retryMin), retryMax)
				retry = time.After(delay)
			} else {
				delay = 0
				p.progress.done(time.Now())
				if p.cfg.Programmed != nil {
					p.cfg.Programmed(next)
				}
				p.setTracking()
				for _, r := range p.renderers() {
					for _, t := range triggers {
						p.cfg.Programming.Since(t, nameOf(r.Family))
					}
				}
				triggers = nil
			}
		}
		if rested == nil && !p.flows.empty() {
			rested = time.After(p.endFlows())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-p.cfg.OwnChanged:
		case <-moved:
			p.moveHealth(where)
		case <-retry:
		case <-rested:
			rested = nil
		case <-check.C:
			p.moveHealth(where)
			st = p.unlessLost(k, st)
		case <-rules:
			st = p.unlessLost(k, st)
		}
	}
}

// moveHealth has health checks answered at the addresses of now.
func (p *Proxy) moveHealth(where nodePorts) {
	at, err := where.now()
	if err != nil {
		p.log.Warn("health checks are answered where they were", "err", err)
		at = p.health.at
	}
	p.health.move(at)
}

// setTracking tells the kernel once how to remember flows.
func (p *Proxy) setTracking() {
	if err := p.cfg.Tracking.set(); err != nil {
		p.log.Warn("the kernel keeps its own settings of flows", "err", err)
	}
	p.cfg.Tracking = Tracking{}
}

// apply brings the kernel from st to next; nil st and any failure lead to a
// full rewrite, which is one transaction too.
func (p *Proxy) apply(k *nft.Conn, st *state, next *service.Tables) (*state, error) {
	full := st == nil
	if full {
		st = newState()
	}
	before := st.tables
	after, err := p.applyFamily(k, &p.render, st, next, full)
	if err == nil && p.second != nil {
		other := st.second
		if other == nil {
			other = newState()
		}
		after.second, err = p.applyFamily(k, p.second, other, next, st.second == nil)
	}
	if err != nil {
		return nil, err
	}
	changed := service.Changed(before, next)
	p.health.sync(changed, next)
	for _, key := range changed {
		p.flows.add(before.Get(key), next.Get(key))
		p.tellRefused(before.Get(key), next.Get(key))
	}
	return after, nil
}

// applyFamily is apply for the table of one family.
func (p *Proxy) applyFamily(k *nft.Conn, r *renderer, st *state, next *service.Tables, full bool) (*state, error) {
	defer func(begin time.Time) { p.cfg.Syncs.Since(begin, nameOf(r.Family)) }(time.Now())
	c, after := r.delta(*st, next)
	after.own, after.gossip = p.own(r, next), p.listen(r, p.cfg.Gossip)
	c.changeGuarded(r.listeners, st.own, after.own)
	c.changeGuarded(r.gossip, st.gossip, after.gossip)
	if err := p.commit(k, r, c, full); err != nil {
		return nil, err
	}
	c.after()
	return &after, nil
}

// commit makes a change. In full it is all that the family's table is to hold.
func (p *Proxy) commit(k *nft.Conn, r *renderer, c *change, full bool) (err error) {
	if !full && c.Empty() {
		return nil
	}
	start := time.Now()
	if full {
		want := r.base(&p.cfg)
		want.Merge(c.Add)
		err = k.Reset(want)
	} else {
		err = k.Apply(c.Change)
	}
	if err != nil {
		return err
	}
	elems, backends := 0, 0
	for _, x := range []*index{&r.addresses, &r.nodePorts} {
		elems += len(c.Add.Elements[x.plain]) + len(c.Add.Elements[x.own])
		backends += len(c.Add.Elements[x.target])
	}
	p.log.Debug("services changed", "chains", len(c.Add.Chains), "elements", elems, "backends", backends,
		"took", time.Since(start))
	return nil
}

// endFlows ends UDP and SCTP flows to backends that are gone, since such a flow has no
// end of its own as long as its client tries on. It returns after what time others may be looked for: those that
// could not be ended are then.
func (p *Proxy) endFlows() (rest time.Duration) {
	start := time.Now()
	err := p.flows.clear(p.nodePortAddresses, p.renderers())
	if err == nil {
		p.flows, p.flowsFailed = oldFlows{}, false
		return flowsRest * time.Since(start)
	}
	if !p.flowsFailed {
		p.log.Warn("cannot end old UDP and SCTP flows; trying on", "err", err)
	}
	p.flowsFailed = true
	return max(flowsRest*time.Since(start), retryMax)
}

// nodePortAddresses are those of now on which NodePorts answer.
func (p *Proxy) nodePortAddresses() ([]netip.Addr, error) {
	list, err := nodePorts(p.cfg.NodePorts).list()
	return slices.DeleteFunc(list, func(a netip.Addr) bool {
		return a.IsLoopback() || slices.Contains(p.cfg.DNS, a)
	}), err
}

// unlessLost is what the kernel holds, nil if somebody took a table away.
func (p *Proxy) unlessLost(k *nft.Conn, st *state) *state {
	for _, r := range p.renderers() {
		if st != nil && !k.Intact(r.Table) {
			p.log.Warn("the nftables table was deleted by somebody else; making it again", "table", p.cfg.Table)
			return nil
		}
	}
	return st
}

// Cleanup removes the tables. Services stop working.
func (p *Proxy) Cleanup() error {
	k, err := nft.Open()
	if err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	defer k.Close()
	v6 := nft.Table{Family: nft.V6, Name: p.cfg.Table} // of before, if there is none now
	if err := k.Delete(nft.Table{Family: nft.V4, Name: p.cfg.Table}, v6); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	return nil
}
