package network

import (
	"cmp"
	"context"
	"encoding/json"
	"hash/fnv"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni"
)

// Magic begins each question about tunnels among those that members of the gossip ask each
// other.
const Magic = 'T'

// Two nodes behind routers that translate addresses cannot begin to talk to each other. A
// third that has tunnels to both sees where their packets come from, and tells each of them
// where the other is; until they have a session it hands their packets on. Both ask the same
// ones in the same order, and take the first that has a session with each.

const (
	// relays is how many are asked.
	relays = 3
	// mostAsked bounds the nodes that one question is about.
	mostAsked = 32
	// askEarly is how often they are asked while a pair has no session, in its first time,
	// askLate after that: the routers may be of a kind that never lets it come to one.
	askEarly  = 3 * time.Second
	askLate   = 30 * time.Second
	firstTime = time.Minute
)

// sightedQuestion and its answer are JSON after Magic.
type sightedQuestion struct {
	Names []string `json:"names"`
}

// sightedAnswer says where the tunnels of nodes are seen that have a session, the one's who
// asks among them.
type sightedAnswer struct {
	At map[string]netip.AddrPort `json:"at"`
}

// pair is what is known of the way to a hidden peer from a hidden node.
type pair struct {
	relay string // the node that has sessions with both; empty: none said so
	at    netip.AddrPort
	since time.Time // when it began to be looked for
	asked time.Time
}

// Answer answers another node that is hidden: where this one sees the tunnels of those that
// it asks for, if it has a session with the asker too.
func (m *Manager) Answer(member string, question []byte) []byte {
	var q sightedQuestion
	if len(question) == 0 || question[0] != Magic || json.Unmarshal(question[1:], &q) != nil ||
		len(q.Names) > mostAsked {
		return nil
	}
	keys, seen := m.tunnels.sighted(m.sightedNow)
	out := sightedAnswer{At: map[string]netip.AddrPort{}}
	for _, name := range append(q.Names, member) {
		if at, ok := seen[keys[name]]; ok {
			out.At[name] = at
		}
	}
	said, err := json.Marshal(out)
	if err != nil {
		return nil
	}
	return append([]byte{Magic}, said...)
}

func (m *Manager) sightedNow() map[cni.Key]netip.AddrPort {
	m.use.RLock()
	defer m.use.RUnlock()
	n := m.ownNetwork()
	if n == nil || m.Name() != Builtin {
		return nil
	}
	seen, err := n.Sighted()
	if err != nil {
		return nil // no interface: no tunnels
	}
	return seen
}

// sightedFor is how long one look at WireGuard serves those who ask.
const sightedFor = time.Second

// sighted returns the keys of nodes, and where they are seen.
func (t *tunnels) sighted(look func() map[cni.Key]netip.AddrPort) (map[string]cni.Key, map[cni.Key]netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) >= sightedFor {
		t.seen, t.looked = look(), time.Now()
	}
	return t.keys, t.seen
}

// parseSighted reads an answer to a question about these.
func parseSighted(said []byte, names []string) map[string]netip.AddrPort {
	var a sightedAnswer
	if len(said) == 0 || said[0] != Magic || json.Unmarshal(said[1:], &a) != nil {
		return nil
	}
	out := map[string]netip.AddrPort{}
	for _, name := range names {
		at := a.At[name]
		at = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
		// Nothing is sent to where no node can be.
		if at.IsValid() && at.Port() != 0 && at.Addr().IsGlobalUnicast() {
			out[name] = at
		}
	}
	return out
}

// pairUp tells peers that are hidden, as this node is, by whom they are reached.
func (t *tunnels) pairUp(members map[string]gossip.Member, peers []cni.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys = make(map[string]cni.Key, len(peers))
	for _, p := range peers {
		if p.End.HasKey {
			t.keys[p.Name] = p.Key
		}
	}
	there := map[string]bool{}
	for i := range peers {
		p := &peers[i]
		// Both say that they are hidden before they are a pair: with that word comes what the
		// peer knows of ways through a third.
		if !t.last[p.Name].Hidden || !p.Self.Hidden || !p.End.HasKey || !p.Self.HasKey {
			continue
		}
		there[p.Name] = true
		known, again := t.pairs[p.Name]
		if !again {
			known = pair{since: time.Now(), relay: t.last[p.Name].Relay}
		}
		if relay := members[known.relay]; relay.State.Up() || relay.State == gossip.StateUnheard {
			p.Relay, p.At = t.keys[known.relay], known.at
		}
		if t.pairs == nil {
			t.pairs = map[string]pair{}
		}
		t.pairs[p.Name] = known
		if l := t.last[p.Name]; l.Relay != known.relay {
			l.Relay = known.relay
			t.last[p.Name] = l
		}
	}
	for name := range t.pairs {
		if !there[name] {
			delete(t.pairs, name)
		}
	}
}

// relayOf is the node that hands packets on to a peer.
func (t *tunnels) relayOf(peer string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pairs[peer].relay
}

// candidates are who may hand packets on between two nodes, in the order in which both ask.
func candidates(self, peer string, peers []cni.Peer, members map[string]gossip.Member) (out []string) {
	ends := min(self, peer) + " " + max(self, peer) + " "
	for _, p := range peers {
		open := p.End.HasKey && !p.End.Hidden && p.Self.Hidden
		if open && members[p.Name].State.Up() && !slices.Contains(out, p.Name) {
			out = append(out, p.Name)
		}
	}
	rank := func(name string) uint64 {
		h := fnv.New64a()
		_, _ = io.WriteString(h, ends+name)
		return h.Sum64()
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	return out[:min(len(out), relays)]
}

// paired tells whether there are hidden peers, which are looked at more often then.
func (t *tunnels) paired() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.pairs) > 0
}

// asker asks members.
type asker interface {
	Ask(ctx context.Context, member string, question []byte) ([]byte, error)
}

// seek asks the candidates about pairs without a session, each one once for all of them.
func (t *tunnels) seek(
	ctx context.Context, g Gossip, members []gossip.Member, peers []cni.Peer, paths map[string]cni.Path,
) {
	a, can := g.(asker)
	if !can {
		return
	}
	by := map[string]gossip.Member{}
	self := ""
	for _, m := range members {
		by[m.Name] = m
		if m.Local {
			self = m.Name
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	choices, questions := map[string][]string{}, map[string][]string{}
	for name, p := range t.pairs {
		every := askEarly
		if now.Sub(p.since) > firstTime {
			every = askLate
		}
		// Without a relay the path is the same, session or none.
		settled := paths[name] == cni.WireGuard && by[p.relay].State.Up()
		if t.seeking || settled || now.Sub(p.asked) < every {
			continue
		}
		p.asked = now
		t.pairs[name] = p
		choices[name] = candidates(self, name, peers, by)
		for _, c := range choices[name] {
			if len(questions[c]) < mostAsked {
				questions[c] = append(questions[c], name)
			}
		}
	}
	if len(questions) == 0 {
		return
	}
	t.seeking = true
	t.wg.Go(func() { t.seekAll(ctx, a, self, choices, questions) })
}

func (t *tunnels) seekAll(ctx context.Context, a asker, self string, choices, questions map[string][]string) {
	said := map[string]map[string]netip.AddrPort{}
	for relay, names := range questions {
		q, err := json.Marshal(sightedQuestion{names})
		if err != nil {
			continue
		}
		answer, err := a.Ask(ctx, relay, append([]byte{Magic}, q...))
		if err != nil {
			continue
		}
		said[relay] = parseSighted(answer, append(names, self))
	}
	t.mu.Lock()
	changed := t.choose(self, choices, said)
	t.seeking = false
	t.mu.Unlock()
	if changed && ctx.Err() == nil {
		t.poke()
	}
}

// choose takes for each pair the first that has a session with both. If none has, and
// somebody answered, there is none any more.
func (t *tunnels) choose(
	self string, choices map[string][]string, said map[string]map[string]netip.AddrPort,
) (changed bool) {
	for name, list := range choices {
		p, there := t.pairs[name]
		if !there || len(said) == 0 {
			continue
		}
		next := p
		next.relay, next.at = "", netip.AddrPort{}
		for _, c := range list {
			if at, ok := said[c][name]; ok && said[c][self].IsValid() {
				next.relay, next.at = c, at
				break
			}
		}
		if next != p {
			t.pairs[name], changed = next, true
		}
	}
	return changed
}
