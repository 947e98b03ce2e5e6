package main

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/dns"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/proxy"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func (a *agent) buildNetwork(context.Context) error {
	var err error
	if a.claim, err = network.Claim(a.cfg.Bridge, a.cfg.NFTable); err != nil {
		return err
	}
	a.network = network.New(network.Config{
		ConfDir: a.cfg.CNIConfDir, BinDir: a.cfg.CNIBinDir, CacheDir: filepath.Join(a.cfg.DataDir, "cni", "cache"),
		Bridge: a.cfg.Bridge, Table: a.cfg.NFTable + "-pods", StateDir: filepath.Join(a.cfg.DataDir, "cni", "state"),
		ClusterCIDRs: prefixes(a.cfg.ClusterCIDR), ServiceCIDRs: prefixes(a.cfg.ServiceCIDR),
		DNS:      a.ownDNS(),
		OwnPorts: a.ownPorts(),
		Log:      a.log,
	})
	a.setPodCIDRs = a.network.SetPodCIDRs
	cidrs := prefixes(a.cfg.PodCIDR)
	if n, err := a.nodes.Get(a.cfg.NodeName); err == nil && n != nil {
		a.saved.Store(n)
		if len(cidrs) == 0 {
			cidrs = prefixes(n.Spec.PodCIDRs...)
		}
	}
	if len(cidrs) == 0 {
		return nil // the Node object will tell
	}
	return a.setPodCIDRs(cidrs)
}

func (a *agent) buildServices(context.Context) error {
	a.services = service.NewSource(service.Config{Client: a.client, Node: a.cfg.NodeName,
		File: filepath.Join(a.cfg.CheckpointDir(), "services.json"), Log: a.log,
		Own: service.Own{
			Ranges: slices.Concat(prefixes(a.cfg.ServiceCIDR), prefixes(a.cfg.ClusterCIDR)),
			DNS:    a.ownDNS(),
		}})
	a.services.SetNodes(a.nodeAddresses())
	return nil
}

// servicesWait is how long a container's start waits for the services to be
// known: right after the agent's start they are on their way.
const servicesWait = 5 * time.Second

// serviceObjects gives the services in the form that environments are made of.
func (a *agent) serviceObjects(ctx context.Context) ([]*v1.Service, bool) {
	if a.services == nil {
		return nil, true
	}
	tables := a.services.Tables()
	if tables == nil {
		changed := a.services.Changed()
		late := time.After(servicesWait)
		for tables = a.services.Tables(); tables == nil; tables = a.services.Tables() {
			select {
			case <-ctx.Done():
				return nil, false
			case <-late:
				return nil, a.cutOff.Load() // then none beats not starting
			case <-changed:
			}
		}
	}
	out := make([]*v1.Service, 0, tables.Len())
	for key, s := range tables.All() {
		if len(s.ClusterIPs) == 0 {
			continue
		}
		o := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		o.Spec.ClusterIP = s.ClusterIPs[0].String()
		for _, p := range s.Ports {
			o.Spec.Ports = append(o.Spec.Ports, v1.ServicePort{Name: p.Name, Protocol: v1.Protocol(p.Protocol), Port: int32(p.Number)})
		}
		out = append(out, o)
	}
	return out, true
}

func (a *agent) proxy() *proxy.Proxy {
	var changed <-chan struct{}
	if a.gossip != nil {
		changed = a.gossip.Changed()
	}
	return proxy.New(proxy.Config{
		Table:        a.cfg.NFTable,
		ServiceCIDRs: prefixes(a.cfg.ServiceCIDR),
		ClusterCIDRs: prefixes(a.cfg.ClusterCIDR),
		NodeIPs:      addrs(a.facts.IPs),
		DNS:          a.ownDNS(),
		Own:          a.listeners,
		Gossip:       a.gossipListeners,
		OwnChanged:   changed,
		Log:          a.log,
	})
}

func (a *agent) dns() *dns.Server {
	return dns.New(dns.Config{
		Addrs:      addrs(a.cfg.ClusterDNS),
		Domain:     a.cfg.ClusterDomain,
		ResolvConf: a.cfg.ResolvConf,
		Table:      a.cfg.NFTable + "-dns",
		Pods:       a.podPrefixes,
		Log:        a.log,
	}, a.services)
}

// podPrefixes are where this node's pods send from: the range that the Node
// has, and each pod's address, as a third-party network may give others.
func (a *agent) podPrefixes() []netip.Prefix {
	list := prefixes(a.cfg.PodCIDR)
	if n := a.saved.Load(); n != nil && len(list) == 0 {
		list = prefixes(n.Spec.PodCIDRs...)
	}
	if a.pods == nil {
		return list
	}
	for _, ip := range a.pods.Addresses() {
		list = append(list, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return list
}

func addrs(list []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		if ip, err := netip.ParseAddr(s); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

// ownDNS are the addresses at which this agent answers names; none when
// somebody else cares for Services.
func (a *agent) ownDNS() []netip.Addr {
	if !a.cfg.Proxy() {
		return nil
	}
	return addrs(a.cfg.ClusterDNS)
}

// ownPorts are what this agent listens on.
func (a *agent) ownPorts() []cni.HostPort {
	var out []cni.HostPort
	if a.cfg.Port > 0 {
		out = append(out, cni.HostPort{HostPort: uint16(a.cfg.Port), Protocol: "TCP"})
	}
	if a.cfg.GossipPort > 0 {
		out = append(out, cni.HostPort{HostPort: uint16(a.cfg.GossipPort), Protocol: "TCP"}, cni.HostPort{HostPort: uint16(a.cfg.GossipPort), Protocol: "UDP"})
	}
	return out
}

// listeners are where this agent, and all members of the gossip, listen. Others'
// ports are taken to be as this node's, where the gossip does not tell them; of
// an agent's word only what is at its Node's addresses counts.
func (a *agent) listeners() []netip.AddrPort {
	var out []netip.AddrPort
	add := func(addrs []netip.Addr) {
		for _, ip := range addrs {
			for _, p := range a.ownPorts() {
				out = append(out, netip.AddrPortFrom(ip, p.HostPort))
			}
		}
	}
	add(addrs(a.facts.IPs))
	if a.gossip == nil {
		return out
	}
	for _, m := range a.gossip.Members() {
		if m.Role == gossip.RoleCoordinator || slices.Contains(m.NodeIPs, m.Addr.Addr()) {
			out = append(out, m.Addr)
		}
		add(m.NodeIPs)
	}
	return out
}

// gossipListeners are where the gossip listens on this node and on others. A
// member's own word for its port does not count, lest it take another port from
// all pods.
func (a *agent) gossipListeners() []netip.AddrPort {
	if a.gossip == nil {
		return nil
	}
	var out []netip.AddrPort
	for _, m := range a.gossip.Members() {
		if m.Role == gossip.RoleCoordinator {
			out = append(out, m.Addr)
		}
	}
	for _, ip := range a.nodeAddresses() {
		out = append(out, netip.AddrPortFrom(ip, uint16(a.cfg.GossipPort)))
	}
	return out
}

// nodeAddresses are those of this node and of the gossip's members.
func (a *agent) nodeAddresses() []netip.Addr {
	out := addrs(a.facts.IPs)
	if a.gossip == nil {
		return out
	}
	for _, m := range a.gossip.Members() {
		if m.State != gossip.StateLeft {
			out = append(out, m.NodeIPs...)
		}
	}
	return out
}

// avoidDead keeps traffic from nodes that the gossip calls dead or leaving, and
// tells which addresses are nodes'.
func (a *agent) avoidDead(ctx context.Context) error {
	changed := a.gossip.Changed()
	for {
		down := map[string]bool{}
		for _, m := range a.gossip.Members() {
			if m.Role == gossip.RoleAgent && m.State != gossip.StateAlive {
				down[m.Name] = true
			}
		}
		a.services.SetDown(down)
		a.services.SetNodes(a.nodeAddresses())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
