package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni"
)

// relayed is a cluster of two hidden nodes and two others; this one is "hidden1".
type relayed struct {
	talk
	answers map[string]string // to questions, by member
	asked   []string
}

func (r *relayed) Ask(_ context.Context, member string, q []byte) ([]byte, error) {
	r.asked = append(r.asked, member+" "+string(q))
	if said, ok := r.answers[member]; ok {
		return []byte(said), nil
	}
	return nil, errors.New("no answer")
}

func keyOf(name string) string { return (name + strings.Repeat("k", 32))[:32] }

func newRelayed() *relayed {
	self := memberAt("hidden1", "10.0.0.1", gossip.StateAlive, keyOf("hidden1"))
	self.Local = true
	hidden := memberAt("hidden2", "10.0.1.1", gossip.StateAlive, keyOf("hidden2"))
	hidden.Hidden, hidden.Inner = true, keyOf("inner2")
	return &relayed{answers: map[string]string{}, talk: talk{
		group: group{self, hidden, memberAt("open1", "192.0.2.1", gossip.StateAlive, keyOf("open1")),
			memberAt("open2", "192.0.2.2", gossip.StateAlive, keyOf("open2"))},
		seen: map[string]netip.Addr{},
	}}
}

func (r *relayed) fill(t *testing.T, tun *tunnels) map[string]cni.Peer {
	t.Helper()
	peers := []cni.Peer{{Name: "hidden2"}, {Name: "open1"}, {Name: "open2"}}
	if _, err := tun.fill(r, r.group, peers); err != nil {
		t.Fatal(err)
	}
	out := map[string]cni.Peer{}
	for _, p := range peers {
		out[p.Name] = p
	}
	return out
}

// seek asks, and waits for the answers.
func (r *relayed) seek(t *testing.T, tun *tunnels, peers map[string]cni.Peer, path cni.Path) {
	t.Helper()
	r.asked = nil
	list := []cni.Peer{peers["hidden2"], peers["open1"], peers["open2"]}
	tun.seek(t.Context(), r, r.group, list, map[string]cni.Path{"hidden2": path})
	tun.wg.Wait()
	slices.Sort(r.asked)
}

// again has the next seek ask.
func again(tun *tunnels) {
	p := tun.pairs["hidden2"]
	p.asked = time.Time{}
	tun.pairs["hidden2"] = p
}

const bothSeen = `T{"at":{"hidden1":"203.0.113.1:4001","hidden2":"203.0.113.2:4002"}}`

// TestPairOfHidden: a hidden node takes another one for hidden at its word, asks those who
// can see both, and takes the first of them that has a session with both; as long as that
// one lives, also after a restart.
func TestPairOfHidden(t *testing.T) {
	r := newRelayed()
	tun := tunnelsIn(t.TempDir(), false)
	if p := r.fill(t, tun)["hidden2"]; !p.End.Hidden || p.Self.Hidden {
		t.Errorf("before anybody was asked: %+v", p)
	}
	// Both others see this node elsewhere, which sees the other one so, too. That has not said it yet.
	r.group[1].Hidden, r.group[1].Seen = false, netip.MustParseAddrPort("203.0.113.2:4002")
	tun.views = map[string]view{"open1": {at: netip.MustParseAddr("203.0.113.1")}}
	if p := r.fill(t, tun)["hidden2"]; !p.End.Hidden || !p.Self.Hidden || tun.paired() {
		t.Errorf("hidden by what is seen alone: %+v, a pair: %v", p, tun.paired())
	}
	r.group[1].Hidden, r.group[1].Seen = true, netip.AddrPort{}
	outside := view{at: netip.MustParseAddr("203.0.113.1")}
	tun.views = map[string]view{"open1": outside, "open2": outside}
	peers := r.fill(t, tun)
	if p := peers["hidden2"]; !p.End.Hidden || !p.Self.Hidden || p.Relay != (cni.Key{}) || !r.meta.Hidden {
		t.Errorf("both are hidden: %+v, this one says %+v", p, r.meta)
	}
	members := map[string]gossip.Member{"hidden2": r.group[1], "open1": r.group[2], "open2": r.group[3]}
	order := candidates("hidden1", "hidden2",
		[]cni.Peer{peers["hidden2"], peers["open1"], peers["open2"]}, members)
	backwards := candidates("hidden2", "hidden1", []cni.Peer{peers["open2"], peers["open1"]}, members)
	if len(order) != 2 || !slices.Equal(order, backwards) {
		t.Fatalf("the two ends ask others, or in another order: %v", order)
	}

	r.answers[order[0]] = `T{"at":{"hidden1":"203.0.113.1:4001"}}` // the other is not there yet
	r.answers[order[1]] = bothSeen
	r.seek(t, tun, peers, cni.WireGuard)
	if want := []string{`open1 T{"names":["hidden2"]}`, `open2 T{"names":["hidden2"]}`}; !slices.Equal(r.asked, want) {
		t.Errorf("asked %q, want %q", r.asked, want)
	}
	relay := func(name string) {
		t.Helper()
		peers = r.fill(t, tun)
		p := peers["hidden2"]
		want, inner := cni.Key{}, cni.Key{}
		copy(want[:], keyOf(name))
		copy(inner[:], keyOf("inner2"))
		if tun.relayOf("hidden2") != name || p.Inner != inner {
			t.Errorf("through %s, with the inner key %q", tun.relayOf("hidden2"), p.Inner[:6])
		}
		if p.Relay != want || p.At != netip.MustParseAddrPort("203.0.113.2:4002") {
			t.Errorf("handed on by %q at %s, want %s", p.Relay[:5], p.At, name)
		}
	}
	relay(order[1])
	if r.seek(t, tun, peers, cni.Relayed); len(r.asked) != 0 {
		t.Errorf("asked again at once: %q", r.asked)
	}
	r.answers[order[0]] = bothSeen
	again(tun)
	r.seek(t, tun, peers, cni.Relayed)
	relay(order[0])
	again(tun)
	if r.seek(t, tun, peers, cni.WireGuard); len(r.asked) != 0 {
		t.Errorf("asked while there is a session: %q", r.asked)
	}
	// Nobody answers: it stays as it is, after a restart too.
	r.answers = nil
	again(tun)
	r.seek(t, tun, peers, cni.Relayed)
	relay(order[0])
	restarted := tunnelsIn("", false)
	restarted.cfg = tun.cfg
	heard := r.group[1]
	r.group[1] = gossip.Member{Name: "hidden2", State: gossip.StateUnheard}
	p := r.fill(t, restarted)["hidden2"]
	if inner := p.Inner; !strings.HasPrefix(string(inner[:]), "inner2") {
		t.Errorf("after a restart, unheard, the inner key is %q", inner[:6])
	}
	r.group[1] = heard
	p = r.fill(t, restarted)["hidden2"]
	want := cni.Key{}
	copy(want[:], keyOf(order[0]))
	if !p.Self.Hidden || !p.End.Hidden || p.Relay != want {
		t.Errorf("after a restart: %+v", p)
	}
	var first gossip.Meta
	if err := restarted.cfg.Introduce(&first); err != nil || !first.Hidden {
		t.Errorf("the first words after a restart are %+v, %v", first, err)
	}
	// It dies: the other one is asked, and takes over.
	for i := range r.group {
		if r.group[i].Name == order[0] {
			r.group[i].State = gossip.StateDead
		}
	}
	if peers = r.fill(t, tun); peers["hidden2"].Relay != (cni.Key{}) {
		t.Errorf("a dead node hands packets on: %+v", peers["hidden2"])
	}
	r.answers = map[string]string{order[1]: bothSeen}
	again(tun)
	r.seek(t, tun, peers, cni.WireGuard)
	relay(order[1])
	// One that is heard from its own address is not hidden from this node.
	r.group[1].AtHome = true
	tun.views["hidden2"] = view{at: netip.MustParseAddr("10.0.0.1")}
	if p := r.fill(t, tun)["hidden2"]; p.End.Hidden || p.Self.Hidden || p.Relay != (cni.Key{}) || tun.paired() {
		t.Errorf("behind one router: %+v", p)
	}
}

// TestAnswerWhereSeen: who asks is told of nodes with sessions alone, and of nobody when the
// question is none.
func TestAnswerWhereSeen(t *testing.T) {
	m := &Manager{}
	a, b, c := cni.Key{1}, cni.Key{2}, cni.Key{3}
	m.tunnels.keys = map[string]cni.Key{"a": a, "b": b, "c": c}
	m.tunnels.seen = map[cni.Key]netip.AddrPort{
		a: netip.MustParseAddrPort("203.0.113.1:1"), b: netip.MustParseAddrPort("[2001:db8::2]:2"),
	}
	m.tunnels.looked = time.Now().Add(time.Hour)
	for q, want := range map[string]string{
		`T{"names":["b","c","unknown"]}`: `T{"at":{"a":"203.0.113.1:1","b":"[2001:db8::2]:2"}}`,
		`T{"names":[]}`:                  `T{"at":{"a":"203.0.113.1:1"}}`,
		`T{`:                             ``,
		``:                               ``,
		`T{"names":["` + strings.Repeat(`x","`, mostAsked) + `y"]}`: ``,
	} {
		if got := string(m.Answer("a", []byte(q))); got != want {
			t.Errorf("%.40q is answered with %q, want %q", q, got, want)
		}
	}
}

// FuzzSighted: whatever a member answers, nothing is sent but to an address of a node.
func FuzzSighted(f *testing.F) {
	for _, said := range []string{
		bothSeen, `T{"at":{"hidden2":"127.0.0.1:22"}}`, `T{"at":{"hidden2":"[fe80::1%eth0]:1"}}`,
		"T", "", `T{"at":{"hidden2":"224.0.0.1:5353"}}`, `T{"at":null}`,
	} {
		f.Add([]byte(said))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		got := parseSighted(said, []string{"hidden1", "hidden2"})
		for name, at := range got {
			a := at.Addr()
			if name != "hidden1" && name != "hidden2" || !at.IsValid() || at.Port() == 0 ||
				a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() ||
				a.Zone() != "" || a.Is4In6() {
				t.Errorf("%s at %s", name, at)
			}
		}
		(&Manager{}).Answer("a", fmt.Append([]byte{Magic}, string(said)))
	})
}
