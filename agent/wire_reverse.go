package main

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/reverse"
)

// newReverse keeps connections to coordinators that cannot dial the node's kubelet API; nil
// where the configuration says no, or nobody tells of coordinators.
func newReverse(b base, group *gossip.Group) *reverse.Keeper {
	mode := b.cfg.ReverseConnection
	if group == nil || !group.Verified() || !b.server.Configured() || mode == config.ReverseNever {
		return nil
	}
	own := addrs(b.facts.IPs)
	return &reverse.Keeper{
		Coordinators: func() []reverse.Coordinator { return reverseTo(group.Members()) },
		Changed:      group.Changed(),
		Hidden: func(ctx context.Context, c reverse.Coordinator) (bool, error) {
			if mode == config.ReverseAlways {
				return true, nil
			}
			if near(c.Address, localNetworks()) {
				return false, nil
			}
			at, err := group.SeenAs(ctx, c.Name)
			return err == nil && !slices.Contains(own, at), err
		},
		Dial: b.server.Dial,
		To:   reverse.NewListener(),
		Port: b.cfg.Port,
		Log:  b.log,
	}
}

// reverseTo are the coordinators that have not left.
func reverseTo(members []gossip.Member) (out []reverse.Coordinator) {
	for _, m := range members {
		u, err := url.Parse(m.API)
		serves := m.Role == gossip.RoleCoordinator && m.State != gossip.StateLeft
		if serves && err == nil && u.Scheme == "https" && u.Host != "" {
			out = append(out, reverse.Coordinator{Name: m.Name, Address: u.Host, Up: m.State.Up(), Since: m.Since})
		}
	}
	return out
}

// near tells whether a coordinator is on a network that this machine is on: nothing
// translates addresses between them.
func near(address string, local []netip.Prefix) bool {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(local, func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap()) })
}

func localNetworks() (out []netip.Prefix) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range list {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, p)
		}
	}
	return out
}
