package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

// tables names what this network has in nftables: one table with masquerading
// and the host ports, and one with what pods may send.
type tables struct {
	senders   senders
	table     *nftables.Table
	ports     *nftables.Set // proto . port : pod address . port, on every address of the node
	addrPorts *nftables.Set // the same for one address of the node
	hairpin   *nftables.Set // address pairs of pods that may reach themselves through a host port
}

var (
	multicast   = netip.MustParsePrefix("224.0.0.0/4")
	loopbackNet = netip.MustParsePrefix("127.0.0.0/8")
)

func (n *Network) newTables() *tables {
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: n.cfg.Table}
	return &tables{
		senders: n.newSenders(),
		table:   t,
		ports: &nftables.Set{
			Table: t, ID: nft.SetID(), Name: "hostports", IsMap: true, Concatenation: true,
			KeyType: nft.TypeProtoPort, DataType: nft.TypeTarget,
		},
		addrPorts: &nftables.Set{
			Table: t, ID: nft.SetID(), Name: "addr-hostports", IsMap: true, Concatenation: true,
			KeyType: nft.TypeAddrProtoPort, DataType: nft.TypeTarget,
		},
		hairpin: &nftables.Set{
			Table: t, ID: nft.SetID(), Name: "hairpin", Concatenation: true, KeyType: nft.TypeAddrPair,
		},
	}
}

// ensureTable writes the tables in one transaction, keeping the elements of the sets.
func (n *Network) ensureTable() error {
	if n.conn == nil {
		c, err := nft.Open()
		if err != nil {
			return err
		}
		n.conn = c
	}
	t := n.newTables()
	c := n.conn
	c.AddTable(t.table)
	if err := errors.Join(c.AddSet(t.ports, nil), c.AddSet(t.addrPorts, nil), c.AddSet(t.hairpin, nil)); err != nil {
		return fmt.Errorf("nftables sets: %w", err)
	}
	n.addPostrouting(t)
	n.addGuard(t)
	if err := n.dropOldChains(t); err != nil {
		return err
	}
	// Just after Services, which live at the usual place: a pod asks for a host
	// port itself, and must not get with it what the cluster gave out (NodePorts)
	// or listens on (the API server).
	for _, h := range hostPortChains {
		ch := n.baseChain(t, h.name, h.hook, *nftables.ChainPriorityNATDest+1)
		// Whatever a pod asks for, only the node's own addresses have host ports.
		for _, p := range n.notNodes() {
			c.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.DaddrIn(p, false), nft.Return())})
		}
		c.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.AddrProtoPort(), nft.Target(t.addrPorts), nft.ToLocal(), nft.DNAT())})
		c.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.ToLocal(), nft.ProtoPort(), nft.Target(t.ports), nft.DNAT())})
	}
	if err := n.queueSenders(t.senders); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables tables %s (the bridge family takes CONFIG_NF_TABLES_BRIDGE): %w", t.table.Name, err)
	}
	n.tables = t
	return nil
}

// hostPortChains forward host ports for others and for the node itself.
var hostPortChains = []struct {
	name string
	hook *nftables.ChainHook
}{{"host-ports", nftables.ChainHookPrerouting}, {"host-ports-of-node", nftables.ChainHookOutput}}

// oldChains had the host ports in earlier versions, before Services.
var oldChains = []string{"prerouting", "output"}

func (n *Network) dropOldChains(t *tables) error {
	have, err := n.conn.ListChainsOfTableFamily(t.table.Family)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	for _, c := range have {
		if c.Table.Name == t.table.Name && slices.Contains(oldChains, c.Name) {
			n.conn.FlushChain(c)
			n.conn.DelChain(c)
		}
	}
	return nil
}

// notNodes are addresses that a node may have, but for the cluster.
func (n *Network) notNodes() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range n.cfg.ServiceCIDRs {
		if p.Addr().Is4() {
			out = append(out, p.Masked())
		}
	}
	for _, a := range n.cfg.DNS {
		if a.Is4() && !a.IsLoopback() {
			out = append(out, netip.PrefixFrom(a, 32))
		}
	}
	return out
}

// mayHave refuses host ports that a pod may not have on any node.
func (n *Network) mayHave(ports []HostPort) error {
	for _, p := range ports {
		if nft.Proto(p.Protocol) == 0 {
			return fmt.Errorf("host port %d: unknown protocol %q", p.HostPort, p.Protocol)
		}
		for _, c := range n.notNodes() {
			if c.Contains(p.HostIP) {
				return fmt.Errorf("host port %d: hostIP %s is in the cluster's own range %s; give an address of the node, or none", p.HostPort, p.HostIP, c)
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

func (n *Network) addPostrouting(t *tables) {
	ch := n.baseChain(t, "postrouting", nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	n.conn.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.AddrPair(), nft.In(t.hairpin, false), nft.Masquerade())})
	// To a host port by the loopback address: the pod answers to the gateway.
	n.conn.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.SaddrIn(loopbackNet, false), nft.DaddrIn(n.pool.prefix, false), nft.Masquerade())})
	n.conn.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.SaddrIn(n.pool.prefix, true), nft.Return())})
	for _, p := range append([]netip.Prefix{n.pool.prefix, multicast}, n.cfg.ClusterCIDRs...) {
		if p.Addr().Is4() {
			n.conn.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.DaddrIn(p, false), nft.Return())})
		}
	}
	n.conn.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Masquerade()})
}

// addGuard keeps pods from what listens on the node's loopback addresses: the
// bridge routes these addresses, so that host ports work on them
// (CVE-2020-8558).
func (n *Network) addGuard(t *tables) {
	ch := n.conn.AddChain(&nftables.Chain{
		Name: "guard", Table: t.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	n.conn.FlushChain(ch)
	n.conn.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.NotFromLoopback(), nft.DaddrIn(loopbackNet, false), nft.Drop())})
}

// baseChain returns an empty NAT chain on a hook.
func (n *Network) baseChain(t *tables, name string, hook *nftables.ChainHook, prio nftables.ChainPriority) *nftables.Chain {
	ch := n.conn.AddChain(&nftables.Chain{
		Name: name, Table: t.table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: &prio,
	})
	n.conn.FlushChain(ch)
	return ch
}

// addRules lets a pod send and forwards its host ports to it, whatever these
// were forwarded to before, in one transaction.
func (n *Network) addRules(a Attachment, pod netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ensureLocked(); err != nil {
		return err
	}
	if err := n.conn.SetAddElements(n.tables.senders.pods, []nftables.SetElement{senderOf(a, pod)}); err != nil {
		return err
	}
	if len(a.HostPorts) > 0 {
		if err := n.queueHostPorts(pod, a.HostPorts); err != nil {
			return fmt.Errorf("host ports: %w", err)
		}
	}
	if err := n.conn.Flush(); err != nil {
		n.bridge = 0 // somebody flushed the ruleset; the next Add makes it again
		return err
	}
	return endOldFlows(pod, a.HostPorts)
}

func (n *Network) queueHostPorts(pod netip.Addr, ports []HostPort) error {
	t := n.tables
	var all, some []nftables.SetElement
	for _, p := range ports {
		proto, val := nft.Proto(p.Protocol), nft.ValTarget(netip.AddrPortFrom(pod, p.ContainerPort))
		switch {
		case !p.HostIP.IsValid() || p.HostIP.IsUnspecified():
			all = append(all, nftables.SetElement{Key: nft.KeyProtoPort(proto, p.HostPort), Val: val})
		case p.HostIP.Is4():
			some = append(some, nftables.SetElement{Key: nft.KeyAddrProtoPort(p.HostIP, proto, p.HostPort), Val: val})
		}
	}
	for set, elems := range map[*nftables.Set][]nftables.SetElement{t.ports: all, t.addrPorts: some} {
		if err := n.replaceElements(set, elems); err != nil {
			return err
		}
	}
	return n.conn.SetAddElements(t.hairpin, []nftables.SetElement{{Key: nft.KeyAddrPair(pod, pod)}})
}

// staleUDP matches flows to UDP host ports that lead elsewhere than to pod.
// Such a flow has no end of its own as long as the client goes on sending.
type staleUDP struct {
	pod   netip.Addr
	ports map[uint16]bool
}

func endOldFlows(pod netip.Addr, ports []HostPort) error {
	f := staleUDP{pod, map[uint16]bool{}}
	for _, p := range ports {
		if nft.Proto(p.Protocol) == unix.IPPROTO_UDP {
			f.ports[p.HostPort] = true
		}
	}
	if len(f.ports) == 0 {
		return nil
	}
	_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f)
	return err
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (s staleUDP) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_UDP || !s.ports[f.Forward.DstPort] {
		return false
	}
	to, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
	return to.Unmap() != s.pod
}

func (n *Network) replaceElements(set *nftables.Set, elems []nftables.SetElement) error {
	if len(elems) == 0 {
		return nil
	}
	have, err := n.conn.GetSetElements(set)
	if err != nil {
		return err
	}
	var old []nftables.SetElement
	for _, h := range have {
		for _, e := range elems {
			if bytes.Equal(h.Key, e.Key) {
				old = append(old, nftables.SetElement{Key: h.Key, Val: h.Val})
			}
		}
	}
	return errors.Join(n.deleteElements(set, old), n.conn.SetAddElements(set, elems))
}

func (n *Network) deleteElements(set *nftables.Set, elems []nftables.SetElement) error {
	if len(elems) == 0 {
		return nil
	}
	return n.conn.SetDeleteElements(set, elems)
}

// removeHostPorts asks the kernel which ports lead to the pod: it is the only
// record of them.
func (n *Network) removeHostPorts(pod netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.tables
	if t == nil {
		if err := n.ensureLocked(); err != nil {
			return err
		}
		t = n.tables
	}
	found := false
	for _, set := range []*nftables.Set{t.ports, t.addrPorts} {
		have, err := n.conn.GetSetElements(set)
		if err != nil {
			if _, gone := n.conn.ListTableOfFamily(t.table.Name, t.table.Family); gone != nil {
				n.bridge = 0 // somebody flushed the ruleset; the next Add makes it again
				return nil
			}
			return fmt.Errorf("host ports: %w", err)
		}
		var old []nftables.SetElement
		for _, h := range have {
			if nft.ParseTarget(h.Val).Addr() == pod {
				old = append(old, nftables.SetElement{Key: h.Key, Val: h.Val})
			}
		}
		found = found || len(old) > 0
		if err := n.deleteElements(set, old); err != nil {
			return fmt.Errorf("host ports: %w", err)
		}
	}
	if !found {
		return nil
	}
	if err := n.conn.SetDeleteElements(t.hairpin, []nftables.SetElement{{Key: nft.KeyAddrPair(pod, pod)}}); err != nil {
		return fmt.Errorf("host ports: %w", err)
	}
	if err := n.conn.Flush(); err != nil {
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
		_ = n.conn.CloseLasting()
		n.conn, n.tables = nil, nil
	}()
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyBridge} {
		n.conn.DelTable(&nftables.Table{Family: family, Name: n.cfg.Table})
		if err := n.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete nftables table %s: %w", n.cfg.Table, err)
		}
	}
	return nil
}
