package main

import (
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/api"
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/firewalld"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/agent/node"
	"github.com/shoal-project/shoal/agent/proxy"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/agent/stats"
	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/foreign"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/podnet"
)

func addrs(list []string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		if ip, err := netip.ParseAddr(s); err == nil {
			out = append(out, ip)
		}
	}
	return out
}

// familiesOf are those of the cluster's pods, the primary one first: the node needs an
// address of each, by which other nodes' pods of the family reach its own.
func familiesOf(cfg *config.Config) (out []int) {
	for _, p := range cidr.Parse(cfg.ClusterCIDR) {
		if f := int(nft.FamilyOf(p.Addr()).AF()); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// links is how pods reach each other.
type links struct {
	network   *network.Manager
	firewalld *firewalld.Opening
	cidrs     *node.PodCIDRs
	claim     io.Closer // on the names of bridge and table, while the process lives
}

// openNetwork makes the pod network of before; the Node tells of changes. Beside an
// error there is a network that changes nothing of the names that another has.
func openNetwork(
	cfg *config.Config, memory *node.Memory, others *foreign.Watcher, log *slog.Logger,
) (l links, err error) {
	l.firewalld = newFirewalld(cfg, log)
	n := newNetwork(cfg, others, l.firewalld, log)
	l.network = n
	if l.claim, err = network.Claim(cfg.Bridge, cfg.NFTable); err != nil {
		return l, err
	}
	l.cidrs = &node.PodCIDRs{Configured: podCIDRs(cfg, memory), Set: n.SetPodCIDRs, Log: log}
	return l, l.cidrs.Restore(memory.Node())
}

// podCIDRs are the ranges of this node's pods by the configuration, none where the Node tells
// them. Without an API server nobody would: then they are the first ones of the cluster's.
func podCIDRs(cfg *config.Config, memory *node.Memory) cidr.Prefixes {
	given := cidr.Parse(cfg.PodCIDR)
	if len(given) > 0 || cfg.Kubeconfig != "" || memory.Node() != nil {
		return given
	}
	var first cidr.Prefixes
	for _, p := range cidr.Parse(cfg.ClusterCIDR) {
		bits := aloneBits4
		if p.Addr().Is6() {
			bits = aloneBits6
		}
		same := func(f netip.Prefix) bool { return f.Addr().Is6() == p.Addr().Is6() }
		if !slices.ContainsFunc(first, same) {
			first = append(first, netip.PrefixFrom(p.Masked().Addr(), max(bits, p.Bits())))
		}
	}
	return first
}

// The lengths of a node's ranges that a coordinator gives unless it is configured.
const aloneBits4, aloneBits6 = 24, 64

func newNetwork(
	cfg *config.Config, others *foreign.Watcher, firewall network.Firewalld, log *slog.Logger,
) *network.Manager {
	return network.New(network.Config{
		ConfDir:      cfg.CNIConfDir,
		BinDir:       cfg.CNIBinDir,
		CacheDir:     filepath.Join(cfg.DataDir, "cni", "cache"),
		Bridge:       cfg.Bridge,
		Table:        cfg.NFTable + "-pods",
		StateDir:     filepath.Join(cfg.DataDir, "cni", "state"),
		ClusterCIDRs: cidr.Parse(cfg.ClusterCIDR),
		ServiceCIDRs: cidr.Parse(cfg.ServiceCIDR),
		DNS:          ownDNS(cfg),
		OwnPorts:     ownPorts(cfg),
		None:         cfg.PodNetwork == config.NoNetwork,
		Elsewhere:    cfg.ContainerRuntimeEndpoint != "",
		Request:      cfg.RuntimeRequestTimeout.Duration,
		Hold:         network.Hold,
		MTU:          cfg.PodMTU,
		Overlay:      newOverlay(cfg),
		HostFirewall: cni.HostFirewall(cfg.HostFirewall),
		Firewalld:    firewall,
		Tunnels:      newTunnels(cfg),
		Foreign:      others,
		Log:          log,
	})
}

// newFirewalld lets pods through firewalld, where it runs.
func newFirewalld(cfg *config.Config, log *slog.Logger) *firewalld.Opening {
	own := addrs(strings.Split(cfg.NodeIP, ","))
	return firewalld.New(firewalld.Config{
		Bridge:  cfg.Bridge,
		Pods:    cidr.Parse(cfg.ClusterCIDR),
		DNS:     ownDNS(cfg),
		Uplinks: func() ([]string, error) { return firewalld.Uplinks(own) },
		Leave:   cfg.HostFirewall == config.LeaveFirewall,
		Log:     log,
	})
}

// newGossip makes this node a member, with its client certificate's key; nil
// without a port. The grant that it last had lets its neighbours know it while the
// API is away.
func newGossip(
	cfg *config.Config, facts host.Facts, server *api.Server, memory *node.Memory, answers *answers,
	log *slog.Logger,
) (*gossip.Group, error) {
	if cfg.GossipPort == 0 {
		return nil, nil
	}
	c := gossip.Config{
		Name:          cfg.NodeName,
		BindPort:      cfg.GossipPort,
		AdvertiseAddr: facts.IPs[0],
		Join:          cfg.Join,
		Deny:          cidr.Parse(cfg.ClusterCIDR),
		Meta:          gossip.Meta{Role: gossip.RoleAgent},
		File:          filepath.Join(cfg.CheckpointDir(), "members.json"),
		Log:           log,
	}
	if n := memory.Node(); n != nil {
		c.Grant = gossip.GrantIn(n.Annotations)
		c.Meta.Zone = n.Labels[corev1.LabelTopologyZone]
	}
	identity := func() (*gossip.Identity, gossip.Trust, error) {
		own, err := server.Credentials()
		if err != nil {
			return nil, nil, err
		}
		return gossip.Identify(cfg.NodeName, own.Cert, own.Key, own.CA)
	}
	security := gossip.Security{KeyFile: cfg.GossipKeyFile, Insecure: cfg.GossipInsecure, Identity: identity}
	if err := c.Secure(security); err != nil {
		return nil, err
	}
	c.Meta.Votes = c.Trust != nil
	c.Meta.Layers = c.Trust != nil && answers.shares
	c.Meta.Proxies = c.Trust != nil && cfg.Proxy()
	c.Answer = answers.answer
	if err := newTunnels(cfg).Introduce(&c.Meta); err != nil {
		log.Warn("others do not hear this node's key yet", "err", err)
	}
	return gossip.New(c)
}

func newServices(cfg *config.Config, facts host.Facts, server *api.Server, log *slog.Logger) *service.Source {
	s := service.NewSource(service.Config{
		Client: server.Client,
		Node:   cfg.NodeName,
		File:   filepath.Join(cfg.CheckpointDir(), "services.json"),
		Own: service.Own{
			Ranges: cidr.Parse(cfg.ServiceCIDR, cfg.ClusterCIDR),
			DNS:    ownDNS(cfg),
		},
		Log: log,
	})
	s.SetNodes(addrs(facts.IPs))
	return s
}

// proxyStatus is what kube-proxy tells of itself over HTTP.
func proxyStatus(b base) proxy.Status {
	return proxy.Status{
		HealthzAddr: b.cfg.ProxyHealthzBindAddress,
		MetricsAddr: b.cfg.ProxyMetricsBindAddress,
		Metrics: func(w io.Writer) error {
			return stats.Proxy(w, stats.Build{Version: node.Version, Commit: commit()}, b.counts)
		},
		Healthz:  b.counts.ProxyHealthz,
		Livez:    b.counts.ProxyLivez,
		Eligible: func() bool { return proxy.Eligible(b.memory.Node()) },
	}
}

// newProxy leads Services' traffic; without members it knows this node only.
func newProxy(
	cfg *config.Config, facts host.Facts, group *gossip.Group, counts *metrics.Agent, status proxy.Status,
	programmed func(*service.Tables), others *foreign.Watcher, log *slog.Logger,
) *proxy.Proxy {
	l := proxy.Listeners{NodeIPs: addrs(facts.IPs), GossipPort: uint16(cfg.GossipPort)}
	for _, p := range ownPorts(cfg) {
		if p.Protocol == "TCP" { // where both are, they have one number
			l.Ports = append(l.Ports, p.HostPort)
		}
	}
	for _, p := range tunnelPorts(cfg) {
		l.Ports = append(l.Ports, p.HostPort)
	}
	var changed <-chan struct{}
	if group != nil {
		l.Members, changed = group.Members, group.Changed()
	}
	return proxy.New(proxy.Config{
		Table:        cfg.NFTable,
		ServiceCIDRs: cidr.Parse(cfg.ServiceCIDR),
		ClusterCIDRs: cidr.Parse(cfg.ClusterCIDR),
		NodeIPs:      addrs(facts.IPs),
		NodePorts:    nodePorts(cfg, addrs(facts.IPs)),
		DNS:          ownDNS(cfg),
		Own:          l.All,
		Gossip:       l.Gossip,
		OwnChanged:   changed,
		Syncs:        counts.ProxySync,
		Programming:  counts.NetworkProgramming,
		Status:       status,
		Programmed:   programmed,
		Foreign:      others,
		Tracking: proxy.Tracking{
			Flows:       cfg.Conntrack.Max(runtime.NumCPU()),
			Established: cfg.Conntrack.TCPEstablishedTimeout.Duration,
			CloseWait:   cfg.Conntrack.TCPCloseWaitTimeout.Duration,
			UDP:         cfg.Conntrack.UDPTimeout.Duration,
			UDPStream:   cfg.Conntrack.UDPStreamTimeout.Duration,
			Liberal:     cfg.Conntrack.TCPBeLiberal,
		},
		Log: log,
	})
}

// nodePorts are the ranges that NodePorts answer on, none for all: primary is the
// node's first address of each family, as kube-proxy has it.
func nodePorts(cfg *config.Config, own []netip.Addr) (out cidr.Prefixes) {
	if !slices.Equal(cfg.NodePortAddresses, []string{config.PrimaryAddresses}) {
		return cidr.Parse(cfg.NodePortAddresses...)
	}
	for _, a := range own {
		first := a.Is4() && len(out.V4()) == 0 || a.Is6() && len(out.V6()) == 0
		if first && !a.IsLoopback() {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out
}

// ownDNS are the addresses at which this agent answers names; none when
// somebody else cares for Services.
func ownDNS(cfg *config.Config) []netip.Addr {
	if !cfg.Proxy() {
		return nil
	}
	return addrs(cfg.ClusterDNS)
}

// ownPorts are what this agent listens on.
func ownPorts(cfg *config.Config) []podnet.HostPort {
	var out []podnet.HostPort
	if cfg.Port > 0 {
		out = append(out, podnet.HostPort{HostPort: uint16(cfg.Port), Protocol: "TCP"})
	}
	if a, err := netip.ParseAddrPort(cfg.ProxyHealthzBindAddress); err == nil && cfg.Proxy() && a.Port() > 0 {
		out = append(out, podnet.HostPort{HostPort: a.Port(), Protocol: "TCP"})
	}
	if p := uint16(cfg.GossipPort); p > 0 {
		out = append(out, podnet.HostPort{HostPort: p, Protocol: "TCP"}, podnet.HostPort{HostPort: p, Protocol: "UDP"})
	}
	return append(out, tunnelPorts(cfg)...)
}
