package cni

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/podnet"
)

// This network has two nftables tables of one name: the one of the ip family,
// below, with masquerading and the host ports, and the one of the bridge family,
// in sender.go, with what pods may send. Other processes, the CNI plugin's, write
// elements too: the sets keep theirs.
var (
	hostPorts = &nft.Set{ // pod address . port, on every address of the node
		Name: "hostports", Key: nft.ProtoPort().Type(), Data: nft.V4.Target(), Keep: true,
	}
	addrHostPorts = &nft.Set{ // the same for one address of the node
		Name: "addr-hostports", Key: nft.V4.AddrProtoPort().Type(), Data: nft.V4.Target(), Keep: true,
	}
	hairpins = &nft.Set{ // address pairs of pods that may reach themselves through a host port
		Name: "hairpin", Key: nft.V4.AddrPair().Type(), Keep: true,
	}
)

var (
	multicast   = netip.MustParsePrefix("224.0.0.0/4")
	loopbackNet = netip.MustParsePrefix("127.0.0.0/8")
)

func (n *Network) routedTable() nft.Table  { return nft.Table{Family: nft.V4, Name: n.cfg.Table} }
func (n *Network) bridgedTable() nft.Table { return nft.Table{Family: nft.Bridge, Name: n.cfg.Table} }

// ensureTable writes the tables in one transaction, keeping the elements of the sets.
func (n *Network) ensureTable() error {
	if n.conn == nil {
		c, err := nft.Open()
		if err != nil {
			return err
		}
		n.conn = c
	}
	bridged, err := n.bridgedObjects()
	if err != nil {
		return err
	}
	if err := n.conn.Reset(n.routedObjects(), bridged); err != nil {
		return fmt.Errorf("%w (the bridge family takes CONFIG_NF_TABLES_BRIDGE)", err)
	}
	n.tables = true
	return nil
}

func (n *Network) routedObjects() nft.Objects {
	o := nft.NewObjects(n.routedTable())
	o.AddSets(hostPorts, addrHostPorts, hairpins)
	n.addPostrouting(o)
	n.addGuard(o)
	// Just after Services, which live at the usual place: a pod asks for a host
	// port itself, and must not get with it what the cluster gave out (NodePorts)
	// or listens on (the API server). The first chain is for others, the second
	// for the node itself.
	for name, at := range map[string]nft.Point{"host-ports": nft.Prerouting, "host-ports-of-node": nft.Output} {
		o.AddChain(name, nft.Hook{Kind: nft.NAT, At: at, Priority: nft.PriorityDstNAT + 1})
		// Whatever a pod asks for, only the node's own addresses have host ports.
		for _, p := range n.notNodes() {
			o.AddRule(name, nft.DaddrIn(p), nft.Return())
		}
		o.AddRule(name, nft.V4.DNAT(nft.V4.AddrProtoPort(), addrHostPorts, nft.ToLocal()))
		o.AddRule(name, nft.ToLocal(), nft.V4.DNAT(nft.ProtoPort(), hostPorts))
	}
	return o
}

// notNodes are addresses that a node may have, but for the cluster.
func (n *Network) notNodes() (out cidr.Prefixes) {
	for _, p := range n.cfg.ServiceCIDRs.V4() {
		out = append(out, p.Masked())
	}
	for _, a := range n.cfg.DNS {
		if a.Is4() && !a.IsLoopback() {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// mayHave refuses host ports that a pod may not have on any node.
func (n *Network) mayHave(ports []podnet.HostPort) error {
	for _, p := range ports {
		at, err := p.Addr()
		if err != nil {
			return err
		}
		if nft.Proto(p.Protocol) == 0 {
			return fmt.Errorf("host port %d: unknown protocol %q", p.HostPort, p.Protocol)
		}
		for _, c := range n.notNodes() {
			if c.Contains(at) {
				return fmt.Errorf(
					"host port %d: hostIP %s is in the cluster's own range %s; give an address of the node, or none",
					p.HostPort, p.HostIP, c)
			}
		}
		for _, own := range n.cfg.OwnPorts {
			if p.HostPort == own.HostPort && nft.Proto(p.Protocol) == nft.Proto(own.Protocol) {
				return fmt.Errorf("host port %d: the node itself listens on it; choose another", p.HostPort)
			}
		}
	}
	return nil
}

func (n *Network) addPostrouting(o nft.Objects) {
	const name = "postrouting"
	o.AddChain(name, nft.Hook{Kind: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT})
	o.AddRule(name, nft.In(nft.V4.AddrPair(), hairpins), nft.Masquerade())
	// To a host port by the loopback address: the pod answers to the gateway.
	o.AddRule(name, nft.SaddrIn(loopbackNet), nft.DaddrIn(n.pool.prefix), nft.Masquerade())
	o.AddRule(name, nft.SaddrNotIn(n.pool.prefix), nft.Return())
	for _, p := range append(cidr.Prefixes{n.pool.prefix, multicast}, n.cfg.ClusterCIDRs.V4()...) {
		o.AddRule(name, nft.DaddrIn(p), nft.Return())
	}
	o.AddRule(name, nft.Masquerade())
}

// addGuard keeps pods from what listens on the node's loopback addresses: the
// bridge routes these addresses, so that host ports work on them
// (CVE-2020-8558).
func (n *Network) addGuard(o nft.Objects) {
	o.AddChain("guard", nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw})
	o.AddRule("guard", nft.NotFromLoopback(), nft.DaddrIn(loopbackNet), nft.Drop())
}

// addRules lets a pod send and forwards its host ports to it, whatever these
// were forwarded to before, in one transaction.
func (n *Network) addRules(s podnet.Sandbox, pod netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ensureLocked(); err != nil {
		return err
	}
	sender := nft.NewChange(n.bridgedTable())
	sender.Add.Add(senders, senderOf(s, pod), nil)
	ports, err := n.hostPortChange(pod, s.HostPorts)
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	if err := n.conn.Apply(sender, ports); err != nil {
		n.bridge = 0 // somebody flushed the ruleset; the next Add makes it again
		return err
	}
	if len(s.HostPorts) > 0 {
		n.takePorts(s)
	}
	return n.endOldFlows(pod, s.HostPorts)
}

// takePorts notes a pod's host ports, which are nobody else's from now on.
func (n *Network) takePorts(s podnet.Sandbox) {
	for owner, ports := range n.ports {
		n.ports[owner] = slices.DeleteFunc(slices.Clone(ports), func(p podnet.HostPort) bool {
			return slices.ContainsFunc(s.HostPorts, func(q podnet.HostPort) bool {
				return p.HostPort == q.HostPort && p.HostIP == q.HostIP &&
					nft.Proto(p.Protocol) == nft.Proto(q.Protocol)
			})
		})
	}
	n.ports[ownerOf(s)] = s.HostPorts
}

// restoreHostPorts leads the host ports that are known to their pods, as they did
// before somebody flushed the ruleset; n.mu is held. It changes nothing that is
// there.
func (n *Network) restoreHostPorts() error {
	if len(n.ports) == 0 {
		return nil
	}
	held, err := n.pool.held()
	if err != nil {
		return err
	}
	for addr, owner := range held {
		if len(n.ports[owner]) == 0 {
			continue
		}
		c, err := n.hostPortChange(addr, n.ports[owner])
		if err == nil {
			err = n.conn.Apply(c)
		}
		if err != nil {
			return fmt.Errorf("host ports of %s: %w", addr, err)
		}
	}
	return nil
}

// hostPortChange leads host ports to a pod, whatever they led to before.
func (n *Network) hostPortChange(pod netip.Addr, ports []podnet.HostPort) (nft.Change, error) {
	had, want := nft.NewObjects(n.routedTable()), nft.NewObjects(n.routedTable())
	for _, p := range ports {
		proto, to := nft.Proto(p.Protocol), nft.Target(netip.AddrPortFrom(pod, p.ContainerPort))
		switch at, err := p.Addr(); {
		case err != nil:
			return nft.Change{}, err
		case !at.IsValid():
			want.Add(hostPorts, nft.Data{}.Proto(proto).Port(p.HostPort), to)
		case at.Is4():
			want.Add(addrHostPorts, nft.AddrProtoPort(at, proto, p.HostPort), to)
		}
	}
	for set, elems := range want.Elements {
		have, err := n.conn.Elements(n.routedTable(), set)
		if err != nil {
			return nft.Change{}, err
		}
		for key := range elems {
			if to, taken := have[key]; taken {
				had.Add(set, nft.Data(key), nft.Data(to))
			}
		}
	}
	if len(ports) > 0 {
		want.Add(hairpins, pairOf(pod), nil)
	}
	return nft.Diff(had, want), nil
}

func pairOf(a netip.Addr) nft.Data { return nft.Data{}.Addr(a).Addr(a) }

// staleUDP matches flows to UDP host ports that lead elsewhere than to pod. Such a
// flow has no end of its own as long as the client goes on sending. Flows to other
// machines and to Services, at the same port, are others'.
type staleUDP struct {
	pod   netip.Addr
	ports map[uint16]bool
	node  []netip.Addr  // the node's addresses
	not   cidr.Prefixes // those without host ports
}

func (n *Network) endOldFlows(pod netip.Addr, ports []podnet.HostPort) error {
	f := staleUDP{pod: pod, ports: udpPorts(ports), not: n.notNodes()}
	if len(f.ports) == 0 {
		return nil
	}
	own, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return fmt.Errorf("addresses of the node: %w", err)
	}
	for _, a := range own {
		f.node = append(f.node, addrOf(a.IP))
	}
	_, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
	return err
}

func udpPorts(ports []podnet.HostPort) map[uint16]bool {
	out := map[uint16]bool{}
	for _, p := range ports {
		if nft.Proto(p.Protocol) == unix.IPPROTO_UDP {
			out[p.HostPort] = true
		}
	}
	return out
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s staleUDP) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP || !s.ports[f.Forward.DstPort] || addrOf(f.Reverse.SrcIP) == s.pod {
		return false
	}
	at := addrOf(f.Forward.DstIP)
	return (at.IsLoopback() || slices.Contains(s.node, at)) && !s.not.Contains(at)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// removeHostPorts asks the kernel which ports lead to the pod: another process may
// have led them there.
func (n *Network) removeHostPorts(s podnet.Sandbox, pod netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ports, ownerOf(s))
	if !n.tables {
		if err := n.ensureLocked(); err != nil {
			return err
		}
	}
	c := nft.NewChange(n.routedTable())
	for _, set := range []*nft.Set{hostPorts, addrHostPorts} {
		have, err := n.conn.Elements(n.routedTable(), set)
		if err != nil {
			if !n.conn.Has(n.routedTable()) {
				n.bridge = 0 // somebody flushed the ruleset; the next Add makes it again
				return nil
			}
			return fmt.Errorf("host ports: %w", err)
		}
		for key, to := range have {
			if nft.ParseTarget(nft.Data(to)).Addr() == pod {
				c.Del.Add(set, nft.Data(key), nft.Data(to))
			}
		}
	}
	if c.Empty() {
		return nil
	}
	c.Del.Add(hairpins, pairOf(pod), nil)
	if err := n.conn.Apply(c); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	return nil
}

func (n *Network) deleteTable() error {
	if n.conn == nil {
		c, err := nft.Open()
		if err != nil {
			return err
		}
		n.conn = c
	}
	defer func() {
		n.conn.Close()
		n.conn, n.tables = nil, false
	}()
	return n.conn.Delete(n.routedTable(), n.bridgedTable())
}
