package cni

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
)

// tables names what this network has in nftables: one table with masquerading
// and the host ports.
type tables struct {
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
		table: t,
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

// ensureTable writes the table in one transaction, keeping the elements of the sets.
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
	// Just before Services, which live at the usual place.
	for _, h := range []struct {
		name string
		hook *nftables.ChainHook
	}{{"prerouting", nftables.ChainHookPrerouting}, {"output", nftables.ChainHookOutput}} {
		ch := n.baseChain(t, h.name, h.hook, *nftables.ChainPriorityNATDest-1)
		c.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.AddrProtoPort(), nft.Target(t.addrPorts), nft.DNAT())})
		c.AddRule(&nftables.Rule{Table: t.table, Chain: ch, Exprs: nft.Rule(nft.ToLocal(), nft.ProtoPort(), nft.Target(t.ports), nft.DNAT())})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: %w", t.table.Name, err)
	}
	n.tables = t
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

// addHostPorts replaces whatever the ports were forwarded to before.
func (n *Network) addHostPorts(pod netip.Addr, ports []HostPort) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.tables
	var all, some []nftables.SetElement
	for _, p := range ports {
		proto := nft.Proto(p.Protocol)
		if proto == 0 {
			return fmt.Errorf("unknown protocol %q", p.Protocol)
		}
		val := nft.ValTarget(netip.AddrPortFrom(pod, p.ContainerPort))
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
	pair := []nftables.SetElement{{Key: nft.KeyAddrPair(pod, pod)}}
	if err := n.conn.SetAddElements(t.hairpin, pair); err != nil {
		return err
	}
	if err := n.conn.Flush(); err != nil {
		return err
	}
	return endOldFlows(pod, ports)
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
	n.conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: n.cfg.Table})
	if err := n.conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete nftables table %s: %w", n.cfg.Table, err)
	}
	return nil
}
