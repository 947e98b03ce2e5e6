package nft

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft/nfttest"
	"github.com/shoal-project/shoal/cni/nstest"
)

// kernel is the nftables of a network namespace of the test's own.
type kernel struct {
	t    *testing.T
	ns   string
	conn *Conn
}

func newKernel(t *testing.T) *kernel {
	k := &kernel{t: t, ns: nstest.New(t)}
	k.do(func() (err error) { k.conn, err = Open(); return err })
	t.Cleanup(k.conn.Close)
	return k
}

func (k *kernel) do(f func() error) {
	k.t.Helper()
	if err := nstest.In(k.ns, f); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) dump(table Table) (text string) {
	k.t.Helper()
	k.do(func() (err error) { text, err = nfttest.Dump(table.String()); return err })
	return text
}

// holds checks that the kernel has what was described, in the same words.
func (k *kernel) holds(want Objects) {
	k.t.Helper()
	if d := cmp.Diff(nfttest.Listed(want.String()), k.dump(want.Table)); d != "" {
		k.t.Fatalf("table %s: (-described +kernel)\n%s", want.Table, d)
	}
}

var (
	prefixes  = map[Family]string{V4: "10.244.0.0/16", V6: "fd00:10:244::/48"}
	addresses = map[Family]string{V4: "10.244.7.10", V6: "fd00:10:244::10"}
)

// lastOf are addresses up to the greatest of a family.
var lastOf = map[Family]Data{
	V4: AddrsOf(netip.MustParseAddr("240.0.0.0"), netip.MustParseAddr("255.255.255.255")),
	V6: AddrsOf(netip.MustParseAddr("ff00::"), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
}

// dictionary is a table with every word about packets of a family.
func dictionary(f Family) Objects {
	o := NewObjects(Table{f, "words"})
	in, at := netip.MustParsePrefix(prefixes[f]), netip.MustParseAddr(addresses[f])
	listeners := &Set{Name: "listeners", Key: f.AddrProtoPort().Type(), Data: f.Target()}
	numbered := &Set{Name: "numbered", Key: f.AddrProtoPort().And(Random(4)).Type(), Data: f.Target()}
	ports := &Set{Name: "ports", Key: ProtoPort().Type(), Data: Verdict}
	pairs := &Set{Name: "pairs", Key: f.AddrPair().Type()}
	clients := &Set{Name: "clients", Key: Key{f.Saddr()}.Type(), Timeout: 10 * time.Second, Size: 100}
	memory := &Set{Name: "memory", Key: f.AddrPair().Type(), Timeout: 3 * time.Hour, Size: 65535}
	blocks := &Set{Name: "blocks", Key: Key{f.Saddr()}.Type(), Intervals: true}
	ranges := &Set{Name: "ranges", Key: Key{Dport()}.Type(), Intervals: true}
	senders := &Set{Name: "senders", Key: Key{f.Saddr()}.Type(), Data: Verdict}
	o.AddSets(listeners, numbered, ports, pairs, clients, memory, blocks, ranges, senders)
	o.Add(blocks, AddrsOf(at, at), nil)
	o.Add(blocks, AddrsOf(in.Addr(), in.Addr().Next()), nil) // a prefix
	o.Add(blocks, AddrsOf(at.Next().Next(), at.Next().Next().Next().Next()), nil)
	o.Add(blocks, lastOf[f], nil)
	o.Add(ranges, PortsOf(80, 80), nil)
	o.Add(ranges, PortsOf(256, 511), nil)
	o.Add(ranges, PortsOf(32000, 65535), nil)
	o.Add(senders, Data{}.Addr(at), Data("flows"))
	o.Add(listeners, AddrProtoPort(at, unix.IPPROTO_UDP, 53), Target(netip.AddrPortFrom(at, 1053)))
	o.Add(numbered, AddrProtoPort(at, unix.IPPROTO_SCTP, 53).Number(3), Target(netip.AddrPortFrom(at, 1054)))
	o.Add(ports, Data{}.Proto(unix.IPPROTO_TCP).Port(30080), Data("other"))
	o.Add(pairs, Data{}.Addr(at).Addr(at.Next()), nil)

	one, two := netip.AddrPortFrom(at, 80), netip.AddrPortFrom(at.Next(), 81)
	o.AddChain("nat", Hook{NAT, Prerouting, PriorityDstNAT + 1})
	for _, r := range []Rule{
		{DaddrIn(in), Return()}, {DaddrNotIn(in), Drop()}, {DaddrIs(at), Return()},
		{f.DNAT(f.AddrProtoPort(), listeners)},
		{f.DNAT(f.AddrProtoPort(), listeners, ToLocal())},
		{f.DNAT(f.AddrProtoPort().And(Random(4)), numbered)},
		{ToLocal(), Vmap(ProtoPort(), ports)},
		{FromLocal(), Mark(0x4000), Goto("other")},
		{DNATToOneOf([]netip.AddrPort{one})},
	} {
		o.AddRule("nat", r...)
	}
	for _, r := range []Rule{
		{In(Key{f.Saddr(), Fixed(at)}, memory), GotoOneOf([]string{"first", "second"})},
		{Remember(Key{f.Saddr(), Fixed(at)}, memory), DNATToOneOf([]netip.AddrPort{one, two})},
		{GotoOneOf([]string{"first"})},
	} {
		o.AddRule("other", r...)
	}
	o.AddRule("first", DNATToOneOf([]netip.AddrPort{one, two}))
	o.AddRule("second", ProtoIs(unix.IPPROTO_UDP), Return())
	o.AddChain("source", Hook{NAT, Postrouting, PrioritySrcNAT - 1})
	o.AddRule("source", Marked(0x4000), Unmark(0x4000), Masquerade())
	o.AddRule("source", SaddrNotIn(in), Return())
	o.AddRule("source", In(f.AddrPair(), pairs), Masquerade())
	o.AddChain("filter", Hook{Filter, Input, PriorityFilter})
	for _, r := range []Rule{
		{New(), NotToLocal(), Goto("refuse")},
		{Redirected(), Drop()},
		{NotFromLoopback(), SaddrIn(in), Count(), Drop()},
		{FromInterface("wg0"), SaddrBy("wg1"), Drop()},
		{DaddrIs(at), Over(Key{f.Saddr()}, clients, 5000, 5000), Drop()},
	} {
		o.AddRule("filter", r...)
	}
	o.AddRule("refuse", ProtoIs(unix.IPPROTO_TCP), RejectTCP())
	o.AddRule("refuse", f.Reject())
	o.AddChain("forward", Hook{Filter, Forward, PriorityFilter + 1})
	for _, r := range []Rule{
		{Reply(), Goto("replies")},
		{Jump("from")},
		{Related(), ProtoIs(f.ICMP()), Return()},
	} {
		o.AddRule("forward", r...)
	}
	open := &Set{Name: "open", Key: f.AddrProtoPort().Type()}
	o.AddSets(open)
	o.Add(open, AddrProtoPort(at, unix.IPPROTO_TCP, 8080), nil)
	o.AddRule("from", Vmap(Key{f.Saddr()}, senders))
	o.AddRule("replies", In(f.SaddrProtoPort(), open), Return())
	o.AddRule("flows", In(Key{f.Saddr()}, blocks), DportIn(unix.IPPROTO_TCP, ranges), Return())
	o.AddRule("flows", SportIn(unix.IPPROTO_SCTP, ranges), Return())
	o.AddRule("flows", Drop())
	return o
}

// frames is a table with every word about frames.
func frames() Objects {
	o := NewObjects(Table{Bridge, "words"})
	pods := &Set{Name: "pods", Key: V4.Sender().Type(), Keep: true}
	o.AddSets(pods)
	mac := net.HardwareAddr{0x0a, 0x58, 10, 244, 7, 10}
	o.Add(pods, Data{}.Interface("veth0123456789").MAC(mac).Addr(netip.MustParseAddr(addresses[V4])), nil)
	o.AddChain("prerouting", Hook{Filter, Prerouting, PriorityBridged})
	for _, r := range []Rule{
		{FromGroup(7), EtherTypeNot(unix.ETH_P_IP), Drop()},
		{EtherType(unix.ETH_P_IP), EtherTo(mac), In(V4.Sender(), pods), Return()},
		{EtherType(unix.ETH_P_ARP), In(ARPFrame(), pods), In(ARPSender(), pods), Return()},
	} {
		o.AddRule("prerouting", r...)
	}
	return o
}

// What a table's text says is what the kernel was told, word for word.
func TestTextIsWhatTheKernelHas(t *testing.T) {
	for _, o := range []Objects{dictionary(V4), dictionary(V6), frames()} {
		t.Run(o.Table.Family.String(), func(t *testing.T) {
			k := newKernel(t)
			k.do(func() error { return k.conn.Reset(o) })
			k.holds(o)
		})
	}
}

// A reset leads to the table from whatever somebody, an earlier version say, has
// made of it; only sets that keep their elements do.
func TestReset(t *testing.T) {
	k, want := newKernel(t), dictionary(V4)
	kept := &Set{Name: "kept", Key: Key{V4.Saddr()}.Type(), Keep: true}
	want.AddSets(kept)
	const earlier = `table ip words {
		set kept {
			type ipv4_addr
			elements = { 192.0.2.1 }
		}
		set pairs {
			type ipv4_addr . ipv4_addr
			elements = { 192.0.2.1 . 192.0.2.2 }
		}
		set clients {
			type ipv4_addr
			flags dynamic,timeout
			timeout 5s
		}
		map listeners {
			type inet_service : verdict
			elements = { 80 : goto stale }
		}
		chain stale {
			ip saddr 10.0.0.0/8 goto other
		}
		chain nat {
			type filter hook prerouting priority 0
			update @clients { ip saddr }
			th dport vmap @listeners
			numgen random mod 2 vmap { 0 : goto stale, 1 : goto other }
		}
		chain other {
			drop
		}
	}`
	k.do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(earlier)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	k.do(func() error { return k.conn.Reset(want) })
	want.Add(kept, Data{}.Addr(netip.MustParseAddr("192.0.2.1")), nil)
	k.holds(want)
	k.do(func() error { return k.conn.Reset(want) }) // the same again
	k.holds(want)
	k.do(func() error { return k.conn.Delete(want.Table, Table{V6, "never made"}) })
	if k.conn.Intact(want.Table) {
		t.Error("the table is still there")
	}
}

// A transaction that the kernel refuses leaves nothing, neither in the tables nor
// for the next one.
func TestAllOrNothing(t *testing.T) {
	k, want := newKernel(t), dictionary(V4)
	k.do(func() error { return k.conn.Reset(want, frames()) })
	pairs := want.Sets["pairs"]
	bad := []Change{NewChange(want.Table), NewChange(want.Table), NewChange(Table{V4, "missing"})}
	bad[0].Add.AddRule("new", Goto("nowhere"))
	bad[1].Del.Add(pairs, Data{}.Addr(netip.IPv4Unspecified()).Addr(netip.AddrFrom4([4]byte{1})), nil)
	bad[2].Add.AddRule("new", Drop())
	for i, ch := range bad {
		good := NewChange(want.Table)
		good.Add.Add(pairs, Data{}.Addr(netip.IPv4Unspecified()).Addr(netip.IPv4Unspecified()), nil)
		if err := nstest.In(k.ns, func() error { return k.conn.Apply(good, ch) }); err == nil {
			t.Errorf("change %d was taken", i)
		}
		k.holds(want)
	}
	k.do(func() error { return k.conn.Apply(NewChange(want.Table)) })
	k.holds(want)
	k.holds(frames())
}

// Maps have as many elements as they are told, also of more than fit into one
// message, with names as long as those of Services make them.
func TestLargeMaps(t *testing.T) {
	k, o := newKernel(t), NewObjects(Table{V4, "large"})
	const n = 5000
	leads := &Set{Name: "leads", Key: ProtoPort().Type(), Data: Verdict}
	o.AddSets(leads)
	var chains []string
	for i := range n {
		chains = append(chains, fmt.Sprintf("c%0200d", i))
		o.AddRule(chains[i], Drop())
		o.Add(leads, Data{}.Proto(unix.IPPROTO_TCP).Port(uint16(i)), Data(chains[i]))
	}
	o.AddRule("to-one", GotoOneOf(chains))
	o.AddRule("few", GotoOneOf(chains[:elementsFew]))
	o.AddChain("nat", Hook{NAT, Prerouting, PriorityDstNAT})
	o.AddRule("nat", DNATToOneOf(slices.Repeat([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}, n)))
	k.do(func() error { return k.conn.Reset(o) })
	text := k.dump(o.Table)
	leadsTo, targets := strings.Count(text, " : goto c"), strings.Count(text, " : 192.0.2.1 . 1")
	if want := 2*n + elementsFew; leadsTo != want || targets != n {
		t.Errorf("the kernel has %d verdicts and %d targets, want %d and %d", leadsTo, targets, want, n)
	}
	k.do(func() error { return k.conn.Apply(Change{Del: o.only(leads), Add: NewObjects(o.Table)}) })
	if text := k.dump(o.Table); strings.Contains(text, "element leads") {
		t.Error("elements that were deleted are left")
	}
}

// elementsFew is how many make a small map.
const elementsFew = 300

// only are the elements of one set.
func (o Objects) only(s *Set) Objects {
	out := NewObjects(o.Table)
	out.Elements[s] = o.Elements[s]
	return out
}

// random is a table as somebody may want it: few names, so that chains and sets
// come, change and go.
func random(r *rand.Rand, table Table) Objects {
	o := NewObjects(table)
	f := table.Family
	leads := &Set{Name: "leads", Key: f.AddrProtoPort().Type(), Data: Verdict}
	pairs := &Set{Name: "pairs", Key: f.AddrPair().Type()}
	o.AddSets(leads, pairs)
	addr := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(6))}) }
	o.AddChain("enter", Hook{NAT, Prerouting, PriorityDstNAT})
	o.AddRule("enter", Vmap(f.AddrProtoPort(), leads))
	for i := range r.IntN(5) {
		name := fmt.Sprintf("chain%d", r.IntN(5))
		memory := &Set{
			Name: fmt.Sprintf("memory%d", r.IntN(3)), Key: f.AddrPair().Type(),
			Timeout: time.Minute, Size: 65535, Keep: true,
		}
		switch i % 4 {
		case 0:
			to := []netip.AddrPort{netip.AddrPortFrom(addr(), 80), netip.AddrPortFrom(addr(), 81)}
			o.AddRule(name, DNATToOneOf(to))
		case 1:
			o.AddSets(memory)
			o.AddRule(name, Remember(Key{f.Saddr(), Fixed(addr())}, memory), Drop())
		case 2:
			o.AddRule("last", SaddrIn(netip.PrefixFrom(addr(), 8+r.IntN(24))), Return())
			o.AddRule(name, GotoOneOf(slices.Repeat([]string{"last"}, 1+r.IntN(3))))
		default:
			o.AddRule(name, In(f.AddrPair(), pairs), Mark(1<<r.IntN(3)))
		}
		o.Add(leads, AddrProtoPort(addr(), unix.IPPROTO_TCP, uint16(r.IntN(3))), Data(name))
	}
	for range r.IntN(4) {
		o.Add(pairs, Data{}.Addr(addr()).Addr(addr()), nil)
	}
	return o
}

// named takes the sets of an earlier state for those of the same name, as a
// caller does who made them once.
func (o Objects) named(earlier Objects) Objects {
	for name, s := range o.Sets {
		if old := earlier.Sets[name]; old != nil && len(o.Elements[s]) > 0 {
			o.Elements[old] = o.Elements[s]
			delete(o.Elements, s)
		}
		if old := earlier.Sets[name]; old != nil {
			o.Sets[name] = old
		}
	}
	return o
}

// After any walk from table to table the kernel has the last one.
func TestRandomWalk(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	r, k := rand.New(rand.NewPCG(seed, 0)), newKernel(t)
	var had [2]Objects
	for i, name := range []string{"one", "two"} {
		had[i] = random(r, Table{V4, name})
	}
	k.do(func() error { return k.conn.Reset(had[:]...) })
	for i := range 100 {
		var changes []Change
		for i := range had {
			want := random(r, had[i].Table).named(had[i])
			changes = append(changes, Diff(had[i], want))
			had[i] = want
		}
		k.do(func() error { return k.conn.Apply(changes...) })
		if i%5 == 4 {
			k.holds(had[0])
			k.holds(had[1])
		}
		if d := Diff(had[0], had[0]); !d.Empty() {
			t.Errorf("from a table to itself: %v", d)
		}
	}
}
