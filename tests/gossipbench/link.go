package main

import (
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/gossip/gossiptest"
)

// How TCP repeats what is lost (Linux): the first packet of a connection after a
// second, then after two; all else after 200 ms.
const (
	connectAgain = time.Second
	sendAgain    = 200 * time.Millisecond
)

var errTimeout = errors.New("the connection timed out")

// network holds what is wrong between members; nothing at first.
type network struct {
	mu   sync.Mutex
	loss float64
	cut  map[[2]string]bool // from, to: addresses without ports
}

func (n *network) setLoss(share float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss = share
}

// setCut breaks or mends one direction.
func (n *network) setCut(from, to string, broken bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if broken {
		n.cut[[2]string{from, to}] = true
	} else {
		delete(n.cut, [2]string{from, to})
	}
}

// loses tells whether one packet from one member to another gets lost.
func (n *network) loses(from, to string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cut[[2]string{from, to}] || n.loss > 0 && rand.Float64() < n.loss
}

// link is a member's transport and what is between them and the network: packets
// that get lost, directions that are cut, pauses. During a pause nothing is read
// or written; the kernel keeps what arrives, as for a stopped process.
type link struct {
	memberlist.Transport
	dial    func(addr string, deadline time.Time) (net.Conn, error)
	net     *network
	ip      string
	packets chan *memberlist.Packet
	streams chan net.Conn
	down    chan struct{}
	wg      sync.WaitGroup

	mu     sync.Mutex
	paused chan struct{} // closed when the pause ends
}

// realLink has sockets. It connects from the member's own address, so that a limit for a
// source holds for each member alone.
func realLink(n *network, m *member) (*link, error) {
	sockets, err := gossip.Listen(m.ip, port, silent)
	if err != nil {
		return nil, err
	}
	from := &net.TCPAddr{IP: net.ParseIP(m.ip)}
	return newLink(n, m.ip, sockets, func(addr string, deadline time.Time) (net.Conn, error) {
		d := net.Dialer{Deadline: deadline, LocalAddr: from}
		return d.Dial("tcp", addr)
	}), nil
}

// memoryLink is one of a network in memory.
func memoryLink(in *gossiptest.Network) func(*network, *member) (*link, error) {
	return func(n *network, m *member) (*link, error) {
		t := in.Transport(m.name, m.ip)
		return newLink(n, m.ip, t, func(addr string, deadline time.Time) (net.Conn, error) {
			return t.DialTimeout(addr, time.Until(deadline))
		}), nil
	}
}

func newLink(n *network, ip string, inner memberlist.Transport,
	dial func(string, time.Time) (net.Conn, error)) *link {
	l := &link{Transport: inner, dial: dial, net: n, ip: ip, packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn), down: make(chan struct{})}
	l.wg.Go(l.receive)
	l.wg.Go(l.accept)
	return l
}

func (l *link) PacketCh() <-chan *memberlist.Packet { return l.packets }
func (l *link) StreamCh() <-chan net.Conn           { return l.streams }

// Shutdown ends the sockets first: their goroutines wait for their readers.
func (l *link) Shutdown() error {
	l.pause(false)
	err := l.Transport.Shutdown()
	close(l.down)
	l.wg.Wait()
	return err
}

func (l *link) receive() {
	for {
		select {
		case <-l.down:
			return
		case p := <-l.Transport.PacketCh():
			l.await()
			select {
			case l.packets <- p:
			case <-l.down:
			}
		}
	}
}

func (l *link) accept() {
	for {
		select {
		case <-l.down:
			return
		case c := <-l.Transport.StreamCh():
			l.await()
			select {
			case l.streams <- l.lossy(c):
			case <-l.down:
				_ = c.Close()
			}
		}
	}
}

// pause begins or ends a pause.
func (l *link) pause(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case on && l.paused == nil:
		l.paused = make(chan struct{})
	case !on && l.paused != nil:
		close(l.paused)
		l.paused = nil
	}
}

// await returns when the member is not paused.
func (l *link) await() {
	l.mu.Lock()
	paused := l.paused
	l.mu.Unlock()
	if paused != nil {
		<-paused
	}
}

func (l *link) WriteTo(b []byte, addr string) (time.Time, error) {
	l.await()
	if l.net.loses(l.ip, hostOf(addr)) {
		return time.Now(), nil
	}
	return l.Transport.WriteTo(b, addr)
}

func (l *link) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	l.await()
	deadline := time.Now().Add(timeout)
	to := hostOf(addr)
	for wait := connectAgain; l.net.loses(l.ip, to) || l.net.loses(to, l.ip); wait *= 2 {
		time.Sleep(min(wait, time.Until(deadline)))
		if !time.Now().Before(deadline) {
			return nil, errTimeout
		}
	}
	c, err := l.dial(addr, deadline)
	if err != nil {
		return nil, err
	}
	return l.lossy(c), nil
}

// stream sends late what the network loses, as TCP does.
type stream struct {
	net.Conn
	link *link
	to   string
}

func (l *link) lossy(c net.Conn) net.Conn {
	return &stream{Conn: c, link: l, to: hostOf(c.RemoteAddr().String())}
}

func (s *stream) Write(b []byte) (int, error) {
	s.link.await()
	for wait := sendAgain; s.link.net.loses(s.link.ip, s.to); wait *= 2 {
		time.Sleep(wait)
		if wait > 8*time.Second {
			return 0, errTimeout
		}
	}
	return s.Conn.Write(b)
}

func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return addr
	}
	return host
}
