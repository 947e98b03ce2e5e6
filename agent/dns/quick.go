package dns

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// asked is a query that was read without the library: one question, and EDNS without
// anything that an answer depends on. Most queries are of this kind.
type asked struct {
	buf   [maxKey + maxMark]byte
	n     int // bytes of the key
	limit int // of the answer, over UDP
}

func (a *asked) key() key { return a.buf[:a.n] }

// read fills a from a packet; false for what the library has to look at.
func (a *asked) read(packet []byte) bool {
	const (
		response, opcode, truncated = 1 << 7, 0xF << 3, 1 << 1
		checkingDisabled            = 1 << 4
		question                    = 4 // bytes: type and class
	)
	if len(packet) <= headerSize || packet[2]&(response|opcode|truncated) != 0 ||
		binary.BigEndian.Uint16(packet[4:]) != 1 || binary.BigEndian.Uint32(packet[6:]) != 0 {
		return false
	}
	n := nameLength(packet[headerSize:])
	end := headerSize + n + question
	if n == 0 || len(packet) < end || binary.BigEndian.Uint16(packet[end-2:]) != dns.ClassINET {
		return false
	}
	a.n = copy(a.buf[:], packet[headerSize:end-2])
	lower(a.buf[:n])
	flags := byte(0)
	if packet[3]&checkingDisabled != 0 {
		flags = keyCD
	}
	a.limit = dns.MinMsgSize
	switch binary.BigEndian.Uint16(packet[10:]) {
	case 0:
		if len(packet) != end {
			return false
		}
	case 1:
		size, do, ok := readOPT(packet[end:])
		if !ok {
			return false
		}
		flags |= keyEDNS
		if do {
			flags |= keyDO
		}
		a.limit = max(dns.MinMsgSize, min(size, maxUDP))
	default:
		return false
	}
	a.buf[a.n] = flags
	a.n++
	return true
}

// nameLength is the size of a name without pointers at the start of b, 0 for none.
func nameLength(b []byte) int {
	for at := 0; at < len(b) && at < maxName; {
		label := int(b[at])
		if label == 0 {
			return at + 1
		}
		if label > 63 {
			return 0
		}
		at += 1 + label
	}
	return 0
}

// readOPT reads what has to be one OPT record of version 0 (RFC 6891 section 6.1.2). Its
// options are passed over: none of them is supported (NSID, cookies, client subnet).
func readOPT(b []byte) (size int, do, ok bool) {
	const fixed = 11
	if len(b) < fixed || b[0] != 0 || binary.BigEndian.Uint16(b[1:]) != dns.TypeOPT || b[5] != 0 || b[6] != 0 {
		return 0, false, false
	}
	options := b[fixed:]
	if len(options) != int(binary.BigEndian.Uint16(b[9:])) {
		return 0, false, false
	}
	for len(options) > 0 {
		if len(options) < 4 {
			return 0, false, false
		}
		n := 4 + int(binary.BigEndian.Uint16(options[2:]))
		if n > len(options) {
			return 0, false, false
		}
		options = options[n:]
	}
	return int(binary.BigEndian.Uint16(b[3:])), b[7]&(1<<7) != 0, true
}

// quick appends the answer to a query if it is stored and fits; nil if it is not. It
// waits for nothing.
func (s *Server) quick(req *request, packet, out []byte, now time.Time) []byte {
	var a asked
	if !a.read(packet) {
		return nil
	}
	if req.tcp {
		a.limit = dns.MaxMsgSize
	}
	k := a.key()
	e, zone := s.stored(k), clusterZone
	if e == nil {
		e, zone = s.up.ready(req, k, a.limit, now), rootZone
	}
	if e == nil {
		e, zone = s.completed(req.client, k, now), clusterZone
	}
	if e == nil || len(e.wire) > a.limit {
		return nil
	}
	out = e.appendTo(out, packet, len(k.name()), now)
	s.counts.answered(req, zone, k.qtype(), int(out[3]&0xF))
	return out
}

// stored is an answer of the cluster's zone that is still right.
func (s *Server) stored(k key) *stored {
	e := s.answers.get(k)
	if e == nil || e.generation != s.generation() {
		return nil
	}
	return e
}

// completed is what a client's search that begins with a question ended at a moment ago.
func (s *Server) completed(client netip.Addr, k key, now time.Time) *stored {
	mark, ok := s.completer.mark(client, now)
	if !ok {
		return nil
	}
	e := s.searches.get(binary.BigEndian.AppendUint64(k, mark))
	if e == nil || now.After(e.expires) || e.tables != s.generation() {
		return nil
	}
	return e
}

// keepCompleted stores the end of a search for all who have the same search domains,
// until its alias ends or anything of the cluster's names changes.
func (s *Server) keepCompleted(client netip.Addr, q, r *dns.Msg, generation uint64) {
	now := time.Now()
	mark, ok := s.completer.mark(client, now)
	k := keyOf(q)
	if !ok || k == nil || generation == 0 || r.Truncated {
		return
	}
	if e := pack(k, r); e != nil {
		e.since, e.tables = now, generation
		e.expires = now.Add(time.Duration(r.Answer[0].Header().Ttl) * time.Second)
		s.searches.put(binary.BigEndian.AppendUint64(k, mark), e)
	}
}

// generation counts the tables; answers from earlier ones are dropped with them. It is 0
// before there are any.
func (s *Server) generation() uint64 {
	t := s.zone.src.Tables()
	if t == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tables != t {
		s.tables = t
		s.generations++
		s.answers.clear()
		s.searches.clear()
	}
	return s.generations
}

// keep stores an answer of the cluster's zone, as long as nothing changes: not those
// in which the order of records or their choice changes with each query, nor those
// that depend on who asks.
func (s *Server) keep(q, r *dns.Msg, generation uint64) {
	if generation == 0 || len(r.Answer) > 1 ||
		r.Rcode != dns.RcodeSuccess && (r.Rcode != dns.RcodeNameError || s.completer.takes(q)) {
		return
	}
	k := keyOf(q)
	if k == nil {
		return
	}
	if e := pack(k, r); e != nil {
		e.generation = generation
		s.answers.put(k, e)
	}
}
