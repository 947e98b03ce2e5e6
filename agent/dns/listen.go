package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Limits of what clients can make the server hold. What is beyond a client's
// share of a number is dropped: it asks again.
const (
	maxQuery   = 4096 // bytes; a name has 255 at most, and EDNS options are few
	maxWaiting = 2048 // queries that were not looked at yet
	maxConns   = 512  // TCP connections

	// tcpWait is how long a connection may take for its next query, and for
	// reading an answer (RFC 7766 section 6.2.3: a few seconds).
	tcpWait = 5 * time.Second

	// receiveBuffer holds some thousand queries until they are read. A full
	// one is read within milliseconds; a larger one would only add to them.
	receiveBuffer = 1 << 20
	// yieldEvery is after how many packets of a flood the reader lets others run.
	yieldEvery = 64
	acceptRest = 100 * time.Millisecond
)

// slots is how many queries are worked on at one time: a flood takes half of
// a large machine at most.
func slots() int { return max(2, runtime.GOMAXPROCS(0)/2) }

// enlarge has the kernel keep more than its default for a socket.
func enlarge(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer) // the default serves too
		}
	})
}

// serveUDP answers datagrams until the socket is closed.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn) error {
	buf := make([]byte, maxQuery+1)
	r := reader{Server: s, ctx: ctx, out: make([]byte, 0, maxUDP), given: map[netip.Addr]int{}}
	for i := 1; ; i++ {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if i%yieldEvery == 0 {
			runtime.Gosched()
		}
		client, now := clientAddr(from), time.Now()
		if n > maxQuery || !s.sources.known(client, now) {
			continue
		}
		if out := r.atOnce(client, buf[:n], now); out != nil {
			if _, err := conn.WriteToUDPAddrPort(out, from); err != nil {
				s.log.Debug("dns answer not sent", "err", err)
			}
			continue
		}
		if !s.queue.places.take(client) {
			continue
		}
		packet := bytes.Clone(buf[:n])
		s.queue.add(client, func(sl *slot) {
			if out := s.respond(&request{ctx: ctx, client: client, began: now, slot: sl}, packet); out != nil {
				if _, err := conn.WriteToUDPAddrPort(out, from); err != nil {
					s.log.Debug("dns answer not sent", "err", err)
				}
			}
		})
	}
}

// A client gets this many answers at once in each such time, as many as the kernel lets
// it ask for; what is more waits for its turn with the others' queries.
const (
	atOnceTime = 20 * time.Millisecond
	atOnceMost = meterRate / int(time.Second/atOnceTime)
)

// reader is the state of one that reads a socket.
type reader struct {
	*Server
	ctx   context.Context
	out   []byte
	begun time.Time
	given map[netip.Addr]int // since then
}

// atOnce is the answer that is stored, for a client that has not had its share: to queue
// a query costs more than such an answer. It holds until the next one.
func (r *reader) atOnce(client netip.Addr, packet []byte, now time.Time) (out []byte) {
	if now.Sub(r.begun) >= atOnceTime {
		r.begun = now
		clear(r.given)
	}
	if r.given[client] >= atOnceMost {
		return nil
	}
	defer func() {
		if recover() != nil {
			out = nil // the same happens to the query in its turn, where it is told
		}
	}()
	if out = r.quick(&request{ctx: r.ctx, client: client, began: now}, packet, r.out[:0], now); out != nil {
		r.given[client]++
	}
	return out
}

func clientAddr(from netip.AddrPort) netip.Addr { return from.Addr().Unmap().WithZone("") }

// serveTCP answers connections until the listener is closed, and ends those
// that are open then.
func (s *Server) serveTCP(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil { // out of file descriptors, or the client is gone already
			select {
			case <-ctx.Done():
			case <-time.After(acceptRest):
			}
			continue
		}
		from, err := netip.ParseAddrPort(conn.RemoteAddr().String())
		client := clientAddr(from)
		if err != nil || !s.sources.known(client, time.Now()) || !s.conns.take(client) {
			conn.Close()
			continue
		}
		wg.Go(func() {
			defer s.conns.give(client)
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			s.converse(ctx, conn, client)
		})
	}
}

// converse answers one query after the other of a connection, and closes it.
func (s *Server) converse(ctx context.Context, conn net.Conn, client netip.Addr) {
	defer conn.Close()
	for {
		packet, err := readFrame(conn)
		if err != nil || !s.queue.places.take(client) {
			return
		}
		came, answer := time.Now(), make(chan []byte, 1)
		s.queue.add(client,
			func(sl *slot) {
				answer <- s.respond(&request{ctx: ctx, client: client, tcp: true, began: came, slot: sl}, packet)
			})
		out := <-answer
		if out == nil || writeFrame(conn, out) != nil {
			return
		}
	}
}

var errTooLong = errors.New("query is too long")

// readFrame reads a message with its length before it (RFC 1035 section 4.2.2).
func readFrame(conn net.Conn) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(tcpWait)); err != nil {
		return nil, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint16(length[:])
	if n > maxQuery {
		return nil, errTooLong
	}
	packet := make([]byte, n)
	_, err := io.ReadFull(conn, packet)
	return packet, err
}

func writeFrame(conn net.Conn, out []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(tcpWait)); err != nil {
		return err
	}
	_, err := conn.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(out)), uint16(len(out))), out...))
	return err
}

// parse reads a query. The answer is the reply to one that is wrong: nil when
// there is none to give.
func parse(packet []byte) (q, wrong *dns.Msg) {
	const header, response = 12, 1 << 7
	if len(packet) < header || packet[2]&response != 0 {
		return nil, nil
	}
	id, opcode := binary.BigEndian.Uint16(packet), int(packet[2]>>3)&0xF
	count := func(section int) uint16 { return binary.BigEndian.Uint16(packet[4+2*section:]) }
	reply := func(rcode int) *dns.Msg {
		return &dns.Msg{MsgHdr: dns.MsgHdr{Id: id, Response: true, Opcode: opcode, Rcode: rcode}}
	}
	if opcode != dns.OpcodeQuery {
		return nil, reply(dns.RcodeNotImplemented)
	}
	// A query has one question and, in its additional section, EDNS and a signature.
	if count(0) != 1 || count(1) != 0 || count(2) != 0 || count(3) > 2 {
		return nil, reply(dns.RcodeFormatError)
	}
	q = new(dns.Msg)
	if err := q.Unpack(packet); err != nil || len(q.Question) != 1 {
		return nil, reply(dns.RcodeFormatError)
	}
	return q, nil
}
