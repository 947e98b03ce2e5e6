package cni

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

// Two hidden nodes whose packets a third one hands on have a tunnel of their own within
// those to the third, so that it sees ciphertext alone:
//
//	pod -> shoal0-wg-in -> UDP between the two nodes' bridges' addresses -> shoal0-wg
//	    -> the third -> shoal0-wg -> shoal0-wg-in -> pod
//
// The third need not know of it: to it these are packets between the two nodes' pod ranges.
// From it each of the two takes the address of the other's bridge alone, and from that
// address only what is for the inner tunnel (a table takes no packet by the outer interface
// whose answer would go by the inner one): it cannot speak in the name of the other node or
// of its pods. The inner tunnel has a key of its own, so that no handshake of the one is of
// use in the other.
//
// All else that goes to the address of the other's bridge goes into the inner tunnel. What
// the inner tunnel itself sends is told from that by its port:
//
//	rule   what this node sends from the inner tunnel's UDP port -> table innerTable
//	route  there, the address of the other's bridge -> shoal0-wg
//	       there, all else                          -> nowhere, else it were led into itself

// innerTable is the number of the table of routes, and of its rule's place before the main
// table's (ip-rule(8)).
const innerTable = 8384

// InnerPort is the UDP port of a node's inner tunnel, of that of its outer one: the next.
func InnerPort(outer uint16) uint16 {
	if outer == math.MaxUint16 {
		return outer - 1
	}
	return outer + 1
}

// InnerKey is the private key of a node's inner tunnel, of that of its outer one.
func InnerKey(outer Key) (k Key) {
	if outer == (Key{}) {
		return k
	}
	h := hmac.New(sha256.New, outer[:])
	_, _ = h.Write([]byte("shoal inner tunnel 1")) // never fails
	copy(k[:], h.Sum(nil))
	k[0], k[31] = k[0]&248, k[31]&127|64 // RFC 7748, section 5
	return k
}

// knows tells whether the tunnel has a peer.
func (t *tunnel) knows(peer Key) bool {
	_, known := t.endpoints[peer]
	return known
}

// innerWay is the way through the inner tunnel to a peer that is reached by the interface
// link; there is none if the peer knows no inner tunnel.
func (n *Network) innerWay(w way, link int) (way, bool) {
	to, _ := n.innerEnds(w.peer)
	if w.peer.Inner == (Key{}) || !to.IsValid() {
		return way{}, false
	}
	w.path, w.outer, w.link, w.linked = Relayed, to, link, true
	p := &w.peer
	p.Key, p.Port = p.Inner, InnerPort(p.Port)
	// Within the outer tunnel nobody translates addresses.
	p.Self.Hidden, p.End.Hidden, p.Relay, p.At = false, false, Key{}, netip.AddrPort{}
	return w, true
}

// innerEnds are the addresses of the inner tunnel to a peer, of the first family that both
// nodes have pods of.
func (n *Network) innerEnds(p Peer) (peer, self netip.Addr) {
	gateways := n.gateways()
	for _, f := range outerFamilies {
		for _, c := range p.PodCIDRs {
			if nft.FamilyOf(c.Addr()) == f && gateways[f].IsValid() {
				return gatewayOf(c), gateways[f]
			}
		}
	}
	return netip.Addr{}, netip.Addr{}
}

// openInner makes the inner tunnel, through which nothing passes yet, and leads the peers'
// pods there. What it sends and takes passes the interface link, and nothing else from its
// peers there.
func (n *Network) openInner(inner []way, link int, routes tunnelRoutes) error {
	if len(inner) == 0 {
		return nil
	}
	t := &n.overlay.inner
	own, device, err := n.openTunnel(t, Relayed, inner)
	if err != nil {
		return err
	}
	have, err := device.read()
	if err != nil {
		return err
	}
	if err := t.configure(device, t.identity(have)); err != nil {
		return err
	}
	if err := n.openPassage(inner, link); err != nil {
		return err
	}
	lead := tunnelRoutes{}
	for _, w := range inner {
		lead.add(n, w, own.Attrs().Index)
	}
	if err := lead.replace(); err != nil {
		return err
	}
	maps.Copy(routes, lead)
	return nil
}

func (n *Network) openPassage(inner []way, link int) error {
	for _, f := range outerFamilies {
		list := of(inner, f)
		if len(list) == 0 {
			continue
		}
		if err := n.overlay.setFence(n.innerFence(f)); err != nil {
			return err
		}
		if err := n.leadInner(f, list, link); err != nil {
			return err
		}
	}
	return nil
}

func (n *Network) innerFenceTable(f nft.Family) nft.Table {
	return nft.Table{Family: f, Name: n.cfg.Table + "-relay"}
}

func (n *Network) innerFence(f nft.Family) nft.Objects {
	o := nft.NewObjects(n.innerFenceTable(f))
	o.AddSets(tunnelPorts)
	o.Add(tunnelPorts, nft.Data{}.Port(n.overlay.inner.port)[:2], nil) // a key of one field is not padded
	o.AddChain("handed-on", nft.Hook{})
	o.AddRule("handed-on", nft.DaddrIs(n.gateways()[f]), nft.DportIn(unix.IPPROTO_UDP, tunnelPorts), nft.Return())
	o.AddRule("handed-on", nft.Drop())
	// Before connections are tracked, and after fragments are put together.
	o.AddChain("enter", nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw})
	o.AddRule("enter", nft.FromInterface(n.overlay.outer.name), nft.SaddrBy(n.overlay.inner.name), nft.Goto("handed-on"))
	return o
}

// leadInner leads what the inner tunnel sends in a family into the interface link.
func (n *Network) leadInner(f nft.Family, inner []way, link int) error {
	family := int(f.AF())
	nowhere := &netlink.Route{Table: innerTable, Family: family, Dst: prefixNet(netip.PrefixFrom(unspecified(f), 0)),
		Type: unix.RTN_UNREACHABLE, Protocol: tunnelProtocol, Priority: math.MaxInt32}
	if err := netlink.RouteReplace(nowhere); err != nil {
		return fmt.Errorf("routes of the inner tunnel: %w", err)
	}
	own := n.gateways()[f]
	want := map[netip.Prefix]bool{}
	for _, w := range inner {
		to := netip.PrefixFrom(w.outer, w.outer.BitLen())
		want[to] = true
		r := &netlink.Route{Table: innerTable, Dst: prefixNet(to), LinkIndex: link, Src: own.AsSlice(),
			Scope: netlink.SCOPE_LINK, Protocol: tunnelProtocol}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("route to %s by the inner tunnel's table: %w", w.outer, err)
		}
	}
	if err := n.dropInnerRoutes(family, func(r netlink.Route) bool {
		dst, _ := routeKey(r)
		return want[dst] || r.Type == unix.RTN_UNREACHABLE
	}); err != nil {
		return err
	}
	return setInnerRule(family, n.overlay.inner.port)
}

func unspecified(f nft.Family) netip.Addr {
	if f == nft.V6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

func (n *Network) dropInnerRoutes(family int, keep func(netlink.Route) bool) error {
	in := &netlink.Route{Table: innerTable}
	have, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, in, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list routes of the inner tunnel: %w", err)
	}
	var errs []error
	for _, r := range have {
		if keep(r) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route to %s of the inner tunnel: %w", r.Dst, err))
		}
	}
	return errors.Join(errs...)
}

// setInnerRule has the rule that leads to the table, for this port and no other; 0: for none.
func setInnerRule(family int, port uint16) error {
	to := &netlink.Rule{Table: innerTable}
	have, err := dump(func() ([]netlink.Rule, error) {
		return netlink.RuleListFiltered(family, to, netlink.RT_FILTER_TABLE)
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		have, err = nil, nil // a kernel without the family, or without rules
	}
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	there := false
	for _, r := range have {
		if port != 0 && r.Sport != nil && *r.Sport == *netlink.NewRulePortRange(port, port) {
			there = true
			continue
		}
		r.Family = family
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete rule of the inner tunnel: %w", err)
		}
	}
	if port == 0 || there {
		return nil
	}
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = family, innerTable, innerTable
	r.IifName, r.IPProto, r.Sport = "lo", unix.IPPROTO_UDP, netlink.NewRulePortRange(port, port)
	if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("rule for the inner tunnel: %w (it takes the kernel's CONFIG_IP_MULTIPLE_TABLES)", err)
	}
	return nil
}

// syncInner gives the inner tunnel its peers. A new one is spoken to at once, so that the
// outer tunnel must lead there already.
func (n *Network) syncInner(inner []way, now time.Time) error {
	if len(inner) == 0 {
		return nil
	}
	t := &n.overlay.inner
	_, device, err := n.wireguardDevice(t)
	if err != nil {
		return err
	}
	have, err := device.read()
	if err != nil {
		return err
	}
	return t.configure(device, t.change(have, t.byKey(inner), now))
}

// tidyInner removes what no peer needs any more of the inner tunnel.
func (n *Network) tidyInner(inner []way) error {
	o := &n.overlay
	if len(inner) == 0 && o.begun && !o.nested {
		return nil // there was nothing of it before either
	}
	errs := []error{n.tidyTunnel(&o.inner, inner)}
	for _, f := range outerFamilies {
		if len(of(inner, f)) > 0 {
			continue
		}
		family := int(f.AF())
		err := errors.Join(setInnerRule(family, 0),
			n.dropInnerRoutes(family, func(netlink.Route) bool { return false }))
		if err == nil {
			err = o.unfence(n.innerFenceTable(f))
		}
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	o.nested = len(inner) > 0 || err != nil
	return err
}
