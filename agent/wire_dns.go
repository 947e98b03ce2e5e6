package main

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/dns"
	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/foreign"
)

// clients are who asks the node's DNS server: the ranges and addresses of pods, and where
// the resolver of one looks for names.
type clients struct {
	pods   func() cidr.Prefixes
	search func(netip.Addr) []string
}

// newDNS answers names to pods and to the node. nil counts are nobody's.
func newDNS(
	cfg *config.Config, services *service.Source, clients clients, counts *dns.Counts,
	others *foreign.Watcher, log *slog.Logger,
) *dns.Server {
	return dns.New(dns.Config{
		Addrs:      addrs(cfg.ClusterDNS),
		Domain:     cfg.ClusterDomain,
		ResolvConf: cfg.ResolvConf,
		Table:      cfg.NFTable + "-dns",
		Pods:       clients.pods,
		Search:     clients.search,
		Completion: map[string]dns.Completion{
			config.CompleteLongNames: dns.CompleteLong,
			config.CompleteAllNames:  dns.CompleteAll,
		}[cfg.DNSSearchCompletion],
		Upstreams: dns.Upstreams{Servers: cfg.UpstreamNameservers, Stubs: cfg.StubDomains},
		HostsFile: cfg.DNSHostsFile,
		Counts:    counts,
		Foreign:   others,
		Log:       log,
	}, services)
}

// followDNS has the cluster's ConfigMap say who is asked.
func followDNS(b base, s *dns.Server) *dns.Follower {
	return &dns.Follower{
		Server: s,
		Client: b.server.Client,
		File:   filepath.Join(b.cfg.CheckpointDir(), "dns.json"),
		Log:    b.log,
	}
}

// searchDomains are those of the pod with an address, as it was told them when it began.
// Pods in the node's network share its address: there are none for them.
func (n whole) searchDomains(client netip.Addr) []string {
	for _, p := range n.pods.Pods() {
		if p.Spec.HostNetwork || !slices.Contains(n.pods.IPs(p), client.String()) {
			continue
		}
		made, err := launch.Sandbox(&launch.SandboxFacts{
			Host:         n.pods.Host,
			Pod:          p,
			NodeResolver: func() ([]byte, error) { return os.ReadFile(n.cfg.ResolvConf) },
		})
		if err != nil {
			return nil // it looks by itself
		}
		return made.GetDnsConfig().GetSearches()
	}
	return nil
}
