package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/config"
	"github.com/shoal-project/shoal/coordinator/pki"
)

// apiNames tells which names and addresses in a node's serving certificate would
// let it pass for the API server: both are signed by the same CA. The node on a
// coordinator's machine may have the machine's own; nobody may have the others.
type apiNames struct {
	own, taken map[string]bool
	node       string
	domain     string // the cluster's
	services   []netip.Prefix
	members    func() []gossip.Member
	proven     bool // members are who they say
}

// nodeBeside is the Node on this coordinator's machine.
func nodeBeside(cfg config.Config) string { return strings.ToLower(strings.TrimSpace(memberName(cfg))) }

func (s parts) apiNames() (*apiNames, error) {
	services, err := config.Prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("serviceCIDR: %w", err)
	}
	n := &apiNames{own: map[string]bool{}, taken: map[string]bool{}, services: services, members: s.gossip.Members,
		node: nodeBeside(s.cfg), domain: strings.ToLower(s.cfg.ClusterDomain), proven: s.gossipID != nil}
	machine := cluster(s.cfg, s.advertise)
	for _, name := range machine.Names {
		n.own[strings.ToLower(name)] = true
	}
	for _, ip := range machine.IPs {
		n.own[ip.String()] = true
	}
	if virtual := virtualAddress(s.cfg); virtual.IsValid() { // of all coordinators, and no node's
		delete(n.own, virtual.String())
		n.taken[virtual.String()] = true
	}
	builtin, _ := pki.ServingNames(pki.Cluster{Domain: s.cfg.ClusterDomain})
	for _, name := range builtin {
		n.taken[strings.ToLower(name)] = true
	}
	return n, nil
}

// Owner tells which node alone may have a name or an address; "" is none. It is
// not reserved if the second result is false.
func (n *apiNames) Owner(san string) (node string, reserved bool) {
	san = strings.ToLower(san)
	ip, err := netip.ParseAddr(san)
	if err == nil {
		san = ip.Unmap().String()
	}
	if n.taken[san] || n.nameOfService(san) || err == nil && n.isService(ip) {
		return "", true
	}
	if n.own[san] {
		return n.node, true
	}
	if err == nil && !ip.Unmap().IsGlobalUnicast() {
		return "", true
	}
	return n.ofCoordinator(san)
}

// nameOfService finds names that the cluster's DNS gives to Services: they are no
// node's, and who trusts the cluster's CA for one must not get a node there.
func (n *apiNames) nameOfService(name string) bool {
	return strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".svc."+n.domain)
}

func (n *apiNames) isService(ip netip.Addr) bool {
	for _, p := range n.services {
		if p.Contains(ip.Unmap()) {
			return true
		}
	}
	return false
}

// ofCoordinator finds the names and addresses of other coordinators, and the nodes on
// their machines: they say themselves which these are. Where nobody proves who he is in
// the gossip, an administrator approves them.
func (n *apiNames) ofCoordinator(san string) (node string, reserved bool) {
	for _, m := range n.members() {
		if m.Role != gossip.RoleCoordinator {
			continue
		}
		host, _, _ := strings.Cut(strings.TrimPrefix(m.Name, coordinatorPrefix), "/")
		u, err := url.Parse(m.API)
		if !strings.EqualFold(host, san) && (err != nil || !sameHost(u.Hostname(), san)) {
			continue
		}
		if !n.proven || reserved && m.Node != node { // two of one name
			return "", true
		}
		node, reserved = m.Node, true
	}
	return node, reserved
}

func sameHost(a, b string) bool {
	if x, err := netip.ParseAddr(a); err == nil {
		a = x.Unmap().String()
	}
	return strings.EqualFold(a, b)
}
