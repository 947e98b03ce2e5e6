package gossip

import (
	"encoding/binary"
	"sync"
	"time"
)

// oldNewsFor is how long memberlist may pass on what it learned in one exchange: of
// 500 members 24 times each, three a packet, 17 packets a second.
const oldNewsFor = 5 * time.Minute

// oldNews is what a newcomer learned in its first exchange: words of members that all
// others have known. Memberlist passes on whatever it learns, and does not ask from
// where. When many machines start at once, each would send the whole group to the
// whole group, and real news, as that a member lives, would be late.
type oldNews struct {
	mu    sync.Mutex
	words map[string]uint32 // incarnations by name
	until time.Time
}

// learn takes the states of a first exchange. Two may go on at once, by two addresses of
// the configuration, and these may be of two groups that do not know each other: then
// what both say is old, and each is told of the other's members.
func (o *oldNews) learn(states []stateBody, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	words := make(map[string]uint32, len(states))
	for _, s := range states {
		if s.State != stateAlive {
			continue
		}
		incarnation := s.Incarnation
		if o.words != nil && !now.After(o.until) {
			before, both := o.words[s.Name]
			if !both {
				continue
			}
			incarnation = min(incarnation, before)
		}
		words[s.Name] = incarnation
	}
	o.words, o.until = words, now.Add(oldNewsFor)
}

// any tells whether there is something that need not be passed on.
func (o *oldNews) any(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.words != nil && now.After(o.until) {
		o.words = nil
	}
	return len(o.words) > 0
}

// is tells whether a message says what all have known.
func (o *oldNews) is(b []byte) bool {
	var a aliveBody
	if len(b) == 0 || b[0] != msgAlive || decodeMsg(b[1:], &a) != nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.words[a.Node]
	return ok && a.Incarnation <= known
}

// strip returns a packet of memberlist's without what need not be passed on; nil when
// nothing is left.
func (o *oldNews) strip(b []byte, now time.Time) []byte {
	if !o.any(now) {
		return b
	}
	inner := b
	if len(inner) > 5 && inner[0] == msgCRC {
		inner = inner[5:] // the seal protects the rest
	}
	if len(inner) == 0 || inner[0] != msgCompound {
		if o.is(inner) {
			return nil
		}
		return b
	}
	parts, ok := splitCompound(inner[1:])
	if !ok {
		return b
	}
	var kept [][]byte
	for _, part := range parts {
		if !o.is(part) {
			kept = append(kept, part)
		}
	}
	if len(kept) == len(parts) {
		return b
	}
	return compound(kept)
}

// compound makes one packet of messages; nil of none.
func compound(parts [][]byte) []byte {
	if len(parts) < 2 {
		for _, part := range parts {
			return part
		}
		return nil
	}
	out := []byte{msgCompound, byte(len(parts))}
	for _, part := range parts {
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
	}
	for _, part := range parts {
		out = append(out, part...)
	}
	return out
}
