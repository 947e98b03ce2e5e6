package cni

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/podnet"
)

// What a pod may send: IPv4 and IPv6 packets and ARP from its own hardware and IP
// addresses, to the node and to nobody else. A table of the bridge family checks
// each frame at the port where it enters the bridge, before anything learns from
// it; all other frames end there: other protocols, router advertisements and neighbour
// discovery (pod and node are told each other's hardware addresses instead: see
// neighbour), and what is addressed to another port of the bridge or to all. So ports are isolated from
// each other. The bridge's own flag for that would be shorter, but breaks
// Services between pods of one node where the host has
// net.bridge.bridge-nf-call-iptables on: br_netfilter rewrites the destination
// of a packet for the node and sends it on from port to port.

// portGroup is the interface group (ip-link(8)) of the pods' interfaces on the
// node's side, one for each bridge: rules tell by it which frames are pods'.
func portGroup(bridge string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(bridge)) // never fails
	return h.Sum32() | 1<<31       // neither the default group nor reapGroup
}

// bridgedObjects are the bridge family's, with all pods that have an address.
// Elements stay: another process may have added some since the pods were read.
func (n *Network) bridgedObjects() (nft.Objects, error) {
	o := nft.NewObjects(n.bridgedTable())
	const check, enter, between = "pods", "prerouting", "forward"
	for _, s := range n.stacks {
		o.AddSets(s.senders)
		packet := nft.In(s.Sender(), s.senders)
		if s.Family == nft.V6 {
			o.AddRule(check, nft.EtherType(unix.ETH_P_IPV6), nft.ProtoIs(unix.IPPROTO_ICMPV6), nft.Jump(discovery))
			o.AddRule(check, nft.EtherType(unix.ETH_P_IPV6), nft.EtherTo(n.mac()), packet, nft.Return())
			for kind := uint8(ndFirst); kind <= ndLast; kind++ {
				o.AddRule(discovery, nft.ICMPType(kind), nft.Drop())
			}
			continue
		}
		o.AddRule(check, nft.EtherType(unix.ETH_P_IP), nft.EtherTo(n.mac()), packet, nft.Return())
		frame, tells := nft.In(nft.ARPFrame(), s.senders), nft.In(nft.ARPSender(), s.senders)
		o.AddRule(check, nft.EtherType(unix.ETH_P_ARP), frame, tells, nft.Return())
	}
	o.AddRule(check, nft.Count(), nft.Drop())
	if n.cfg.Elsewhere {
		return o, nil
	}
	o.AddChain(enter, nft.Hook{Kind: nft.Filter, At: nft.Prerouting, Priority: nft.PriorityBridged})
	o.AddRule(enter, nft.FromGroup(reapGroup), nft.Drop()) // about to be deleted
	o.AddRule(enter, nft.FromGroup(portGroup(n.cfg.Bridge)), nft.Goto(check))
	// What a pod asks all ports for, only the node answers.
	o.AddChain(between, nft.Hook{Kind: nft.Filter, At: nft.Forward, Priority: nft.PriorityBridged})
	o.AddRule(between, nft.FromGroup(portGroup(n.cfg.Bridge)), nft.EtherTypeNot(unix.ETH_P_IP),
		nft.EtherTypeNot(unix.ETH_P_IPV6), nft.Drop())
	held, err := n.held()
	if err != nil {
		return o, err
	}
	for owner, addrs := range held {
		n.addSenders(o, ownedBy(owner), addrs)
	}
	return o, nil
}

// discovery is the chain that drops what pods say of hardware addresses and routes
// by ICMPv6 (RFC 4861, 4): the kinds from the router solicitation to the redirect.
const (
	discovery = "discovery"
	ndFirst   = 133
	ndLast    = 137
)

// addSenders adds that a pod may send from its addresses.
func (n *Network) addSenders(o nft.Objects, s podnet.Sandbox, addrs []netip.Addr) {
	for _, a := range addrs {
		if st := n.stack(a); st != nil {
			o.Add(st.senders, nft.Data{}.Interface(hostIf(s)).MAC(macOf(addrs...)).Addr(a), nil)
		}
	}
}

// silence takes back what a pod may send, and the node's word of where it is; it need
// not have been allowed.
func (n *Network) silence(s podnet.Sandbox, addrs []netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.ensureLocked(); err != nil {
		return err
	}
	if err := forgetNeighbours(n.bridge, addrs); err != nil {
		return err
	}
	c := nft.NewChange(n.bridgedTable())
	n.addSenders(c.Del, s, addrs)
	if err := n.conn.Apply(c); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("sender of pod: %w", err)
	}
	return nil
}

// allLinkLocal is the bridge port's mask of reserved group addresses
// (01:80:c2:00:00:0x, IEEE 802.1D) whose frames go the way of all others, so that
// they meet the rules instead of teaching the bridge an address, or the node,
// past them; but for pause frames, which the kernel always drops.
const allLinkLocal = 0xffff &^ (1 << 1)

// setPort gives a pod's port its settings in one request.
func setPort(index int) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(index)
	req.AddData(msg)
	port := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	// br_netfilter sends a pod's packet to itself back by its own port.
	port.AddRtAttr(nl.IFLA_BRPORT_MODE, nl.Uint8Attr(1))
	port.AddRtAttr(nl.IFLA_BRPORT_GROUP_FWD_MASK, nl.Uint16Attr(allLinkLocal))
	req.AddData(port)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
