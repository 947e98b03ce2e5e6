package gossip

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"
)

// Memberlist's messages, as far as they are let through (net.go there). What is
// not listed (compression, encryption, labels, user messages) is not used here
// and goes no further.
const (
	msgPing         = 0
	msgIndirectPing = 1
	msgAck          = 2
	msgSuspect      = 3
	msgAlive        = 4
	msgDead         = 5
	msgPushPull     = 6
	msgCompound     = 7
	msgNack         = 11
	msgCRC          = 12
	msgError        = 13
)

// maxStates bounds the members in one exchange of states.
const maxStates = 1 << 16

var errMessage = errors.New("malformed gossip message")

// aliveBody, accusation, stateHead and stateBody are memberlist's alive, suspect
// and dead, pushPullHeader and pushNodeState.
type aliveBody struct {
	Incarnation uint32
	Node        string
	Addr        []byte
	Port        uint16
	Meta        []byte
	Vsn         []uint8
}

type accusation struct {
	Incarnation uint32
	Node        string
	From        string
}

type stateHead struct {
	Nodes        int
	UserStateLen int
	Join         bool
}

type stateBody struct {
	Name        string
	Addr        []byte
	Port        uint16
	Meta        []byte
	Incarnation uint32
	State       int
	Vsn         []uint8
}

const stateAlive = 0

// handle is shared: a new one learns the types of messages again, which took most of
// a message's decoding. It holds no state of a message.
var handle codec.MsgpackHandle

func decodeMsg(b []byte, into any) error {
	return codec.NewDecoderBytes(b, &handle).Decode(into)
}

// filterPacket gives pass those messages of a packet that memberlist may see.
func (g *Group) filterPacket(b []byte, from any, pass func([]byte)) {
	if len(b) > 5 && b[0] == msgCRC {
		if crc32.ChecksumIEEE(b[5:]) != binary.BigEndian.Uint32(b[1:5]) {
			return
		}
		b = b[5:]
	}
	if len(b) == 0 {
		return
	}
	if b[0] != msgCompound {
		g.filterMessage(b, from, pass)
		return
	}
	parts, ok := splitCompound(b[1:])
	if !ok {
		return
	}
	for _, part := range parts {
		g.filterMessage(part, from, pass)
	}
}

// splitCompound returns the messages of a compound: their number, their
// lengths, themselves.
func splitCompound(b []byte) (parts [][]byte, ok bool) {
	if len(b) == 0 {
		return nil, false
	}
	n := int(b[0])
	if b = b[1:]; len(b) < 2*n {
		return nil, false
	}
	sizes, b := b[:2*n], b[2*n:]
	for i := range n {
		size := int(binary.BigEndian.Uint16(sizes[2*i:]))
		if size == 0 || size > len(b) {
			return nil, false
		}
		parts, b = append(parts, b[:size]), b[size:]
	}
	return parts, true
}

func (g *Group) filterMessage(b []byte, from any, pass func([]byte)) {
	switch b[0] {
	case msgPing, msgIndirectPing, msgAck, msgNack:
		pass(b)
	case msgAlive:
		if g.repeated(b) {
			return
		}
		var a aliveBody
		if decodeMsg(b[1:], &a) != nil {
			return
		}
		if err := g.checkAlive(
			stateBody{Name: a.Node, Addr: a.Addr, Port: a.Port, Meta: a.Meta, Incarnation: a.Incarnation,
				Vsn: a.Vsn}); err != nil {
			g.book.tell(a.Node, from, err)
			return
		}
		g.repeats.note(b, a.Node, time.Now())
		pass(b)
	case msgSuspect, msgDead:
		var a accusation
		if decodeMsg(b[1:], &a) != nil {
			return
		}
		if err := g.checkAccused(a.Node, a.Incarnation); err != nil {
			g.book.tell(a.Node, from, err)
			return
		}
		g.noteAccuser(a)
		pass(b)
	}
}

// noteAccuser keeps who says that a member does not answer. The word is of whoever passed
// it on, and only shown.
func (g *Group) noteAccuser(a accusation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, member := g.members[a.Node]
	if _, known := g.members[a.From]; known && member {
		g.accusers[a.Node] = a.From
	}
}

// checkAlive admits a member's statement that came with an incarnation.
func (g *Group) checkAlive(s stateBody) error {
	a, ok := netip.AddrFromSlice(s.Addr)
	if !ok || s.Port == 0 || !knownVersions(s.Vsn) {
		return errMessage
	}
	if s.Name == g.cfg.Name {
		if ceiling, serial, same := g.ownWords(s.Meta); same {
			return g.checkSelf(s, ceiling, serial)
		}
	}
	p, err := g.book.admit(s.Name, netip.AddrPortFrom(a.Unmap(), s.Port), s.Meta)
	if err != nil {
		return err
	}
	if s.Name == g.cfg.Name {
		return g.checkSelf(s, p.ceiling, p.serial)
	}
	if s.Incarnation > p.ceiling {
		return errTooHigh
	}
	return nil
}

// checkSelf lets pass words of this member that others still hold, so that
// memberlist contradicts them.
func (g *Group) checkSelf(s stateBody, ceiling uint32, serial uint64) error {
	if s.Incarnation > ceiling {
		return errTooHigh
	}
	g.heardOfSelf(s.Incarnation, s.Meta, serial)
	return nil
}

// knownVersions tells whether a member speaks what all here speak. Nobody signs
// these six numbers, and memberlist ends every exchange when one does not fit.
func knownVersions(v []uint8) bool {
	const speaks = memberlist.ProtocolVersion2Compatible
	return len(v) == 6 && v[0] <= speaks && speaks <= v[1] && v[2] == speaks && v[3] == 0 && v[4] == 0 && v[5] == 0
}

// checkAccused lets pass what is said against a member as it is known.
func (g *Group) checkAccused(name string, incarnation uint32) error {
	if name == g.cfg.Name {
		ceiling, _, _ := g.ownWords(nil)
		if incarnation > ceiling {
			return errTooHigh
		}
		g.heardOfSelf(incarnation, nil, 0)
		return nil
	}
	p := g.book.peer(name)
	if p == nil || p.raw == nil {
		return errUnknown
	}
	if incarnation > p.ceiling {
		return errTooHigh
	}
	return nil
}

// filterStream returns what of a stream's message memberlist may see: all of a
// ping or an answer to it, of an exchange of states those that hold. The first is by
// which this member finds the group.
func (g *Group) filterStream(b []byte, first bool) ([]byte, error) {
	if len(b) == 0 {
		return nil, errMessage
	}
	switch b[0] {
	case msgPing, msgAck, msgError:
		return b, nil
	case msgPushPull:
		return g.filterStates(b[1:], first)
	}
	return nil, errMessage
}

func (g *Group) filterStates(b []byte, first bool) ([]byte, error) {
	dec := codec.NewDecoderBytes(b, &handle)
	var head stateHead
	if err := dec.Decode(&head); err != nil || head.Nodes < 0 || head.Nodes > maxStates {
		return nil, errMessage
	}
	var states []stateBody
	for range head.Nodes {
		var s stateBody
		if err := dec.Decode(&s); err != nil {
			return nil, errMessage
		}
		if err := g.checkState(s); err != nil {
			g.book.tell(s.Name, "", err)
			continue
		}
		states = append(states, s)
	}
	if first {
		g.oldNews.learn(states, time.Now())
	}
	head.Nodes, head.UserStateLen = len(states), 0
	return encodeStates(head, states)
}

func encodeStates(head stateHead, states []stateBody) ([]byte, error) {
	var b, out []byte
	out = append(out, msgPushPull)
	enc := codec.NewEncoderBytes(&b, &handle)
	if err := enc.Encode(&head); err != nil {
		return nil, err
	}
	out = append(out, b...)
	for i := range states {
		b = nil
		enc.ResetBytes(&b)
		if err := enc.Encode(&states[i]); err != nil {
			return nil, err
		}
		out = append(out, b...)
	}
	return out, nil
}

func (g *Group) checkState(s stateBody) error {
	if s.State == stateAlive {
		return g.checkAlive(s)
	}
	return g.checkAccused(s.Name, s.Incarnation)
}
