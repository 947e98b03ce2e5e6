package gossip

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-sockaddr"
	"github.com/hashicorp/memberlist"
)

const (
	// maxDatagram is what a packet may have; more is cut off and does not open.
	maxDatagram = 64 << 10
	// receiveBuffer is asked of the kernel, for bursts of packets.
	receiveBuffer = 2 << 20
	// socketPause is the wait after an error of a socket that is not its end.
	socketPause = 50 * time.Millisecond
)

// Sockets are UDP and TCP at one port: memberlist's own transport, but that a packet
// takes as much memory as it has bytes, instead of 64 KiB each.
type Sockets struct {
	log     *slog.Logger
	udp     *net.UDPConn
	tcp     *net.TCPListener
	packets chan *memberlist.Packet
	streams chan net.Conn
	down    chan struct{}
	wg      sync.WaitGroup
}

// Listen binds an address, port 0 for a free one.
func Listen(addr string, port int, log *slog.Logger) (*Sockets, error) {
	ip := net.ParseIP(addr)
	if ip == nil {
		return nil, fmt.Errorf("%q is no IP address", addr)
	}
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: ip, Port: port})
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: ip, Port: tcp.Addr().(*net.TCPAddr).Port})
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	for size := receiveBuffer; size > 0 && udp.SetReadBuffer(size) != nil; size /= 2 {
	}
	s := &Sockets{log: log, udp: udp, tcp: tcp, packets: make(chan *memberlist.Packet),
		streams: make(chan net.Conn), down: make(chan struct{})}
	s.wg.Go(s.receive)
	s.wg.Go(s.accept)
	return s, nil
}

// Port is the one that is bound.
func (s *Sockets) Port() int { return s.tcp.Addr().(*net.TCPAddr).Port }

// FinalAdvertiseAddr implements memberlist.Transport.
func (s *Sockets) FinalAdvertiseAddr(ip string, port int) (net.IP, int, error) {
	bound := s.tcp.Addr().(*net.TCPAddr)
	switch {
	case ip != "":
		a := net.ParseIP(ip)
		if a == nil {
			return nil, 0, fmt.Errorf("gossip address %q is no IP address", ip)
		}
		return shortest(a), port, nil
	case !bound.IP.IsUnspecified():
		return shortest(bound.IP), bound.Port, nil
	}
	private, err := sockaddr.GetPrivateIP()
	if err != nil {
		return nil, 0, fmt.Errorf("find the gossip address: %w", err)
	}
	if private == "" {
		return nil, 0, errors.New("this machine has no private address: give the one that the gossip is reached at")
	}
	return shortest(net.ParseIP(private)), bound.Port, nil
}

func shortest(ip net.IP) net.IP {
	if v4 := ip.To4(); v4 != nil {
		return v4
	}
	return ip
}

// WriteTo implements memberlist.Transport.
func (s *Sockets) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = s.udp.WriteTo(b, to)
	return time.Now(), err
}

// DialTimeout implements memberlist.Transport.
func (s *Sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return (&net.Dialer{Timeout: timeout}).Dial("tcp", addr)
}

// PacketCh implements memberlist.Transport.
func (s *Sockets) PacketCh() <-chan *memberlist.Packet { return s.packets }

// StreamCh implements memberlist.Transport.
func (s *Sockets) StreamCh() <-chan net.Conn { return s.streams }

// Shutdown implements memberlist.Transport.
func (s *Sockets) Shutdown() error {
	close(s.down)
	err := errors.Join(s.udp.Close(), s.tcp.Close())
	s.wg.Wait()
	return err
}

func (s *Sockets) receive() {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := s.udp.ReadFrom(buf)
		now := time.Now()
		if err != nil {
			if s.ended(err) {
				return
			}
			continue
		}
		if n == 0 {
			continue
		}
		p := &memberlist.Packet{Buf: append(make([]byte, 0, n), buf[:n]...), From: from, Timestamp: now}
		select {
		case s.packets <- p:
		case <-s.down:
			return
		}
	}
}

func (s *Sockets) accept() {
	for {
		c, err := s.tcp.Accept()
		if err != nil {
			if s.ended(err) {
				return
			}
			continue
		}
		select {
		case s.streams <- c:
		case <-s.down:
			_ = c.Close()
			return
		}
	}
}

// ended waits a moment after an error, unless it is the end.
func (s *Sockets) ended(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return true
	}
	s.log.Debug("gossip socket", "err", err)
	select {
	case <-s.down:
		return true
	case <-time.After(socketPause):
		return false
	}
}
