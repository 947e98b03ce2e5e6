package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/conntrack"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/podnet"
)

// This network has an nftables table of one name for each address family of the
// pods, below, with masquerading and the host ports, and one of the bridge family,
// in sender.go, with what pods may send. Other processes, the CNI plugin's, write
// elements too: the sets keep theirs.

var (
	multicasts = map[nft.Family]netip.Prefix{
		nft.V4: netip.MustParsePrefix("224.0.0.0/4"),
		nft.V6: netip.MustParsePrefix("ff00::/8"),
	}
	loopbackNet = netip.MustParsePrefix("127.0.0.0/8")
)

func (n *Network) routedTable(f nft.Family) nft.Table { return nft.Table{Family: f, Name: n.cfg.Table} }
func (n *Network) bridgedTable() nft.Table            { return n.routedTable(nft.Bridge) }

// connect opens nftables where that was not done yet.
func (n *Network) connect() error {
	if n.conn != nil {
		return nil
	}
	c, err := nft.Open()
	if err != nil {
		return err
	}
	n.conn = c
	return nil
}

// ensureTable writes the tables in one transaction, keeping the elements of the sets.
func (n *Network) ensureTable() error {
	if err := n.connect(); err != nil {
		return err
	}
	bridged, err := n.bridgedObjects()
	if err != nil {
		return err
	}
	all := []nft.Objects{bridged}
	for _, s := range n.stacks {
		all = append(all, n.routedObjects(s))
	}
	if err := n.conn.Reset(all...); err != nil {
		return fmt.Errorf("%w (the bridge family takes CONFIG_NF_TABLES_BRIDGE)", err)
	}
	n.tables = true
	return nil
}

func (n *Network) routedObjects(s stack) nft.Objects {
	o := nft.NewObjects(n.routedTable(s.Family))
	o.AddSets(s.hostPorts, s.addrHostPorts, s.hairpins)
	n.addPostrouting(o, s)
	if s.Family == nft.V4 {
		addGuard(o)
	}
	// Just after Services, which live at the usual place: a pod asks for a host
	// port itself, and must not get with it what the cluster gave out (NodePorts)
	// or listens on (the API server). The first chain is for others, the second
	// for the node itself.
	for name, at := range map[string]nft.Point{"host-ports": nft.Prerouting, "host-ports-of-node": nft.Output} {
		o.AddChain(name, nft.Hook{Kind: nft.NAT, At: at, Priority: nft.PriorityDstNAT + 1})
		// Whatever a pod asks for, only the node's own addresses have host ports.
		for _, p := range s.only(n.notNodes()) {
			o.AddRule(name, nft.DaddrIn(p), nft.Return())
		}
		if s.Family == nft.V6 { // no packet with this address leaves the loopback interface
			o.AddRule(name, nft.DaddrIs(netip.IPv6Loopback()), nft.Return())
		}
		o.AddRule(name, s.DNAT(s.AddrProtoPort(), s.addrHostPorts, nft.ToLocal()))
		o.AddRule(name, nft.ToLocal(), s.DNAT(nft.ProtoPort(), s.hostPorts))
	}
	return o
}

// notNodes are addresses that a node may have, but for the cluster.
func (n *Network) notNodes() (out cidr.Prefixes) {
	for _, p := range n.cfg.ServiceCIDRs {
		out = append(out, p.Masked())
	}
	for _, a := range n.cfg.DNS {
		if !a.IsLoopback() {
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

func (n *Network) addPostrouting(o nft.Objects, s stack) {
	const name = "postrouting"
	o.AddChain(name, nft.Hook{Kind: nft.NAT, At: nft.Postrouting, Priority: nft.PrioritySrcNAT})
	o.AddRule(name, nft.In(s.AddrPair(), s.hairpins), nft.Masquerade())
	if s.Family == nft.V4 {
		// To a host port by the loopback address: the pod answers to the gateway.
		o.AddRule(name, nft.SaddrIn(loopbackNet), nft.DaddrIn(s.pool.prefix), nft.Masquerade())
	}
	o.AddRule(name, nft.SaddrNotIn(s.pool.prefix), nft.Return())
	for _, p := range append(cidr.Prefixes{s.pool.prefix, multicasts[s.Family]}, s.only(n.cfg.ClusterCIDRs)...) {
		o.AddRule(name, nft.DaddrIn(p), nft.Return())
	}
	o.AddRule(name, nft.Masquerade())
}

// addGuard keeps pods from what listens on the node's loopback addresses: the
// bridge routes these addresses, so that host ports work on them
// (CVE-2020-8558). The kernel itself keeps them from IPv6's.
func addGuard(o nft.Objects) {
	o.AddChain("guard", nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityRaw})
	o.AddRule("guard", nft.NotFromLoopback(), nft.DaddrIn(loopbackNet), nft.Drop())
}

// addRules lets a pod send and forwards its host ports to it, whatever these
// were forwarded to before, in one transaction.
func (n *Network) addRules(s podnet.Sandbox, pod []netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ensureLocked(); err != nil {
		return err
	}
	if err := n.tellNeighbour(n.bridge, pod); err != nil {
		return err
	}
	sender := nft.NewChange(n.bridgedTable())
	n.addSenders(sender.Add, s, pod)
	ports, err := n.hostPortChanges(pod, s.HostPorts)
	if err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	if err := n.conn.Apply(append(ports, sender)...); err != nil {
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
	held, err := n.held()
	if err != nil {
		return err
	}
	for owner, addrs := range held {
		if len(n.ports[owner]) == 0 {
			continue
		}
		c, err := n.hostPortChanges(addrs, n.ports[owner])
		if err == nil {
			err = n.conn.Apply(c...)
		}
		if err != nil {
			return fmt.Errorf("host ports of %s: %w", addrs[0], err)
		}
	}
	return nil
}

// hostPortChanges leads host ports to each address of a pod.
func (n *Network) hostPortChanges(pod []netip.Addr, ports []podnet.HostPort) (out []nft.Change, err error) {
	for _, a := range pod {
		s := n.stack(a)
		if s == nil {
			continue
		}
		c, err := n.hostPortChange(s, a, ports)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// hostPortChange leads host ports to a pod, whatever they led to before.
func (n *Network) hostPortChange(s *stack, pod netip.Addr, ports []podnet.HostPort) (nft.Change, error) {
	table := n.routedTable(s.Family)
	had, want := nft.NewObjects(table), nft.NewObjects(table)
	for _, p := range ports {
		proto, to := nft.Proto(p.Protocol), nft.Target(netip.AddrPortFrom(pod, p.ContainerPort))
		switch at, err := p.Addr(); {
		case err != nil:
			return nft.Change{}, err
		case !at.IsValid():
			want.Add(s.hostPorts, nft.Data{}.Proto(proto).Port(p.HostPort), to)
		case s.has(at):
			want.Add(s.addrHostPorts, nft.AddrProtoPort(at, proto, p.HostPort), to)
		}
	}
	for set, elems := range want.Elements {
		have, err := n.conn.Elements(table, set)
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
		want.Add(s.hairpins, pairOf(pod), nil)
	}
	return nft.Diff(had, want), nil
}

func pairOf(a netip.Addr) nft.Data { return nft.Data{}.Addr(a).Addr(a) }

// staleFlows matches flows to UDP and SCTP host ports that lead elsewhere than to pod. Such
// a flow has no end of its own as long as the client goes on sending; one of SCTP often
// has one port for ever. Flows to other machines and to Services, at the same port, are
// others'.
type staleFlows struct {
	pod   []netip.Addr
	ports map[protoPort]bool
	node  []netip.Addr  // the node's addresses
	not   cidr.Prefixes // those without host ports
}

type protoPort struct {
	proto uint8
	port  uint16
}

func (n *Network) endOldFlows(pod []netip.Addr, ports []podnet.HostPort) error {
	f := staleFlows{pod: pod, ports: endablePorts(ports), not: n.notNodes()}
	if len(f.ports) == 0 {
		return nil
	}
	own, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses of the node: %w", err)
	}
	for _, a := range own {
		f.node = append(f.node, addrOf(a.IP))
	}
	var errs []error
	for _, a := range pod {
		if s := n.stack(a); s != nil {
			errs = append(errs, conntrack.End(uint8(s.Family.AF()), f.match))
		}
	}
	return errors.Join(errs...)
}

func endablePorts(ports []podnet.HostPort) map[protoPort]bool {
	out := map[protoPort]bool{}
	for _, p := range ports {
		if proto := nft.Proto(p.Protocol); proto == unix.IPPROTO_UDP || proto == unix.IPPROTO_SCTP {
			out[protoPort{proto, p.HostPort}] = true
		}
	}
	return out
}

func (s staleFlows) match(f conntrack.Flow) bool {
	at := f.To.Addr()
	return s.ports[protoPort{f.Proto, f.To.Port()}] && !slices.Contains(s.pod, f.By.Addr()) &&
		(at.IsLoopback() || slices.Contains(s.node, at)) && !s.not.Contains(at)
}

func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// removeHostPorts asks the kernel which ports lead to the pod: another process may
// have led them there.
func (n *Network) removeHostPorts(s podnet.Sandbox, pod []netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.ports, ownerOf(s))
	if !n.tables {
		if err := n.ensureLocked(); err != nil {
			return err
		}
	}
	for _, a := range pod {
		st := n.stack(a)
		if st == nil {
			continue
		}
		if err := n.removeHostPortsTo(st, a); err != nil {
			return fmt.Errorf("host ports: %w", err)
		}
	}
	return nil
}

// removeHostPortsTo is the same for one address; n.mu is held.
func (n *Network) removeHostPortsTo(s *stack, pod netip.Addr) error {
	table := n.routedTable(s.Family)
	c := nft.NewChange(table)
	for _, set := range []*nft.Set{s.hostPorts, s.addrHostPorts} {
		have, err := n.conn.Elements(table, set)
		if err != nil {
			if !n.conn.Intact(table) {
				n.bridge = 0 // somebody flushed the ruleset; the next Add makes it again
				return nil
			}
			return err
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
	c.Del.Add(s.hairpins, pairOf(pod), nil)
	return n.conn.Apply(c)
}

func (n *Network) deleteTable() error {
	if err := n.connect(); err != nil {
		return err
	}
	defer func() {
		n.conn.Close()
		n.conn, n.tables = nil, false
	}()
	return n.conn.Delete(n.routedTable(nft.V4), n.routedTable(nft.V6), n.bridgedTable())
}
