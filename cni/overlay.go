package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
)

// Path is the way that packets take to another node's pods.
type Path string

// The paths. A packet keeps its pod's addresses on all of them.
const (
	Unreachable Path = ""
	Direct      Path = "direct"    // a route by the node's address, on a network that both are on
	VXLAN       Path = "vxlan"     // in UDP, through routers (RFC 7348)
	WireGuard   Path = "wireguard" // in UDP, encrypted, also through address translation
	Relayed     Path = "relay"     // by WireGuard within WireGuard to a third node, which cannot read it
	// RelayedClear is by WireGuard to a third node, which can read it, and from there to the
	// peer: one of the two knows no other way.
	RelayedClear Path = "relay-clear"
)

// End is what counts of one of two nodes for the path between them.
type End struct {
	Encrypts bool // its configuration demands it, where the other's does too
	HasKey   bool // the other knows its key for WireGuard
	// Hidden: the other sees its packets come from an address that is not its own, as
	// behind a router that translates addresses. Nobody can begin to talk to it.
	Hidden bool
}

// Choose is the path between two nodes. Both ends come to the same one, since each
// knows the same of both. shared says that a network without a router between has both.
func Choose(self, peer End, shared bool) Path {
	keys := self.HasKey && peer.HasKey
	switch {
	case keys && self.Encrypts && peer.Encrypts:
		return WireGuard
	case shared:
		return Direct
	case !self.Hidden && !peer.Hidden:
		return VXLAN
	case keys:
		return WireGuard
	}
	return Unreachable
}

// Overlay says how the network passes routers.
type Overlay struct {
	VXLANPort uint16 // default 4789, IANA's (RFC 7348, section 5)
	VXLANID   int    // default 1; like the port one for the cluster
	// WireGuardPort is where this node's is reached, DefaultWireGuardPort by default.
	WireGuardPort uint16
	// Program is shoal-tunnel, for kernels without WireGuard, Socket where it is told what
	// to do; empty: there is none.
	Program, Socket string
	// Ended is called when shoal-tunnel has ended.
	Ended func()
}

// Defaults of Overlay.
const (
	DefaultVXLANPort = 4789
	DefaultVXLANID   = 1
)

// overlay is what a network has of tunnels on the node.
type overlay struct {
	mu   sync.Mutex
	self Self
	conn *nft.Conn
	// fenced is what the tables hold that keep strangers out of tunnels.
	fenced map[nft.Table]string
	begun  bool // what earlier processes left was looked for
	most   int  // MTU of the narrowest tunnel in use; 0: none
	outer  tunnel
	inner  tunnel // within the outer one, through a third node (inner.go)
	nested bool   // there may be something of the inner one
	// relayed are the peers whose packets another node hands on now.
	relayed map[Key]Path
}

// Self is this node.
type Self struct {
	Nodes []netip.Addr // its addresses, which others reach it at
	Key   Key          // private, of its WireGuard; zero: it has none
}

// tunnelProtocol marks the routes through tunnels, as routeProtocol the others.
const tunnelProtocol = routeProtocol + 1

// way is where the packets to a peer go first, as the kernel's routes have it.
type way struct {
	peer   Peer
	self   netip.Addr // by which the peer's node has one name in all tunnels
	path   Path
	outer  netip.Addr // of the peer's node
	link   int        // interface to it
	linked bool       // the kernel has a way to it now
}

// SyncPeers makes the ways to other nodes' pods exactly these, each by its path; it
// returns the paths by the peers' names. Without a tunnel it costs what SyncRoutes does.
func (n *Network) SyncPeers(self Self, peers []Peer) (map[string]Path, error) {
	n.overlay.mu.Lock()
	defer n.overlay.mu.Unlock()
	n.overlay.self = self
	n.nameTunnels()
	var direct []Peer
	ways := map[Path][]way{}
	paths := map[string]Path{}
	var errs []error
	whole := map[string]cidr.Prefixes{} // a node may be several peers
	for _, p := range peers {
		whole[p.Name] = append(whole[p.Name], p.PodCIDRs...)
	}
	for _, p := range peers {
		w := n.wayTo(p)
		w.self = identityOf(whole[p.Name])
		if before, known := paths[p.Name]; !known || before == Direct {
			paths[p.Name] = w.path
		}
		switch w.path {
		case Direct:
			direct = append(direct, p)
		case Unreachable:
			errs = append(errs, fmt.Errorf(
				"pods of node %s: addresses are translated between it and this node, and one of them has no key for an "+
					"encrypted tunnel yet", p.Name))
		default:
			ways[w.path] = append(ways[w.path], w)
		}
	}
	if keyed := ways[WireGuard]; len(keyed) > 0 {
		ways[WireGuard] = n.overlay.outer.byKey(keyed)
	}
	routes := tunnelRoutes{}
	n.overlay.relayed = nil
	// What leads through a tunnel from now on replaces a route, and is there before
	// others go: no packet is without a way.
	errs = append(errs, n.syncVXLAN(ways[VXLAN], routes))
	inner, err := n.syncWireGuard(ways[WireGuard], routes)
	errs = append(errs, err)
	if len(inner) > 0 {
		ways[Relayed] = inner
	}
	for _, w := range ways[WireGuard] {
		if path, relayed := n.overlay.relayed[w.peer.Key]; relayed {
			paths[w.peer.Name] = path
		}
	}
	errs = append(errs, routes.replace(), n.SyncRoutes(direct), n.removeTunnelRoutes(routes))
	if n.overlay.begun && n.overlay.most == 0 && len(ways) == 0 {
		n.setMost(nil)
		return paths, errors.Join(errs...)
	}
	errs = append(errs, n.tidyVXLAN(ways[VXLAN]), n.tidyInner(inner), n.tidyTunnel(&n.overlay.outer, ways[WireGuard]))
	n.overlay.begun = errors.Join(errs...) == nil
	n.setMost(ways)
	return paths, errors.Join(errs...)
}

// wayTo finds how to reach a peer.
func (n *Network) wayTo(p Peer) way {
	w := way{peer: p, outer: n.outerOf(p)}
	shared, known := n.shares(p)
	if !known {
		shared = !n.tunnelled(p) // SyncRoutes tells what is wrong, and keeps what is there
	}
	if w.path = Choose(p.Self, p.End, shared); shared { // encrypted, then: nothing is between them
		w.peer.Self.Hidden, w.peer.End.Hidden, w.peer.Relay = false, false, Key{}
	}
	if w.path != Direct {
		if route, err := routeTo(w.outer); err == nil {
			w.linked, w.link = true, route.LinkIndex
		}
	}
	return w
}

// shares tells whether there is no router between this node and a peer: for none of the
// families that both have addresses of, so that both ends find the same. known is false as
// long as this node has no route to any of these.
func (n *Network) shares(p Peer) (shared, known bool) {
	var to []netip.Addr
	for _, f := range outerFamilies {
		if a := firstOf(p.Nodes, f); a.IsValid() && n.localOf(f).IsValid() {
			to = append(to, a)
		}
	}
	if len(to) == 0 {
		to = []netip.Addr{p.Via}
	}
	shared = true
	for _, a := range to {
		if route, err := routeTo(a); err == nil {
			known, shared = true, shared && onLink(route)
		}
	}
	return shared, known
}

// byKey makes one way of those of one key, which has all ranges of its node. A key that
// another node shows too, which is a lie of one of them, stays with the first that was seen
// with it: it proves itself only where packets arrive.
func (t *tunnel) byKey(ways []way) (out []way) {
	if t.names == nil {
		t.names = map[Key]string{}
	}
	there := map[Key]map[string]bool{}
	for _, w := range ways {
		if there[w.peer.Key] == nil {
			there[w.peer.Key] = map[string]bool{}
		}
		there[w.peer.Key][w.peer.Name] = true
	}
	for k, name := range t.names {
		if !there[k][name] {
			delete(t.names, k)
		}
	}
	at := map[Key]int{}
	for _, w := range ways {
		if _, seen := t.names[w.peer.Key]; !seen {
			t.names[w.peer.Key] = w.peer.Name
		}
		if t.names[w.peer.Key] != w.peer.Name {
			continue
		}
		if i, known := at[w.peer.Key]; known {
			out[i].peer.PodCIDRs = append(slices.Clone(out[i].peer.PodCIDRs), w.peer.PodCIDRs...)
			continue
		}
		at[w.peer.Key] = len(out)
		out = append(out, w)
	}
	return out
}

// outerOf is the peer's address that tunnels go to, of the first family that both nodes
// have an address of: in whatever order they tell theirs, they choose the same.
func (n *Network) outerOf(p Peer) netip.Addr {
	for _, f := range outerFamilies {
		if at := firstOf(p.Nodes, f); at.IsValid() && n.localOf(f).IsValid() {
			return at
		}
	}
	return p.Via
}

// localOf is this node's own address of a family.
func (n *Network) localOf(f nft.Family) netip.Addr { return firstOf(n.overlay.self.Nodes, f) }

func firstOf(list []netip.Addr, f nft.Family) netip.Addr {
	for _, a := range list {
		if nft.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

// routeTo is the route that the node has to an address, with the range that it is for.
func routeTo(a netip.Addr) (netlink.Route, error) {
	if !a.IsValid() {
		return netlink.Route{}, errors.New("no address")
	}
	list, err := netlink.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return netlink.Route{}, err
	}
	if len(list) == 0 {
		return netlink.Route{}, unix.ENETUNREACH
	}
	return list[0], nil
}

// onLink tells whether a route leads to a neighbour: without a gateway, and not as
// the default route of an interface with one other end does, which has a router there.
func onLink(r netlink.Route) bool {
	if len(r.Gw) > 0 || r.Via != nil || len(r.MultiPath) > 0 {
		return false
	}
	if r.Dst == nil {
		return false
	}
	ones, _ := r.Dst.Mask.Size()
	return ones > 0
}

// gateways are the node's own addresses in its pod networks, by family: what the node
// itself sends through a tunnel is from them. With its own address the answer of a pod
// would take another way back, on which nobody knows the pod.
func (n *Network) gateways() map[nft.Family]netip.Addr {
	out := map[nft.Family]netip.Addr{}
	for _, s := range n.stacks {
		out[s.Family] = s.gateway()
	}
	return out
}

// gatewayOf is the address that a node has in one of its pod networks.
func gatewayOf(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

// identityOf is the range by which a node has one name in all tunnels.
func identityOf(cidrs cidr.Prefixes) netip.Addr {
	for _, p := range append(cidrs.V4(), cidrs.V6()...) {
		return gatewayOf(p)
	}
	return netip.Addr{}
}

// tunnelRoutes are the routes through tunnels as they are to be.
type tunnelRoutes map[netip.Prefix]*netlink.Route

// add leads a peer's pods to an interface.
func (t tunnelRoutes) add(n *Network, w way, link int) {
	for _, c := range w.peer.PodCIDRs {
		c = c.Masked()
		src, served := n.gateways()[nft.FamilyOf(c.Addr())]
		if !served || n.ownRange(c) {
			continue
		}
		r := &netlink.Route{Dst: prefixNet(c), LinkIndex: link, Src: src.AsSlice(), Protocol: tunnelProtocol}
		if w.path == VXLAN {
			r.Gw, r.Flags = hopTo(c, vtepOf(w.self)).AsSlice(), int(netlink.FLAG_ONLINK)
		} else {
			r.Scope = netlink.SCOPE_LINK
		}
		t[c] = r
	}
}

func (n *Network) ownRange(c netip.Prefix) bool {
	return slices.ContainsFunc(n.cfg.PodCIDRs, func(own netip.Prefix) bool { return own.Masked() == c })
}

func (t tunnelRoutes) replace() error {
	var errs []error
	for dst, r := range t {
		if err := netlink.RouteReplace(r); err != nil {
			errs = append(errs, fmt.Errorf("route to pods %s through a tunnel: %w", dst, err))
		}
	}
	return errors.Join(errs...)
}

// listTunnelRoutes are the routes through tunnels that there are, of both families.
func listTunnelRoutes() (out []netlink.Route, err error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		ours := &netlink.Route{Protocol: tunnelProtocol}
		list, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, ours, netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		out = append(out, list...)
	}
	return out, nil
}

func (n *Network) removeTunnelRoutes(want tunnelRoutes) error {
	if n.overlay.begun && n.overlay.most == 0 && len(want) == 0 {
		return nil // there were none before either
	}
	have, err := listTunnelRoutes()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range have {
		dst, _ := routeKey(r)
		if w, ok := want[dst]; ok && w.LinkIndex == r.LinkIndex {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("delete route to %s: %w", dst, err))
		}
	}
	return errors.Join(errs...)
}

// tunnelled tells whether packets to a peer go through a tunnel now.
func (n *Network) tunnelled(p Peer) bool {
	have, err := listTunnelRoutes()
	return err == nil && slices.ContainsFunc(have, func(r netlink.Route) bool {
		dst, _ := routeKey(r)
		return slices.ContainsFunc(p.PodCIDRs, func(c netip.Prefix) bool { return c.Masked() == dst })
	})
}

// setMost has pods that are connected from now on send what fits into the narrowest
// tunnel that is in use. Others learn that from their node, which is the first router
// on the way and says so (RFC 1191, RFC 8201).
func (n *Network) setMost(ways map[Path][]way) {
	most := 0
	for path, list := range ways {
		for _, w := range list {
			if mtu := w.mtu(path); most == 0 || mtu < most {
				most = mtu
			}
		}
	}
	n.overlay.most = most
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tunnelMTU = most
}

// mtu is how large a packet may be in a tunnel of a path to the peer.
func (w way) mtu(path Path) int {
	under := defaultMTU
	if w.linked {
		if l, err := netlink.LinkByIndex(w.link); err == nil {
			under = l.Attrs().MTU
		}
	}
	return under - overhead(path, w.outer)
}

// overhead is what a tunnel adds to a packet: an IP header, one of UDP (8 bytes), and
// VXLAN's with the frame's own (8 + 14; RFC 7348, section 5), or WireGuard's with its
// tag (16 + 16; the protocol's paper, section 5.4.6). The address that WireGuard has of
// a peer may change its family, so that the larger one counts, but in the inner tunnel.
func overhead(path Path, outer netip.Addr) int {
	const ip4, ip6 = 20, 40
	ip, tunnel := ip4, 8+22
	if outer.Is6() || path == WireGuard {
		ip = ip6
	}
	if path == WireGuard || path == Relayed {
		tunnel = 8 + 32
	}
	return ip + tunnel
}

// podMTU is that of pods which are connected now; n.mu is held.
func (n *Network) podMTU() int {
	if n.cfg.MTU != 0 || n.tunnelMTU == 0 {
		return n.mtu
	}
	return min(n.mtu, n.tunnelMTU)
}
