package cni

import (
	"errors"
	"fmt"
	"math"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/podnet"
)

// What a pod may send and receive in a second is bounded by token buckets (tc-tbf(8))
// outside of its namespace, where its processes change nothing, whatever
// capabilities they have:
//
//	to the pod    root qdisc of its interface on the node's side
//	from the pod  that interface's ingress, redirected whole ─> root qdisc of an ifb
//	              of the pod's own, from where packets go on as if they had just come
//
// A policer at the ingress would take no ifb, but has no queue: it drops what is above
// the rate, and TCP, whose packets come here in bursts of up to 64 KiB, takes each drop
// for a lack of bandwidth and stays below. A bucket delays them. The pod's own side would
// do without both, but who has CAP_NET_ADMIN there removes what it finds. The qdiscs go
// with their interfaces; the ifb is deleted with the pod's. They stay while the agent is
// away. (CNI-8, MT-11; the CNI project's plugin "bandwidth" shapes at the same places.)

// Sizes of a bucket. A packet waits bucketDelay at most, unless the rate is so small
// that queuePackets take longer: TCP needs some to keep the rate after a loss. After a
// pause bucketBurst's share of a second passes at once, two packets at least; one of 64
// KiB that is larger is cut up by the kernel.
const (
	bucketDelay  = 0.050
	bucketBurst  = 0.020
	burstPackets = 2
	queuePackets = 16
	// bucketMost bounds what of a pod's packets waits in the node's memory.
	bucketMost = 64 << 20
)

// ethernet is the header of a frame, with a VLAN tag.
const ethernet = 18

// bucket is the qdisc of a link for a rate in bits a second.
func bucket(link int, rate uint64, mtu int) *netlink.Tbf {
	bytes := max(float64(rate)/8, 1)
	packet := float64(mtu + ethernet)
	burst := max(bytes*bucketBurst, burstPackets*packet)
	queue := min(max(bytes*bucketDelay, queuePackets*packet), bucketMost)
	// the kernel's unit of the burst is time (PSCHED_TICKS)
	ticks := min(burst/bytes*float64(netlink.TIME_UNITS_PER_SEC)*netlink.TickInUsec(), math.MaxUint32)
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       max(rate/8, 1),
		Limit:      uint32(queue + min(burst, bucketMost)),
		Buffer:     uint32(ticks),
	}
}

// shaperOf is the name of the pod's ifb.
func shaperOf(s podnet.Sandbox) string { return "ifb" + strings.TrimPrefix(hostIf(s), "veth") }

// shape bounds what goes through port, the interface on the node's side. It is new.
func (l link) shape(port int) error {
	b := l.sandbox.Bandwidth
	if b.IngressRate > 0 {
		if err := netlink.QdiscReplace(bucket(port, b.IngressRate, l.mtu)); err != nil {
			return fmt.Errorf("bound the traffic to the pod: %w (it takes CONFIG_NET_SCH_TBF)", err)
		}
	}
	if b.EgressRate == 0 {
		return nil
	}
	if err := l.shapeEgress(port, b.EgressRate); err != nil {
		return fmt.Errorf(
			"bound the traffic from the pod: %w (it takes CONFIG_IFB, NET_SCH_TBF, NET_SCH_INGRESS, NET_CLS_U32, NET_ACT_MIRRED)",
			err)
	}
	return nil
}

func (l link) shapeEgress(port int, rate uint64) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group, attrs.Flags, attrs.TxQLen = shaperOf(l.sandbox), l.mtu, l.group, net.FlagUp, 0
	ifb := &netlink.Ifb{LinkAttrs: attrs}
	err := netlink.LinkAdd(ifb)
	if errors.Is(err, unix.EEXIST) { // of an attempt that was cut short
		if err := deleteLink(attrs.Name); err != nil {
			return err
		}
		err = netlink.LinkAdd(ifb)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", attrs.Name, err)
	}
	made, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find %s: %w", attrs.Name, err)
	}
	index := made.Attrs().Index
	if err := netlink.QdiscReplace(bucket(index, rate, l.mtu)); err != nil {
		return fmt.Errorf("bucket of %s: %w", attrs.Name, err)
	}
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: port, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}
	if err := netlink.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("ingress: %w", err)
	}
	all := &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: port, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{
			&netlink.MirredAction{
				ActionAttrs:  netlink.ActionAttrs{Action: netlink.TC_ACT_STOLEN},
				MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: index,
			},
		},
	}
	if err := netlink.FilterAdd(all); err != nil {
		return fmt.Errorf("lead to %s: %w", attrs.Name, err)
	}
	return nil
}
