package dns

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// exchange asks one server. The socket is connected, so that the kernel drops
// what others send, and its port is the kernel's random choice; what is no
// reply to this very question is passed over until the time is up, as it may
// come from somebody who guesses (RFC 5452 section 9.1).
//
// What it waits for takes no slot of the processor; what it then has to read
// does, if it is large: whoever serves a zone chooses how much that is.
func exchange(req *request, server string, q *dns.Msg) (*dns.Msg, error) {
	req.slot.release()
	ctx, cancel := context.WithTimeout(req.ctx, upstreamWait)
	defer cancel()
	network := "udp"
	if req.tcp {
		network = "tcp"
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // a closed one has no deadline
	defer stop()
	c := &dns.Conn{Conn: conn, UDPSize: dns.DefaultMsgSize}
	if err := c.WriteMsg(q); err != nil {
		return nil, err
	}
	for {
		req.slot.release()
		packet, err := c.ReadMsgHeader(nil)
		if errors.Is(err, dns.ErrShortRead) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(packet) > maxUDP {
			req.slot.regain(req.client)
		}
		if r := reply(q, packet); r != nil {
			return r, nil
		}
	}
}

// reply reads a packet as the reply to q; nil when it is none.
func reply(q *dns.Msg, packet []byte) *dns.Msg {
	r := new(dns.Msg)
	if r.Unpack(packet) != nil || !r.Response || r.Id != q.Id || r.Opcode != dns.OpcodeQuery || len(r.Question) != 1 {
		return nil
	}
	asked, got := q.Question[0], r.Question[0]
	if got.Qtype != asked.Qtype || got.Qclass != asked.Qclass || !strings.EqualFold(got.Name, asked.Name) {
		return nil
	}
	return r
}
