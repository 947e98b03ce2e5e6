package policy

import (
	"hash/fnv"
	"net/netip"
	"strconv"

	"github.com/shoal-project/shoal/cni/nft"
)

// Chains that are the same whatever policies say; doc.go draws them.
const (
	chainForward = "forward"
	chainReplies = "replies"
	chainInput   = "input"
	chainDenied  = "denied"
)

// direction is a packet's, within its flow.
type direction int

const (
	forth direction = iota // from who began the flow
	back                   // to whom
	directions
)

// words are the sets of a family that are the same whatever policies say.
type words struct {
	nft.Family
	// pods leads from a pod's address to the chain of a side and a direction.
	pods [2][directions]*nft.Set
	self *nft.Set // address pairs of isolated pods and themselves
}

var sideNames = [2]string{ingress: "ingress", egress: "egress"}

func newWords(f nft.Family) words {
	w := words{Family: f, self: &nft.Set{Name: "self", Key: f.AddrPair().Type()}}
	for side, name := range sideNames {
		for d, suffix := range []string{"", "-replies"} {
			w.pods[side][d] = &nft.Set{Name: name + suffix, Key: nft.Key{f.Saddr()}.Type(), Data: nft.Verdict}
		}
	}
	return w
}

// end is the address of a side's own pod, in a packet of a direction; other that of
// who it speaks with.
func (w words) end(side int, d direction) nft.Field {
	if (side == egress) == (d == forth) {
		return w.Saddr()
	}
	return w.Daddr()
}

func (w words) other(side int, d direction) nft.Field { return w.end(1-side, d) }

// isAt holds for packets whose destination, as the flow has it, is an address,
// protocol and port of a set.
func (w words) isAt(s *nft.Set, d direction) nft.Statement {
	if d == forth {
		return nft.In(w.AddrProtoPort(), s)
	}
	return nft.In(w.SaddrProtoPort(), s)
}

func portIn(proto uint8, s *nft.Set, d direction) nft.Statement {
	if d == forth {
		return nft.DportIn(proto, s)
	}
	return nft.SportIn(proto, s)
}

// base is what is the same whatever policies say. dns is where the agent answers
// names: of what pods send to their node it alone is subject to policies.
func (w words) base(t nft.Table, dns []netip.Addr) nft.Objects {
	o := nft.NewObjects(t)
	o.AddSets(w.self)
	for side, name := range sideNames {
		for d, suffix := range []string{"", "-replies"} {
			set := w.pods[side][d]
			o.AddSets(set)
			o.AddRule("to-"+name+suffix, nft.Vmap(nft.Key{w.end(side, direction(d))}, set))
		}
	}
	o.AddRule(chainDenied, nft.In(w.AddrPair(), w.self), nft.Return())
	o.AddRule(chainDenied, nft.Related(), nft.ProtoIs(w.ICMP()), nft.Return())
	o.AddRule(chainDenied, nft.Count(), nft.Drop())

	o.AddChain(chainForward, nft.Hook{Kind: nft.Filter, At: nft.Forward, Priority: nft.PriorityFilter})
	o.AddRule(chainForward, nft.Reply(), nft.Goto(chainReplies))
	o.AddRule(chainForward, nft.Jump("to-egress"))
	o.AddRule(chainForward, nft.Jump("to-ingress"))
	o.AddRule(chainReplies, nft.Jump("to-egress-replies"))
	o.AddRule(chainReplies, nft.Jump("to-ingress-replies"))

	o.AddChain(chainInput, nft.Hook{Kind: nft.Filter, At: nft.Input, Priority: nft.PriorityFilter})
	for _, a := range dns {
		if nft.FamilyOf(a) == w.Family {
			o.AddRule(chainInput, nft.DaddrIs(a), nft.Goto("to-dns"))
			o.Chains["to-dns"] = nft.Chain{}
		}
	}
	if _, asked := o.Chains["to-dns"]; asked {
		o.AddRule("to-dns", nft.Reply(), nft.Return())
		o.AddRule("to-dns", nft.Jump("to-egress"))
	}
	return o
}

// hash names what has no better name.
func hash(parts ...string) string {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p)) // never fails
		_, _ = h.Write([]byte{0})
	}
	return strconv.FormatUint(h.Sum64(), 36)
}
