package policy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/policyfeed"
	"github.com/shoal-project/shoal/cni/foreign"
	"github.com/shoal-project/shoal/cni/nft"
)

// Config of the engine.
type Config struct {
	Table string       // nftables tables of the ip and ip6 families, owned
	Node  string       // this one's name
	DNS   []netip.Addr // where the agent answers names itself
	// Feed opens a coordinator's stream; nil without an API.
	Feed func(context.Context) (io.ReadCloser, error)
	// File keeps what a coordinator told last, for a start without one.
	File string
	// CutOff tells that no coordinator is in reach and that pods start all the same.
	CutOff func() bool
	// Foreign tells when another program changed nftables; nil: nobody does.
	Foreign *foreign.Watcher
	Log     *slog.Logger
}

// Engine keeps the kernel true to the policies of this node's pods.
type Engine struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	compiler *compiler // changed by Run alone, under mu
	pending  delta     // what the compiler does not have yet
	phase    phase
	noFeed   bool          // coordinators are too old
	asked    uint64        // counts what was asked for, done what of it is in the kernel
	done     uint64        //
	progress chan struct{} // closed, and made anew, when done or phase changes
	wake     chan struct{}

	kernel kernel
	record recorder
}

// phase is how much is known of policies.
//
//	unknown ──> recorded ──> heard
//	   └──────────────────────┘
type phase int

const (
	unknown  phase = iota // the kernel keeps what an agent before left in it
	recorded              // what the file holds: an earlier state
	heard                 // a coordinator has told all
)

// New touches nothing yet.
func New(cfg Config) *Engine {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{
		cfg:      cfg,
		log:      cfg.Log,
		compiler: newCompiler(cfg.Table, cfg.Log),
		pending:  newDelta(),
		progress: make(chan struct{}),
		wake:     make(chan struct{}, 1),
		kernel:   kernel{dns: cfg.DNS},
		record:   recorder{path: cfg.File, log: cfg.Log},
	}
	if p := dnsPod(cfg.DNS); p != nil {
		e.pending.pods[PodID{Key: p.Key, UID: p.Name}] = p
	}
	return e
}

const (
	// fileAfter is how long a coordinator has to answer before the file counts: after a
	// restart of this process alone the kernel's rules may be newer.
	fileAfter = 1500 * time.Millisecond
	// heardWait is how long a pod's start waits to hear of policies that the file does
	// not have. It waits no longer on a node that is cut off.
	heardWait = 5 * time.Second
	// admitWait is how long it waits at all before it fails, to be tried again.
	admitWait = 20 * time.Second
	retryMin  = 200 * time.Millisecond
	retryMax  = 30 * time.Second
	// checkEvery is how often the tables are looked for, where there are some, beside the
	// times when the kernel tells that another program changed something.
	checkEvery = time.Minute
)

// ErrNoFeed is Feed's answer where coordinators are of a version before network
// policies were enforced: what is known counts, and nothing is waited for.
var ErrNoFeed = errors.New("the coordinator tells nothing of network policies; upgrade it")

// ErrNotReady says that a pod's policies are not in the kernel.
var ErrNotReady = errors.New("the pod's network policies are not enforced yet")

// Adopt tells of a pod that ran when this process began. It waits for nothing.
func (e *Engine) Adopt(uid types.UID, p *policyfeed.Pod) { e.put(uid, p) }

// Admit returns when the policies of a pod of this node are in the kernel. Until
// then no container of it may run.
func (e *Engine) Admit(ctx context.Context, uid types.UID, p *policyfeed.Pod) error {
	mine := e.put(uid, p)
	late, limit := time.NewTimer(heardWait), time.NewTimer(admitWait)
	defer late.Stop()
	defer limit.Stop()
	// Nothing tells when a node is cut off; only who waits for a coordinator looks.
	look := time.NewTicker(retryMin)
	defer look.Stop()
	patient := true
	for {
		e.mu.Lock()
		now, in, next, noFeed := e.phase, e.done >= mine, e.progress, e.noFeed
		// Where there are no policies, nothing is waited for.
		if now == heard && len(e.compiler.world.Policies)+len(e.compiler.world.Cluster)+
			len(e.pending.policies)+len(e.pending.cluster) == 0 {
			in = true
		}
		e.mu.Unlock()
		if in && (now == heard || !patient || noFeed || e.cutOff()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("%w after %s", ErrNotReady, admitWait)
		case <-late.C:
			patient = false
		case <-next:
		case <-look.C:
		}
	}
}

func (e *Engine) cutOff() bool { return e.cfg.Feed == nil || e.cfg.CutOff != nil && e.cfg.CutOff() }

// put takes a pod of this node and returns what done must reach.
func (e *Engine) put(uid types.UID, p *policyfeed.Pod) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := PodID{p.Key, string(uid)}
	if old := e.known(id); old != nil && samePod(old, p) {
		return e.asked // the next container of the same pod
	}
	e.pending.pods[id] = p
	return e.ask()
}

// known is a pod as it was told last; mu is held.
func (e *Engine) known(id PodID) *policyfeed.Pod {
	if p, changed := e.pending.pods[id]; changed {
		return p
	}
	return e.compiler.world.Pods[id]
}

// ask has Run look at what is pending; mu is held.
func (e *Engine) ask() uint64 {
	e.asked++
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return e.asked
}

// Relabel takes a pod's new labels, if it is one of this node's.
func (e *Engine) Relabel(uid types.UID, key Key, labels map[string]string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := PodID{key, string(uid)}
	old := e.known(id)
	if old == nil {
		return
	}
	now := *old
	now.Labels = labels
	e.pending.pods[id] = &now
	e.ask()
}

// Forget takes that a pod of this node has ended, with its addresses.
func (e *Engine) Forget(uid types.UID, key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id := PodID{key, string(uid)}
	if e.known(id) == nil {
		return
	}
	e.pending.pods[id] = nil
	e.ask()
}

// Run keeps the kernel true until ctx ends, and leaves it so: pods stay as isolated as
// they are while the agent is away.
func (e *Engine) Run(ctx context.Context) error {
	defer e.kernel.close()
	e.restore()
	var listening sync.WaitGroup
	defer listening.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if e.cfg.Feed != nil {
		listening.Go(func() { e.listen(ctx) })
	}
	grace := time.NewTimer(fileAfter)
	defer grace.Stop()
	if e.cfg.Feed == nil {
		grace.Reset(0)
	}
	rules := e.cfg.Foreign.Rules()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	var retry, save <-chan time.Time
	delay := time.Duration(0)
	waited := false // grace is over
	for {
		if waited {
			e.settle()
		}
		if err := e.apply(); err != nil {
			if delay == 0 {
				e.log.Error("cannot enforce network policies; trying on", "err", err)
			}
			delay = min(max(2*delay, retryMin), retryMax)
			retry = time.After(delay)
		} else {
			delay, retry = 0, nil
		}
		if save == nil && e.toSave() {
			save = time.After(e.record.pause())
		}
		select {
		case <-ctx.Done():
			e.save()
			return nil
		case <-e.wake:
		case <-retry:
		case <-grace.C:
			waited = true
		case <-save:
			save = nil
			e.save()
		case <-check.C:
			e.look()
		case <-rules:
			e.look()
		}
	}
}

// look has tables that somebody took away made again.
func (e *Engine) look() {
	if e.kernel.lost(e.compiler) {
		e.log.Warn("an nftables table was deleted by somebody else; making it again", "table", e.cfg.Table)
	}
}

// settle takes the file's word where no coordinator was heard in time, and nobody's
// where there is neither.
func (e *Engine) settle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == unknown && (e.record.restored || e.noFeed || e.cutOff()) {
		e.phase = recorded
	}
}

// apply brings the kernel to what is known.
func (e *Engine) apply() error {
	e.mu.Lock()
	if e.phase == unknown {
		e.mu.Unlock()
		return nil
	}
	asked := e.asked
	if !e.pending.empty() {
		e.compiler.change(e.pending)
		e.pending = newDelta()
	}
	e.mu.Unlock()
	if err := e.kernel.apply(e.compiler); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done != asked {
		e.done = asked
		e.proceed()
	}
	return nil
}

// proceed wakes who waits; mu is held.
func (e *Engine) proceed() {
	close(e.progress)
	e.progress = make(chan struct{})
}

// Cleanup removes the tables.
func Cleanup(table string) error {
	k, err := nft.Open()
	if err != nil {
		return fmt.Errorf("network policies: %w", err)
	}
	defer k.Close()
	for _, f := range families {
		if err := k.Delete(nft.Table{Family: f, Name: table}); err != nil {
			return fmt.Errorf("network policies: %w", err)
		}
	}
	return nil
}

// kernel is what the tables of before the last change were.
type kernel struct {
	dns  []netip.Addr
	conn *nft.Conn
	// known says that the kernel was brought to what is wanted once.
	known bool
	there [2]bool // by family: the table is there, as the journal says
}

func (k *kernel) close() {
	if k.conn != nil {
		k.conn.Close()
		k.conn = nil
	}
}

// apply brings the kernel from what it holds to the compiler's tables. A family without
// an isolated pod has no table; where both have none, nothing is kept open.
func (k *kernel) apply(c *compiler) error {
	if k.known && c.tables[0].idle() && c.tables[1].idle() && !k.there[0] && !k.there[1] {
		for _, t := range c.tables {
			t.forget()
		}
		return nil
	}
	if k.conn == nil {
		conn, err := nft.Open()
		if err != nil {
			return err
		}
		k.conn = conn
	}
	for i, t := range c.tables {
		if err := k.bring(i, t); err != nil {
			return err
		}
		t.forget()
	}
	k.known = true
	if !k.there[0] && !k.there[1] {
		k.close()
	}
	return nil
}

func (k *kernel) bring(i int, t *table) error {
	var err error
	switch {
	case t.idle() && k.known && !k.there[i]:
		return nil
	case t.idle():
		err = k.conn.Delete(t.Table)
	case k.there[i]:
		ch := t.change()
		if ch.Empty() {
			return nil
		}
		err = k.conn.Apply(ch)
	default:
		want := t.base(t.Table, k.dns)
		want.Merge(t.Objects)
		err = k.conn.Reset(want)
	}
	// After a failure all of it is written anew.
	k.there[i] = err == nil && !t.idle()
	if err != nil {
		k.known = false
	}
	return err
}

// lost tells whether a table that was there is not any more.
func (k *kernel) lost(c *compiler) (lost bool) {
	for i, t := range c.tables {
		if k.there[i] && !k.conn.Intact(t.Table) {
			k.there[i], lost = false, true
		}
	}
	return lost
}
