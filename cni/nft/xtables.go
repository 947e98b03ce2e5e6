package nft

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Words for rules in chains of iptables, in the form in which every version of
// iptables-nft writes or reads them: it refuses to list a table with words that it does
// not know. Later versions write some of them in nftables' own words, which earlier ones
// do not know.

// interfaceIs holds for packets that come, or go, by an interface.
type interfaceIs struct {
	field Field
	name  string
}

func (s interfaceIs) String() string { return s.field.text + " " + strconv.Quote(s.name) }

func (s interfaceIs) compile(*compiler) []expr.Any {
	const end = "\x00" // without it, names that only begin so are meant too
	return []expr.Any{s.field.load(register(0)),
		&expr.Cmp{Op: expr.CmpOpEq, Register: register(0), Data: []byte(s.name + end)}}
}

// XTFrom is FromInterface in iptables' words, and XTTo holds for packets that leave by an
// interface.
func XTFrom(name string) Statement { return interfaceIs{iifName(), name} }

// XTTo is described at XTFrom.
func XTTo(name string) Statement {
	return interfaceIs{meta("oifname", nftables.TypeIFName, expr.MetaKeyOIFNAME), name}
}

// XTDaddr is DaddrIs in iptables' words, which know no mask that leaves all bits.
func XTDaddr(a netip.Addr) Statement {
	return comparison{FamilyOf(a).Daddr(), false, Data(a.AsSlice())}
}

// Accept has the packet pass this chain.
func Accept() Statement { return verdict{expr.VerdictAccept, ""} }

// xtMatch is a match of iptables; its text is the one of nft.
type xtMatch struct {
	text string
	expr.Match
}

func (s xtMatch) String() string { return s.text }

func (s xtMatch) compile(*compiler) []expr.Any {
	m := s.Match
	return []expr.Any{&m}
}

// XTDport holds for packets of TCP or UDP to a port: iptables' `-m udp --dport`. The rule
// asks for the protocol before (ProtoIs).
func XTDport(proto uint8, port uint16) Statement {
	all, one := [2]uint16{0, 1<<16 - 1}, [2]uint16{port, port}
	if proto == unix.IPPROTO_TCP {
		return xtMatch{fmt.Sprintf("tcp dport %d", port),
			expr.Match{Name: "tcp", Info: &xt.Tcp{SrcPorts: all, DstPorts: one}}}
	}
	return xtMatch{fmt.Sprintf("udp dport %d", port),
		expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: all, DstPorts: one}}}
}

// stateDNAT is of linux/netfilter/xt_conntrack.h.
const stateDNAT = 1 << 7

// XTRedirected is Redirected in iptables' words: `-m conntrack --ctstate DNAT`.
func XTRedirected() Statement {
	var info xt.ConntrackMtinfo3
	info.MatchFlags, info.StateMask = uint16(xt.ConntrackState), stateDNAT
	for _, a := range []*net.IP{&info.OrigSrcAddr, &info.OrigDstAddr, &info.ReplSrcAddr, &info.ReplDstAddr} {
		*a = net.IPv4zero // of no family when it is marshalled
	}
	for _, m := range []*net.IPMask{&info.OrigSrcMask, &info.OrigDstMask, &info.ReplSrcMask, &info.ReplDstMask} {
		*m = make(net.IPMask, net.IPv6len)
	}
	return xtMatch{"ct status dnat", expr.Match{Name: "conntrack", Rev: 3, Info: &info}}
}

// Commented is a rule with a comment, which nft and iptables show.
type Commented struct {
	Rule    Rule
	Comment string
}

// Rehead deletes rules of a chain, by their handles, and puts others at its head, in one
// transaction. The chain may be anybody's. ErrGone tells that there is no such chain or
// rule any more.
func (c *Conn) Rehead(t Table, chain string, del []uint64, head []Commented) error {
	err := c.commit(t.String(), func(tx *transaction) error {
		table := t.handle()
		at := &nftables.Chain{Table: table, Name: chain}
		for _, h := range del {
			if err := tx.nl.DelRule(&nftables.Rule{Table: table, Chain: at, Handle: h}); err != nil {
				return err
			}
		}
		rules := compiler{conn: tx.nl, table: table}
		for _, r := range slices.Backward(head) {
			var exprs []expr.Any
			for _, s := range r.Rule {
				exprs = append(exprs, s.compile(&rules)...)
			}
			tx.nl.InsertRule(&nftables.Rule{Table: table, Chain: at, Exprs: exprs,
				UserData: userdata.AppendString(nil, userdata.TypeComment, r.Comment)})
		}
		return rules.err
	})
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// ErrGone is Rehead's where somebody else deleted what it was to change.
var ErrGone = errors.New("changed meanwhile")
