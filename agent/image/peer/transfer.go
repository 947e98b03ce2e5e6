package peer

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Transfer gets one layer, from other nodes or from the registry. It is a fetcher for
// that layer alone.
type Transfer struct {
	// Received is told how many bytes other nodes sent; nil: nobody asks.
	Received func(n int)

	peers    *Peers
	registry remotes.Fetcher
	desc     ocispec.Descriptor
	name     digest.Digest // of the manifest
	manifest []byte
	key      Key

	mu    sync.Mutex
	asked bool
	// resumed: what came before, of an earlier pull, may be what is wrong.
	resumed bool
	from    map[string]bool // nodes that sent bytes
}

// Transfer is that of a layer that a manifest names.
func (p *Peers) Transfer(
	manifest []byte, name digest.Digest, desc ocispec.Descriptor, registry remotes.Fetcher,
) *Transfer {
	return &Transfer{
		peers: p, registry: registry, desc: desc, name: name, manifest: manifest, key: KeyOf(manifest, desc.Digest),
		from: map[string]bool{},
	}
}

func (t *Transfer) count(g *giver, n int) {
	t.mu.Lock()
	t.from[g.Node] = true
	t.mu.Unlock()
	if g.Whole {
		t.peers.arrived(g.Node, n)
	}
	t.peers.cfg.Received(n)
	if t.Received != nil {
		t.Received(n)
	}
}

// Fetch implements remotes.Fetcher.
func (t *Transfer) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if desc.Digest != t.desc.Digest {
		return t.registry.Fetch(ctx, desc)
	}
	t.mu.Lock()
	t.asked = true
	t.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	b := &body{t: t, ctx: ctx, cancel: cancel, news: make(chan struct{}, 1), marked: time.Now(), said: time.Now()}
	sources, err := t.sources(ctx, question{Verb: find})
	if err != nil || len(sources) == 0 {
		if err := b.toRegistry(); err != nil {
			cancel()
			return nil, err
		}
		return b, nil
	}
	b.givers = sources
	return b, nil
}

// End tells what came of it. It is true when nodes sent other bytes than the digest says:
// the layer has to be fetched once more, from the registry. Nobody is blamed for what went on
// from where an earlier pull ended.
func (t *Transfer) End(ctx context.Context, err error) (wrong bool) {
	t.mu.Lock()
	asked, resumed, from := t.asked, t.resumed, slices.Sorted(maps.Keys(t.from))
	t.mu.Unlock()
	wrong = errdefs.IsFailedPrecondition(err) && len(from) > 0 && !resumed
	if wrong {
		for _, node := range from {
			t.peers.ban(node, wrongTime)
		}
		t.peers.cfg.Log.Warn("a layer that other nodes sent is not what its digest says; it is fetched from the registry",
			"layer", t.desc.Digest, "nodes", from, "err", err)
	}
	if !asked {
		return wrong
	}
	said := question{Verb: have, Keys: raw([]Key{t.key})}
	if err != nil {
		said.Verb = gone
	}
	go func() { // nobody waits for it
		_, _ = t.peers.ask(context.WithoutCancel(ctx), t.key, said)
	}()
	return wrong
}

// sources asks for nodes that give the layer; none: it is to come from the registry.
func (t *Transfer) sources(ctx context.Context, q question) (out []*giver, err error) {
	q.Keys = raw([]Key{t.key})
	for _, node := range t.peers.bans() {
		if len(q.Busy) < maxNames {
			q.Busy = append(q.Busy, node)
		}
	}
	a, err := t.peers.ask(ctx, t.key, q)
	if err != nil {
		return nil, err
	}
	bans := t.peers.bans() // of which the question may not have named all
	for _, s := range a.Sources {
		if s.Node != t.peers.cfg.Name && !slices.Contains(bans, s.Node) {
			out = append(out, &giver{Given: s})
		}
	}
	return out, nil
}

// Limits of what is asked for at one time, and of how long nothing may come.
const (
	pieceSize = 1 << 20
	ahead     = 4 // pieces
	// A node that gets less than stallBytes in stallTime asks for others, or for leave to
	// go to the registry.
	stallTime  = 15 * time.Second
	stallBytes = 64 << 10
	// lagTime is how long the next piece may keep others waiting that are there.
	lagTime = 2 * time.Second
	tick    = time.Second
)

// body is a layer's bytes in their order. Pieces come from several nodes at a time, or
// everything from the registry.
type body struct {
	t      *Transfer
	ctx    context.Context
	cancel context.CancelFunc
	news   chan struct{}
	tasks  sync.WaitGroup

	offset   int64 // of the next byte that is read
	registry io.ReadCloser
	givers   []*giver
	pieces   []*piece // in order; the first has the next byte
	free     [][]byte
	finds    int       // times that others were asked for
	marked   time.Time // when moved was that
	moved    int64
	lag      time.Time // since when pieces wait for the first, zero: they do not
	said     time.Time // that the layer is still coming in
	// slowAgain is when others may be asked for again because little comes, and slowAsks how often
	// they were.
	slowAgain time.Time
	slowAsks  int

	mu  sync.Mutex // also that of the pieces
	got int64      // bytes from nodes
}

// Seek continues a transfer that was cut off.
func (b *body) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart || offset < 0 || offset > b.t.desc.Size {
		return 0, errors.ErrUnsupported
	}
	b.abandon()
	b.offset = offset
	b.t.mu.Lock()
	b.t.resumed = b.t.resumed || offset > 0 && len(b.t.from) == 0
	b.t.mu.Unlock()
	if b.registry != nil {
		return b.offset, b.seekRegistry()
	}
	return b.offset, nil
}

func (b *body) seekRegistry() error {
	s, ok := b.registry.(io.Seeker)
	if !ok {
		return errors.ErrUnsupported
	}
	_, err := s.Seek(b.offset, io.SeekStart)
	return err
}

// Close ends what is under way.
func (b *body) Close() error {
	b.cancel()
	b.abandon()
	b.tasks.Wait()
	if b.registry != nil {
		return b.registry.Close()
	}
	return nil
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	for {
		if b.offset >= b.t.desc.Size {
			return 0, io.EOF
		}
		b.stillAtIt()
		if b.registry != nil {
			n, err := b.registry.Read(p)
			b.offset += int64(n)
			return n, err
		}
		if n := b.take(p); n > 0 {
			b.offset += int64(n)
			return n, nil
		}
		if err := b.proceed(); err != nil {
			return 0, err
		}
	}
}

// stillAtIt tells the key's keeper that this node goes on, so that others wait for it.
func (b *body) stillAtIt() {
	if time.Since(b.said) < stillEvery {
		return
	}
	b.said = time.Now()
	go func() { // it ends by itself, within seconds
		_, _ = b.t.peers.ask(context.WithoutCancel(b.ctx), b.t.key, question{Verb: still, Keys: raw([]Key{b.t.key})})
	}()
}

// take hands on what has come of the first piece.
func (b *body) take(p []byte) int {
	if len(b.pieces) == 0 {
		return 0
	}
	c := b.pieces[0]
	b.mu.Lock()
	n := copy(p, c.buf[c.taken:c.n])
	c.taken += n
	done := c.taken == len(c.buf)
	b.mu.Unlock()
	if done {
		b.pieces = b.pieces[1:]
		b.free = append(b.free, c.buf)
		b.lag = time.Time{}
	}
	return n
}

// proceed asks for more, and waits until something has come.
func (b *body) proceed() error {
	b.mend()
	stalled, slow := b.looked()
	if stalled || len(b.usable()) == 0 {
		return b.another(stalled)
	}
	if slow && time.Now().After(b.slowAgain) {
		if err := b.quicker(); err != nil || b.registry != nil {
			return err
		}
	}
	b.order()
	timer := time.NewTimer(tick)
	defer timer.Stop()
	select {
	case <-b.news:
	case <-timer.C:
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
	return nil
}

// mend asks again for what did not come, or does not come though later pieces have.
func (b *body) mend() {
	for _, g := range b.usable() {
		if b.t.peers.poor(g.Node) {
			b.leave(g)
		}
	}
	waiting := 0
	for i, c := range b.pieces {
		b.mu.Lock()
		ended, whole, err := c.ended, c.n == len(c.buf), c.err
		b.mu.Unlock()
		switch {
		case ended && whole:
			if i > 0 {
				waiting++
			}
		case ended:
			c.src.blame(err)
			if next := b.next(); next != nil {
				b.ask(c, next)
			}
		}
	}
	b.hurry(waiting)
}

// hurry has another node send the first piece, when later ones wait for it and a node that
// has sent all that it was asked for has nothing else to send.
func (b *body) hurry(waiting int) {
	if waiting == 0 || !b.full() {
		b.lag = time.Time{}
		return
	}
	first := b.pieces[0].src
	idle := slices.ContainsFunc(b.usable(), func(g *giver) bool { return g != first && b.asked(g) == 0 })
	if !idle {
		b.lag = time.Time{}
		return
	}
	if b.lag.IsZero() {
		b.lag = time.Now()
	}
	if time.Since(b.lag) < lagTime {
		return
	}
	b.lag = time.Time{}
	b.leave(first)
}

// full tells whether no more is asked for before the first piece has come.
func (b *body) full() bool {
	n := len(b.pieces)
	return n == ahead || n > 0 && b.pieces[n-1].to == b.t.desc.Size
}

// leave has a node send nothing more of the layer.
func (b *body) leave(g *giver) {
	g.busy = true
	for _, c := range b.pieces {
		if c.src == g {
			c.cancel()
		}
	}
}

// usable are the nodes that give the layer.
func (b *body) usable() (out []*giver) {
	for _, g := range b.givers {
		if !g.lost && !g.busy {
			out = append(out, g)
		}
	}
	return out
}

// next is the node that is asked for the next piece: one that is asked for least now.
func (b *body) next() *giver {
	list := b.usable()
	if len(list) == 0 {
		return nil
	}
	return slices.MinFunc(list, func(x, y *giver) int { return b.asked(x) - b.asked(y) })
}

// asked is how many pieces a node is sending now.
func (b *body) asked(g *giver) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.pieces {
		if c.src == g && !c.ended {
			n++
		}
	}
	return n
}

// order asks for pieces as far ahead as it may.
func (b *body) order() {
	at := b.offset
	if n := len(b.pieces); n > 0 {
		at = b.pieces[n-1].to
	}
	for len(b.pieces) < ahead && at < b.t.desc.Size {
		g := b.next()
		if g == nil {
			return
		}
		c := &piece{from: at, to: min(at+pieceSize, b.t.desc.Size)}
		c.buf = b.buffer(int(c.to - c.from))
		b.pieces = append(b.pieces, c)
		b.ask(c, g)
		at = c.to
	}
}

func (b *body) buffer(n int) []byte {
	if last := len(b.free) - 1; last >= 0 {
		buf := b.free[last]
		b.free = b.free[:last]
		if cap(buf) >= n {
			return buf[:n]
		}
	}
	return make([]byte, n)
}

// ask has a node send what is missing of a piece.
func (b *body) ask(c *piece, g *giver) {
	ctx, cancel := context.WithCancelCause(b.ctx)
	b.mu.Lock()
	c.src, c.cancel, c.ended, c.err = g, func() { cancel(nil) }, false, nil
	from := c.from + int64(c.n)
	b.mu.Unlock()
	b.tasks.Go(func() {
		if g.Whole {
			b.t.peers.asking(g.Node)
			defer b.t.peers.answered(g.Node)
		}
		c.silence = time.AfterFunc(math.MaxInt64, func() { cancel(errSilent) })
		err := b.get(ctx, c, from)
		c.silence.Stop()
		if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
			err = cause
			b.t.peers.leave(g.Node, err.Error())
		}
		cancel(nil)
		b.mu.Lock()
		c.ended, c.err = true, err
		b.mu.Unlock()
		poke(b.news)
	})
}

// looked tells, each stallTime, whether hardly anything has come since the look before, or
// little.
func (b *body) looked() (stalled, slow bool) {
	if time.Since(b.marked) < stallTime {
		return false, false
	}
	before := b.moved
	b.mark()
	return b.moved-before < stallBytes, b.moved-before < slowBytes
}

// quicker asks for leave to go to the registry, which one node more than the one at the front
// gets: that one's line may be a slow one. Without leave others go on, or these nodes.
func (b *body) quicker() error {
	b.slowAgain = time.Now().Add(stallTime<<min(b.slowAsks/4, 3) - tick)
	b.slowAsks++
	sources, err := b.t.sources(b.ctx, question{Verb: find, Slow: true})
	if err := b.ctx.Err(); err != nil {
		return err
	}
	if err != nil {
		return nil
	}
	if len(sources) == 0 {
		return b.toRegistry()
	}
	before := len(b.givers)
	b.join(sources)
	if len(b.givers) > before { // all that may be asked for waits for those of before
		for _, g := range b.givers[:before] {
			b.leave(g)
		}
	}
	return nil
}

// join adds sources; ok: none of them was lost before.
func (b *body) join(sources []*giver) (ok bool) {
	for _, s := range sources {
		i := slices.IndexFunc(b.givers, func(g *giver) bool { return g.Node == s.Node })
		if i < 0 {
			b.givers = append(b.givers, s)
		} else if b.givers[i].lost {
			return false
		}
	}
	return true
}

// another finds other nodes, or goes on at the registry.
func (b *body) another(stalled bool) error {
	q := question{Verb: find, Stalled: stalled}
	for _, g := range b.givers {
		switch {
		case g.lost && len(q.Lost) < maxNames:
			q.Lost = append(q.Lost, g.Node)
		case g.busy && len(q.Busy) < maxNames:
			q.Busy = append(q.Busy, g.Node)
		}
	}
	sources, err := b.t.sources(b.ctx, q)
	if err := b.ctx.Err(); err != nil {
		return err
	}
	b.finds++
	if err != nil || len(sources) == 0 || b.finds > maxFinds {
		return b.toRegistry()
	}
	if !b.join(sources) {
		return b.toRegistry() // the keeper of the key does not listen
	}
	return nil
}

// maxFinds is how often others are asked for: who changes so often is no help.
const maxFinds = 16

func (b *body) mark() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.marked, b.moved = time.Now(), b.got
}

// toRegistry goes on there, at the next byte that is to be read.
func (b *body) toRegistry() (err error) {
	b.abandon()
	if b.registry, err = b.t.registry.Fetch(b.ctx, b.t.desc); err != nil {
		return err
	}
	if b.offset > 0 {
		return b.seekRegistry()
	}
	return nil
}

// abandon ends all requests to nodes.
func (b *body) abandon() {
	for _, c := range b.pieces {
		c.cancel()
	}
	b.pieces = nil
}
