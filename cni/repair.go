package cni

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Repair makes right what somebody else changed, and tells what he did, nothing if it was
// nothing: a firewall that flushed the ruleset, a network manager that took the bridge, its
// addresses or routes away or a pod's port from it, a sysctl that turned forwarding off.
// When nothing is amiss it costs some short requests to the kernel, and a list of the
// node's interfaces where pods are.
func (n *Network) Repair() (found string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	whole := false
	if n.bridge != 0 {
		found = n.damage()
		whole = found == ""
	}
	if !whole {
		err = n.remake()
	}
	stood, blocked := n.passFirewall()
	if stood && found == "" {
		found = "a firewall stood in pods' way"
	}
	return found, errors.Join(err, blocked)
}

// damage is the first thing that is not as it was made.
func (n *Network) damage() string {
	br, err := netlink.LinkByName(n.cfg.Bridge)
	switch {
	case err != nil || br.Attrs().Index != n.bridge:
		return "the bridge is gone"
	case br.Attrs().Flags&net.FlagUp == 0:
		return "the bridge is down"
	}
	for path, value := range n.switches() {
		if have, err := readSysctl(path); err == nil && have != value {
			return fmt.Sprintf("/proc/sys/%s is %s", path, have)
		}
	}
	for _, s := range n.stacks {
		if !n.conn.Intact(n.routedTable(s.Family)) {
			return fmt.Sprintf("nftables table %s is gone", n.routedTable(s.Family))
		}
	}
	if !n.conn.Intact(n.bridgedTable()) {
		return fmt.Sprintf("nftables table %s is gone", n.bridgedTable())
	}
	if what := n.addressDamage(br); what != "" {
		return what
	}
	damaged, err := n.damagedPorts()
	if err == nil && len(damaged) > 0 {
		return fmt.Sprintf("the port %s is no port of the bridge, down or one without rules", damaged[0].Attrs().Name)
	}
	return ""
}

// switches are all that matter when they are changed while the network is in use.
func (n *Network) switches() map[string]string {
	out := switchesOf(n.cfg.Bridge)
	if n.has6() {
		out[forwarding6] = "1"
		out["net/ipv6/conf/"+n.cfg.Bridge+"/disable_ipv6"] = "0"
	}
	return out
}

// addressDamage is an address of the bridge's that is gone, or the route to a range of
// Services.
func (n *Network) addressDamage(br netlink.Link) string {
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(br, netlink.FAMILY_ALL) })
	if err != nil {
		return ""
	}
	for _, s := range n.stacks {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(s.gateway().AsSlice()) }) {
			return fmt.Sprintf("the bridge's address %s is gone", s.gateway())
		}
	}
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(br, netlink.FAMILY_ALL) })
	if err != nil {
		return ""
	}
	wanted := n.cfg.ServiceCIDRs
	for _, s := range n.stacks {
		wanted = append(slices.Clip(wanted), s.pool.prefix.Masked())
	}
	for _, p := range wanted {
		to := prefixNet(p.Masked()).String()
		has := func(r netlink.Route) bool { return r.Dst != nil && r.Dst.String() == to }
		if n.stack(p.Addr()) != nil && !slices.ContainsFunc(routes, has) {
			return fmt.Sprintf("the route to %s is gone", p.Masked())
		}
	}
	return ""
}

// adoptPorts makes pods' interfaces ports of the bridge that are subject to the rules:
// those of an earlier version or of a bridge before, and what somebody changed about one.
func (n *Network) adoptPorts() error {
	damaged, err := n.damagedPorts()
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	group := int(portGroup(n.cfg.Bridge))
	for _, l := range damaged {
		at := l.Attrs()
		// In this order: what is in the group is subject to the rules.
		err := netlink.LinkSetGroup(l, group)
		if err == nil && at.MasterIndex != n.bridge {
			err = netlink.LinkSetMasterByIndex(l, n.bridge)
		}
		if err == nil {
			err = setPort(at.Index)
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil && !errors.Is(err, unix.ENODEV) { // the pod ends
			return fmt.Errorf("pod network: port %s: %w", at.Name, err)
		}
	}
	return nil
}

// damagedPorts are the interfaces of pods that are no ports of the bridge, down, or not in
// the group that the rules are for. Pods that begin have theirs right from its first moment.
func (n *Network) damagedPorts() (out []netlink.Link, err error) {
	held, err := n.held()
	if err != nil || len(held) == 0 {
		return nil, err
	}
	ours := make(map[string]bool, len(held))
	for owner := range held {
		ours[hostIf(ownedBy(owner))] = true
	}
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	group := portGroup(n.cfg.Bridge)
	for _, l := range links {
		at := l.Attrs()
		right := at.MasterIndex == n.bridge && at.Group == group && at.Flags&net.FlagUp != 0
		if ours[at.Name] && !right && at.Group != reapGroup {
			out = append(out, l)
		}
	}
	return out, nil
}
