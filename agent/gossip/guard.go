package gossip

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/memberlist"
)

// Limits of streams that others open, until they are closed. Strangers, whose
// addresses are no member's, cannot have all: members would not meet any more.
const (
	maxStreams         = 128
	maxStreamsStranger = 64
	maxStreamsSource   = 16
)

// guard stands between the network and memberlist: it seals what goes out, and
// lets in only what a verified member sealed and what it may say. Memberlist
// itself encrypts nothing: its own encryption asks only for the shared key, and
// its decoders end the process for some short messages of a key's holder.
type guard struct {
	g     *Group
	inner memberlist.Transport

	packets chan *memberlist.Packet
	streams chan net.Conn
	stop    chan struct{}
	once    sync.Once // of the end
	wg      sync.WaitGroup

	mu        sync.Mutex
	open      map[net.Conn]source
	sources   map[netip.Addr]int
	strangers int
	full      bool // too many streams was told
}

// source is where a stream came from.
type source struct {
	addr     netip.Addr
	stranger bool
}

func newGuard(g *Group, inner memberlist.Transport) *guard {
	t := &guard{g: g, inner: inner, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		stop: make(chan struct{}),
		open: map[net.Conn]source{}, sources: map[netip.Addr]int{}}
	t.wg.Go(t.receive)
	t.wg.Go(t.accept)
	return t
}

// FinalAdvertiseAddr implements memberlist.Transport; the member signs the
// address, too.
func (t *guard) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	addr, final, err := t.inner.FinalAdvertiseAddr(ip, port)
	if err != nil {
		return addr, final, err
	}
	if a, ok := netip.AddrFromSlice(addr); ok {
		err = t.g.advertise(netip.AddrPortFrom(a.Unmap(), uint16(final)))
	}
	return addr, final, err
}

func (t *guard) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *guard) StreamCh() <-chan net.Conn           { return t.streams }

func (t *guard) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends nothing to a member whose key is not known yet, as if
// the network lost the packet: the stream that follows makes them meet.
func (t *guard) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	if b = t.g.oldNews.strip(b, time.Now()); b == nil {
		return time.Now(), nil
	}
	sealed, err := t.g.sealPacket(b, a.Name)
	if err != nil {
		t.g.log.Debug("gossip packet not sent", "to", a.Name, "addr", a.Addr, "err", err)
		return time.Now(), nil
	}
	if at := t.g.sightings.at(a.Name, time.Now()); at.IsValid() {
		return t.inner.WriteTo(sealed, at.String())
	}
	return t.inner.WriteTo(sealed, a.Addr)
}

func (t *guard) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

func (t *guard) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	c, err := t.inner.DialTimeout(a.Addr, timeout)
	if err != nil {
		return nil, err
	}
	return &asked{Conn: c, g: t.g}, nil
}

// Shutdown implements memberlist.Transport. The channels are emptied until the
// inner transport has ended, for it blocks on them.
func (t *guard) Shutdown() error {
	var err error
	t.once.Do(func() { // memberlist, when it cannot begin, and then New
		err = t.inner.Shutdown()
		close(t.stop)
		t.mu.Lock()
		for c := range t.open {
			_ = c.Close()
		}
		t.mu.Unlock()
		t.wg.Wait()
	})
	return err
}

func (t *guard) receive() {
	for {
		select {
		case <-t.stop:
			return
		case p := <-t.inner.PacketCh():
			t.packet(p)
		}
	}
}

func (t *guard) packet(p *memberlist.Packet) {
	if t.denied(p.From) {
		return
	}
	plain, sender, err := t.g.openPacket(p.Buf)
	if err != nil {
		t.g.log.Debug("gossip packet dropped", "from", p.From, "err", err)
		return
	}
	if sender != nil {
		if from, err := netip.ParseAddrPort(p.From.String()); err == nil {
			t.g.sighted(sender, from)
		}
	}
	t.g.heardFrom(addrOf(p.From))
	t.g.filterPacket(plain, p.From, func(b []byte) {
		select {
		case t.packets <- &memberlist.Packet{Buf: b, From: p.From, Timestamp: p.Timestamp}:
		case <-t.stop:
		}
	})
}

func (t *guard) accept() {
	for {
		select {
		case <-t.stop:
			return
		case c := <-t.inner.StreamCh():
			if !t.enter(c) {
				_ = c.Close()
				continue
			}
			t.wg.Go(func() { t.hear(c) })
		}
	}
}

// enter counts a stream; it is false when there are too many.
func (t *guard) enter(c net.Conn) bool {
	if t.denied(c.RemoteAddr()) {
		return false
	}
	from := source{addr: addrOf(c.RemoteAddr())}
	from.stranger = !t.g.hasAddr(from.addr)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.open) >= maxStreams || t.sources[from.addr] >= maxStreamsSource || from.stranger &&
		t.strangers >= maxStreamsStranger {
		if !t.full {
			t.full = true
			t.g.log.Warn("gossip: too many streams at once, some are refused", "source", from.addr, "all", len(t.open),
				"strangers", t.strangers, "ofSource", t.sources[from.addr])
		}
		return false
	}
	t.open[c] = from
	t.sources[from.addr]++
	if from.stranger {
		t.strangers++
	}
	return true
}

func (t *guard) leave(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from, ok := t.open[c]
	if !ok {
		return
	}
	delete(t.open, c)
	if t.sources[from.addr]--; t.sources[from.addr] == 0 {
		delete(t.sources, from.addr)
	}
	if from.stranger {
		t.strangers--
	}
}

// hear reads a stream's request and hands it to memberlist, unless it was a question.
func (t *guard) hear(c net.Conn) {
	body, head, err := t.request(c)
	if err != nil || body == nil {
		if err != nil {
			t.g.log.Debug("gossip stream dropped", "from", c.RemoteAddr(), "err", err)
		}
		t.leave(c)
		_ = c.Close()
		return
	}
	a := &answering{Conn: c, g: t.g, head: head, body: bytes.NewReader(body), done: func() { t.leave(c) }}
	select {
	case t.streams <- a:
	case <-t.stop:
		_ = a.Close()
	}
}

// request is what memberlist has to answer; nil: it is answered.
func (t *guard) request(c net.Conn) (body, head []byte, err error) {
	if err := c.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return nil, nil, err
	}
	body, head, from, err := t.g.readMessage(c, nil)
	if err != nil {
		return nil, nil, err
	}
	if len(body) > 0 && body[0] == msgQuestion {
		return nil, nil, t.g.answer(c, head, body, from)
	}
	body, err = t.g.filterStream(body, false)
	return body, head, err
}

// denied tells whether an address is one of pods, which have no business here.
func (t *guard) denied(from net.Addr) bool {
	ip := addrOf(from)
	return slices.ContainsFunc(t.g.cfg.Deny, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// addrOf is the address of a stream's or packet's sender; the zero one of a
// network that has none.
func addrOf(a net.Addr) netip.Addr {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// listen binds UDP and TCP at one port. A free one is looked for some times,
// since the two are bound one after the other.
func listen(addr string, port int, log *slog.Logger) (*Sockets, error) {
	for try := 1; ; try++ {
		s, err := Listen(addr, port, log)
		if err == nil || port != 0 || try == 10 || !errors.Is(err, syscall.EADDRINUSE) {
			return s, err
		}
	}
}
