package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// plain is a statement without operands, but what is in its text.
type plain struct {
	text string
	does expr.Any
}

func (s plain) String() string               { return s.text }
func (s plain) compile(*compiler) []expr.Any { return []expr.Any{s.does} }

// verdict ends a rule, for a chain or without.
type verdict struct {
	kind  expr.VerdictKind
	chain string
}

func (s verdict) String() string {
	return strings.TrimSpace(verdicts[s.kind] + " " + s.chain)
}

func (s verdict) compile(*compiler) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: s.kind, Chain: s.chain}}
}

var verdicts = map[expr.VerdictKind]string{
	expr.VerdictAccept: "accept",
	expr.VerdictReturn: "return", expr.VerdictDrop: "drop", expr.VerdictGoto: "goto", expr.VerdictJump: "jump",
}

// Return ends the chain.
func Return() Statement { return verdict{expr.VerdictReturn, ""} }

// Drop drops the packet.
func Drop() Statement { return verdict{expr.VerdictDrop, ""} }

// Goto continues in chain without coming back.
func Goto(chain string) Statement { return verdict{expr.VerdictGoto, chain} }

// Jump continues in chain, and comes back to the next rule where that returns.
func Jump(chain string) Statement { return verdict{expr.VerdictJump, chain} }

// RejectTCP answers with a TCP reset.
func RejectTCP() Statement {
	return plain{"reject with tcp reset", &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}

// Reject answers "port unreachable", as the family has it.
func (f Family) Reject() Statement {
	code := uint8(3) // RFC 792
	if f == V6 {
		code = 4 // RFC 4443, section 3.1
	}
	return plain{"reject", &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

// RejectProtocol answers "protocol unreachable" (RFC 792), which IPv6 has not: by it a client
// of SCTP knows that it is refused (RFC 9260, section 10), and by "port unreachable" not.
func RejectProtocol() Statement {
	return plain{"reject with icmp prot-unreachable", &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 2}}
}

// Count counts the packets that come this far.
func Count() Statement { return plain{"counter", &expr.Counter{}} }

// Masquerade rewrites the source to the outgoing interface's address.
func Masquerade() Statement { return plain{"masquerade fully-random", &expr.Masq{FullyRandom: true}} }

// setMark changes the packet mark: the bits of keep stay, those of set are set.
type setMark struct{ keep, set uint32 }

func (s setMark) String() string {
	if s.set == 0 {
		return fmt.Sprintf("meta mark set meta mark & 0x%08x", s.keep)
	}
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.set)
}

func (s setMark) compile(*compiler) []expr.Any {
	return []expr.Any{
		mark().load(register(0)),
		bitwise(native(s.keep), native(s.set)),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register(0)},
	}
}

// Mark sets the packet mark's bits of mask, leaving the others.
func Mark(mask uint32) Statement { return setMark{^mask, mask} }

// Unmark clears the packet mark's bits of mask.
func Unmark(mask uint32) Statement { return setMark{^mask, 0} }

// remember writes a key into a set.
type remember struct {
	key Key
	set *Set
}

func (s remember) String() string { return fmt.Sprintf("update @%s { %s }", s.set.Name, s.key) }

func (s remember) compile(*compiler) []expr.Any {
	return append(s.key.load(), update(s.set))
}

// Remember writes the key into a set with a timeout, which begins anew.
func Remember(k Key, s *Set) Statement { return remember{k, s} }

// lead takes the verdict that a map holds for a key.
type lead struct {
	key Key
	set *Set
}

func (s lead) String() string { return s.key.String() + " vmap @" + s.set.Name }

func (s lead) compile(*compiler) []expr.Any {
	return append(s.key.load(), lookup(s.set.Name, 0, unix.NFT_REG_VERDICT))
}

// Vmap goes to the chain that a map holds for the key.
func Vmap(k Key, s *Set) Statement { return lead{k, s} }

func lookup(set string, id, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: register(0), SetName: set, SetID: id, IsDestRegSet: true, DestRegister: to}
}

// spread goes to one of some chains.
type spread []string

func (s spread) String() string {
	elems := make([]string, len(s))
	for i, chain := range s {
		elems[i] = fmt.Sprintf("%d : goto %s", i, chain)
	}
	return fmt.Sprintf("%s vmap { %s }", Random(len(s)).text, strings.Join(elems, ", "))
}

func (s spread) compile(c *compiler) []expr.Any {
	elems := make([]nftables.SetElement, len(s))
	for i, chain := range s {
		to := &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}
		elems[i] = nftables.SetElement{Key: native(uint32(i)), VerdictData: to}
	}
	set := c.anonymous(nftables.TypeInteger, nftables.TypeVerdict, elems)
	return []expr.Any{Random(len(s)).load(register(0)), lookup(set.Name, set.ID, unix.NFT_REG_VERDICT)}
}

// GotoOneOf continues in one of the chains, at random.
func GotoOneOf(chains []string) Statement {
	if len(chains) == 1 {
		return Goto(chains[0])
	}
	return spread(chains)
}

// redirect is DNAT to what a map holds for a key, if the conditions hold. It
// looks the key up first: most packets have no business here.
type redirect struct {
	family Family
	key    Key
	set    *Set
	when   Rule
}

func (s redirect) String() string {
	text := fmt.Sprintf("dnat %s to %s map @%s", s.family, s.key, s.set.Name)
	if len(s.when) == 0 {
		return text
	}
	return s.when.String() + " " + text
}

func (s redirect) compile(c *compiler) []expr.Any {
	at := s.key.result()
	exprs := append(s.key.load(), lookup(s.set.Name, 0, register(at)))
	for _, w := range s.when {
		exprs = append(exprs, w.compile(c)...)
	}
	return append(exprs, s.family.dnat(at))
}

// DNAT sends the flow where the map leads from its key, an address and a port,
// if the conditions hold; the rule ends here if the map has none.
func (f Family) DNAT(k Key, s *Set, when ...Statement) Statement { return redirect{f, k, s, when} }

// dnat rewrites the destination to the address and port held from a word on.
func (f Family) dnat(at uint32) expr.Any {
	return &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f),
		RegAddrMin: register(at), RegProtoMin: register(at + words(f.header().kind)), Specified: true,
	}
}

// toOne is DNAT to one address and port.
type toOne netip.AddrPort

func (s toOne) String() string { return "dnat to " + netip.AddrPort(s).String() }

func (s toOne) compile(*compiler) []expr.Any {
	to := netip.AddrPort(s)
	f, at := FamilyOf(to.Addr()), uint32(wordsOfRegister)
	return []expr.Any{
		&expr.Immediate{Register: register(at), Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: register(at + words(f.header().kind)), Data: big(to.Port())},
		f.dnat(at),
	}
}

// toOneOf is DNAT to one of several.
type toOneOf []netip.AddrPort

func (s toOneOf) String() string {
	elems, f := make([]string, len(s)), FamilyOf(s[0].Addr())
	for i, to := range s {
		elems[i] = strconv.Itoa(i) + " : " + Target(to).print(f.Target())
	}
	return fmt.Sprintf("dnat %s to %s map { %s }", f, Random(len(s)).text, strings.Join(elems, ", "))
}

func (s toOneOf) compile(c *compiler) []expr.Any {
	elems := make([]nftables.SetElement, len(s))
	for i, to := range s {
		elems[i] = nftables.SetElement{Key: native(uint32(i)), Val: Target(to)}
	}
	f, at := FamilyOf(s[0].Addr()), uint32(wordsOfRegister)
	set := c.anonymous(nftables.TypeInteger, f.Target(), elems)
	return []expr.Any{Random(len(s)).load(register(0)), lookup(set.Name, set.ID, register(at)), f.dnat(at)}
}

// DNATToOneOf sends the flow to one of the targets, which are of one family, at
// random.
func DNATToOneOf(targets []netip.AddrPort) Statement {
	if len(targets) == 1 {
		return toOne(targets[0])
	}
	return toOneOf(targets)
}
