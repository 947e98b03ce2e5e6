package cni

import "github.com/shoal-project/shoal/cni/hostfirewall"

// HostFirewall says whether other programs' firewalls on the host are made to let pods
// through (hostfirewall.Open).
type HostFirewall string

// Values of HostFirewall. Without one nothing is looked at.
const (
	OpenFirewall  HostFirewall = "open"
	LeaveFirewall HostFirewall = "leave" // and what was opened earlier is taken back
)

// passFirewall has the host's firewall let pods through, or takes that back, and tells
// whether there was something to do.
func (n *Network) passFirewall() (changed bool, err error) {
	if n.cfg.HostFirewall == "" {
		return false, nil
	}
	if err := n.connect(); err != nil {
		return false, err
	}
	c := hostfirewall.Config{
		Bridge: n.cfg.Bridge, DNS: n.cfg.DNS, Pods: n.cfg.ClusterCIDRs, Tunnel: n.wireguardName(),
	}
	if n.cfg.HostFirewall == OpenFirewall {
		for _, s := range n.stacks {
			c.Families = append(c.Families, s.Family)
		}
	}
	return hostfirewall.Open(n.conn, c)
}

// leaveFirewall takes back what passFirewall did.
func (n *Network) leaveFirewall() error {
	if n.cfg.HostFirewall == "" {
		return nil
	}
	if err := n.connect(); err != nil {
		return err
	}
	return hostfirewall.Close(n.conn, n.cfg.Bridge)
}
