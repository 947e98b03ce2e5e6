// Package gossiptest is a network in memory for gossip members: whole clusters
// run in one test, in virtual time, with machines that die and links that break.
package gossiptest

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Network connects the transports that it made.
type Network struct {
	mu    sync.Mutex
	nodes map[string]*transport // by address
	cut   map[[2]string]bool    // by names
}

// New returns a network without members.
func New() *Network {
	return &Network{nodes: map[string]*transport{}, cut: map[[2]string]bool{}}
}

// queue is how many packets wait for their reader, as in the kernel's buffer of a socket.
const queue = 4096

// Transport makes the transport of member name at ip, port 7946. A second call
// with the same name is the machine's restart.
func (n *Network) Transport(name, ip string) memberlist.Transport {
	t := &transport{
		net: n, name: name, addr: netip.AddrPortFrom(netip.MustParseAddr(ip), 7946),
		packets: make(chan *memberlist.Packet, queue), streams: make(chan net.Conn, 16), down: make(chan struct{}),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[t.addr.String()] = t
	return t
}

// Cut breaks (or mends) the link between two members, both ways.
func (n *Network) Cut(a, b string, broken bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[[2]string{a, b}], n.cut[[2]string{b, a}] = broken, broken
}

func (n *Network) reach(from *transport, addr string) (*transport, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.nodes[addr]
	if to == nil || n.cut[[2]string{from.name, to.name}] {
		return nil, fmt.Errorf("no route to %s", addr)
	}
	select {
	case <-to.down:
		return nil, fmt.Errorf("connection to %s refused", addr)
	case <-from.down:
		return nil, net.ErrClosed
	default:
		return to, nil
	}
}

type transport struct {
	net     *Network
	name    string
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
	once    sync.Once
	down    chan struct{}
}

func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.addr.Addr().AsSlice(), int(t.addr.Port()), nil
}

// WriteTo drops what nobody can take, as UDP does.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	now := time.Now()
	to, err := t.net.reach(t, addr)
	if err != nil {
		return now, nil
	}
	p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: net.UDPAddrFromAddrPort(t.addr), Timestamp: now}
	select {
	case to.packets <- p:
	default:
	}
	return now, nil
}

func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }
func (t *transport) StreamCh() <-chan net.Conn           { return t.streams }

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, err := t.net.reach(t, addr)
	if err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	select {
	case to.streams <- stream{there, to.addr, t.addr}:
		return stream{here, t.addr, to.addr}, nil
	case <-to.down:
	case <-time.After(timeout):
	}
	return nil, fmt.Errorf("connection to %s timed out", addr)
}

func (t *transport) Shutdown() error {
	t.once.Do(func() { close(t.down) })
	return nil
}

// stream is one end of a connection.
type stream struct {
	net.Conn
	local, remote netip.AddrPort
}

func (s stream) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(s.local) }
func (s stream) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.remote) }
