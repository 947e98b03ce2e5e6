package cni

import (
	"crypto/sha1"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

// One interface a family of nodes' addresses has all tunnels of VXLAN. The kernel
// learns nothing by itself: for each peer there is
//
//	route       its pods' range -> its address in that range, on this interface
//	neighbour   that address    -> a hardware address made of it
//	forwarding  the latter      -> the node's address, in UDP
//
// What is not there is not sent. All of it stays while no process of ours is there.

// vxlanName is the interface's name for tunnels between nodes' addresses of a family.
func (n *Network) vxlanName(outer nft.Family) string {
	suffix := "-vx"
	if outer == nft.V6 {
		suffix = "-vx6"
	}
	const most = unix.IFNAMSIZ - 1
	return n.cfg.Bridge[:min(len(n.cfg.Bridge), most-len(suffix))] + suffix
}

// vtepOf is the hardware address of a node in tunnels, of an address that is its own:
// both ends make it of what they know anyway.
func vtepOf(identity netip.Addr) net.HardwareAddr {
	if identity.Is4() {
		b := identity.As4()
		return net.HardwareAddr{0x0e, 0x58, b[0], b[1], b[2], b[3]}
	}
	sum := sha1.Sum(identity.AsSlice())
	return append(net.HardwareAddr{0x0e}, sum[:5]...)
}

var outerFamilies = []nft.Family{nft.V4, nft.V6}

func of(ways []way, outer nft.Family) (out []way) {
	for _, w := range ways {
		if nft.FamilyOf(w.outer) == outer {
			out = append(out, w)
		}
	}
	return out
}

// syncVXLAN makes interfaces and their entries for these peers, and adds their routes.
func (n *Network) syncVXLAN(ways []way, routes tunnelRoutes) error {
	var errs []error
	for _, outer := range outerFamilies {
		list := of(ways, outer)
		if len(list) == 0 {
			continue
		}
		// Strangers are kept out before there is something to get at.
		if err := n.fence(outer, list); err != nil {
			errs = append(errs, err)
			continue
		}
		link, err := n.vxlanDevice(outer, list)
		if err != nil {
			errs = append(errs, fmt.Errorf("tunnel interface: %w", err))
			continue
		}
		for _, w := range list {
			if err := n.addVTEP(link, w); err != nil {
				errs = append(errs, fmt.Errorf("tunnel to node %s: %w", w.peer.Name, err))
				continue
			}
			routes.add(n, w, link)
		}
	}
	return errors.Join(errs...)
}

// vxlanDevice returns the interface's index with everything about it as it must be.
func (n *Network) vxlanDevice(outer nft.Family, ways []way) (int, error) {
	mtu := ways[0].mtu(VXLAN)
	for _, w := range ways {
		mtu = min(mtu, w.mtu(VXLAN))
	}
	name := n.vxlanName(outer)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, mtu, vtepOf(identityOf(n.cfg.PodCIDRs))
	want := &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: n.cfg.Overlay.VXLANID, Port: int(n.cfg.Overlay.VXLANPort),
		SrcAddr: n.localOf(outer).AsSlice(), Learning: false,
	}
	link, err := ensureVXLAN(want)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, n.dressTunnel(link, mtu)
}

// ensureVXLAN makes an interface, or makes it anew where it is another one: what
// differs cannot be changed.
func ensureVXLAN(want *netlink.Vxlan) (netlink.Link, error) {
	have, err := netlink.LinkByName(want.Name)
	if err == nil && !sameVXLAN(have, want) {
		if have.Type() != "vxlan" {
			return nil, fmt.Errorf("interface %s exists and is no tunnel; remove it", want.Name)
		}
		if err := deleteLink(want.Name); err != nil {
			return nil, err
		}
	} else if err == nil {
		return have, nil
	}
	if err := netlink.LinkAdd(want); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("create %s: %w (it takes the kernel's CONFIG_VXLAN)", want.Name, err)
	}
	return netlink.LinkByName(want.Name)
}

func sameVXLAN(l netlink.Link, want *netlink.Vxlan) bool {
	have, ok := l.(*netlink.Vxlan)
	return ok && have.VxlanId == want.VxlanId && have.Port == want.Port && have.SrcAddr.Equal(want.SrcAddr) &&
		!have.Learning && have.HardwareAddr.String() == want.HardwareAddr.String()
}

// dressTunnel gives a tunnel's interface the node's addresses in the pod networks,
// switches and MTU, and brings it up.
func (n *Network) dressTunnel(link netlink.Link, mtu int) error {
	name := link.Attrs().Name
	gateways := n.gateways()
	ipv6 := "1"
	if gateways[nft.V6].IsValid() {
		ipv6 = "0"
	}
	for _, s := range [][2]string{
		// Packets may come through a tunnel before those to there go through it.
		{"net/ipv4/conf/" + name + "/rp_filter", "2"},
		{"net/ipv4/conf/" + name + "/accept_redirects", "0"},
		{"net/ipv4/conf/" + name + "/send_redirects", "0"},
		{"net/ipv6/conf/" + name + "/accept_ra", "0"},
		{"net/ipv6/conf/" + name + "/disable_ipv6", ipv6},
	} {
		if err := writeSysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	if link.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("MTU of %s: %w", name, err)
		}
	}
	if err := n.setTunnelAddrs(link, slices.Collect(maps.Values(gateways))); err != nil {
		return err
	}
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	return nil
}

// setTunnelAddrs gives an interface these addresses and no others but its own of the
// link. What is masqueraded on its way into the tunnel takes one of them.
func (n *Network) setTunnelAddrs(link netlink.Link, want []netip.Addr) error {
	have, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", link.Attrs().Name, err)
	}
	there := map[netip.Addr]bool{}
	for _, a := range have {
		addr := addrOf(a.IP)
		there[addr] = true
		if addr.IsLinkLocalUnicast() || slices.Contains(want, addr) {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("remove address %s: %w", a.IPNet, err)
		}
	}
	for _, a := range want {
		if there[a] {
			continue
		}
		addr := &netlink.Addr{IPNet: hostNet(a)}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD // it is to be of use at once
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s of %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

// addVTEP makes a peer's entries, or changes them where its node has another address.
func (n *Network) addVTEP(link int, w way) error {
	mac := vtepOf(w.self)
	if err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: w.outer.AsSlice(), HardwareAddr: mac,
	}); err != nil {
		return fmt.Errorf("forwarding entry for %s: %w", w.outer, err)
	}
	for _, hop := range n.hopsOf(w) {
		if err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link, Family: int(familyNumber(hop)), State: netlink.NUD_PERMANENT,
			IP: hop.AsSlice(), HardwareAddr: mac,
		}); err != nil {
			return fmt.Errorf("neighbour %s: %w", hop, err)
		}
	}
	return nil
}

// hopsOf are the peer's addresses in the tunnel, of the families that this node serves.
func (n *Network) hopsOf(w way) (out []netip.Addr) {
	for _, c := range w.peer.PodCIDRs {
		if _, served := n.gateways()[nft.FamilyOf(c.Addr())]; served {
			out = append(out, hopTo(c, vtepOf(w.self)))
		}
	}
	return out
}

// hopTo is a node's address in a tunnel for one of its ranges: with IPv4 its own in the
// range. With IPv6 one of the link, of its hardware address (RFC 4291, appendix A), for
// the kernel takes no hop to which another interface leads, as while a path changes.
func hopTo(c netip.Prefix, mac net.HardwareAddr) netip.Addr {
	if c.Addr().Is4() {
		return gatewayOf(c)
	}
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

func familyNumber(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// tidyVXLAN removes what no peer needs any more.
func (n *Network) tidyVXLAN(ways []way) error {
	var errs []error
	for _, outer := range outerFamilies {
		list := of(ways, outer)
		if len(list) > 0 {
			errs = append(errs, n.tidyEntries(outer, list))
			continue
		}
		err := deleteVXLAN(n.vxlanName(outer))
		if err == nil {
			err = n.overlay.unfence(n.fenceTable(outer))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func deleteVXLAN(name string) error {
	if l, err := netlink.LinkByName(name); err != nil || l.Type() != "vxlan" {
		return nil // none, or somebody else's
	}
	return deleteLink(name)
}

func (n *Network) tidyEntries(outer nft.Family, ways []way) error {
	link, err := netlink.LinkByName(n.vxlanName(outer))
	if err != nil {
		return err
	}
	index := link.Attrs().Index
	macs, hops := map[string]bool{}, map[netip.Addr]bool{}
	for _, w := range ways {
		macs[vtepOf(w.self).String()] = true
		for _, h := range n.hopsOf(w) {
			hops[h] = true
		}
	}
	var errs []error
	for _, family := range []int{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		have, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, family) })
		if err != nil {
			return fmt.Errorf("entries of %s: %w", link.Attrs().Name, err)
		}
		for _, e := range have {
			keep := hops[addrOf(e.IP)]
			if family == unix.AF_BRIDGE {
				keep = macs[e.HardwareAddr.String()]
			}
			if keep || e.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			e.Family = family
			if err := netlink.NeighDel(&e); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("delete entry %s of %s: %w", e.IP, link.Attrs().Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// VXLAN proves nothing of who sends. So the node takes packets at its port from other
// nodes' addresses alone, and forwards none to another node but another node's: a pod's
// would come from an address of this node there, and what is in them be taken for
// anybody's.
var (
	tunnelPorts = &nft.Set{Name: "ports", Key: nft.Key{nft.Dport()}.Type()}
	tunnelNodes = map[nft.Family]*nft.Set{
		nft.V4: {Name: "nodes", Key: nft.Key{nft.V4.Saddr()}.Type()},
		nft.V6: {Name: "nodes", Key: nft.Key{nft.V6.Saddr()}.Type()},
	}
)

func (n *Network) fenceTable(outer nft.Family) nft.Table {
	return nft.Table{Family: outer, Name: n.cfg.Table + "-vxlan"}
}

// fence writes the table for these peers, where it does not hold them.
func (n *Network) fence(outer nft.Family, ways []way) error {
	nodes := make([]netip.Addr, 0, len(ways))
	for _, w := range ways {
		nodes = append(nodes, w.outer)
	}
	return n.overlay.setFence(n.fenceObjects(outer, nodes))
}

// setFence writes a table that does not hold this.
func (o *overlay) setFence(want nft.Objects) error {
	if err := o.open(); err != nil {
		return err
	}
	text := want.String()
	if o.fenced[want.Table] == text && o.conn.Intact(want.Table) {
		return nil
	}
	if err := o.conn.Reset(want); err != nil {
		return err
	}
	if o.fenced == nil {
		o.fenced = map[nft.Table]string{}
	}
	o.fenced[want.Table] = text
	return nil
}

func (o *overlay) open() (err error) {
	if o.conn == nil {
		o.conn, err = nft.Open()
	}
	return err
}

func (n *Network) fenceObjects(outer nft.Family, nodes []netip.Addr) nft.Objects {
	o := nft.NewObjects(n.fenceTable(outer))
	set := tunnelNodes[outer]
	o.AddSets(tunnelPorts, set)
	o.Add(tunnelPorts, nft.Data{}.Port(n.cfg.Overlay.VXLANPort)[:2], nil) // a key of one field is not padded
	for _, a := range nodes {
		o.Add(set, nft.Data{}.Addr(a), nil)
	}
	o.AddChain("strangers", nft.Hook{})
	o.AddRule("strangers", nft.In(nft.Key{outer.Saddr()}, set), nft.Return())
	o.AddRule("strangers", nft.Drop())
	o.AddChain("to-this-node", nft.Hook{Kind: nft.Filter, At: nft.Input, Priority: nft.PriorityFilter})
	o.AddRule("to-this-node", nft.DportIn(unix.IPPROTO_UDP, tunnelPorts), nft.Goto("strangers"))
	o.AddChain("to-others", nft.Hook{Kind: nft.Filter, At: nft.Forward, Priority: nft.PriorityFilter})
	o.AddRule("to-others", nft.DportIn(unix.IPPROTO_UDP, tunnelPorts), nft.In(nft.Key{outer.Daddr()}, set),
		nft.Goto("strangers"))
	return o
}

func (o *overlay) unfence(t nft.Table) error {
	if err := o.open(); err != nil {
		return err
	}
	delete(o.fenced, t)
	if err := o.conn.Delete(t); err != nil {
		return err
	}
	if len(o.fenced) == 0 {
		o.conn.Close()
		o.conn = nil
	}
	return nil
}
