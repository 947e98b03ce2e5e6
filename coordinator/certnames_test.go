package main

import (
	"net/netip"
	"testing"

	"github.com/shoal-project/shoal/agent/gossip"
)

// TestNamesOfTheAPI: no node gets a serving certificate for what others reach the
// API server by, except that the node beside it may have the machine's own.
func TestNamesOfTheAPI(t *testing.T) {
	n := &apiNames{
		own:      map[string]bool{"m1": true, "192.0.2.1": true},
		taken:    map[string]bool{"localhost": true, "kubernetes": true, "kubernetes.default": true},
		node:     "m1",
		domain:   "cluster.local",
		services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		proven:   true,
		members: func() []gossip.Member {
			at := func(api, node string) gossip.Meta {
				return gossip.Meta{Role: gossip.RoleCoordinator, API: api, Node: node}
			}
			return []gossip.Member{
				{Name: "n1", Meta: gossip.Meta{}},
				{Name: coordinatorPrefix + "m2/192.0.2.2:6443", Meta: at("https://192.0.2.2:6443", "n2")},
				{Name: coordinatorPrefix + "twin/192.0.2.4:6443", Meta: at("https://192.0.2.4:6443", "n4")},
				{Name: coordinatorPrefix + "twin/192.0.2.5:6443", Meta: at("https://192.0.2.5:6443", "n5")},
				{Name: coordinatorPrefix + "m3/192.0.2.3:6443", Meta: at("https://api.example.com:6443", "")},
			}
		},
	}
	const nobody = "nobody"
	for san, want := range map[string]string{
		"n1": "", "192.0.2.9": "", "2001:db8::9": "", "svc": "", "n1.example.com": "",
		"m1": "m1", "M1": "m1", "192.0.2.1": "m1", "::ffff:192.0.2.1": "m1",
		"m2": "n2", "192.0.2.2": "n2", "::ffff:192.0.2.2": "n2", "M2": "n2", "n2": "",
		"twin": nobody, "m3": nobody, "api.example.com": nobody,
		"API.example.com": nobody,
		"kubernetes":      nobody, "Kubernetes.Default": nobody, "localhost": nobody, "127.0.0.1": nobody,
		"169.254.1.1": nobody, "::ffff:127.0.0.1": nobody,
		"10.96.0.1": nobody, "::ffff:10.96.0.9": nobody, "hook.ns.svc": nobody,
		"kubernetes.default.svc.cluster.local": nobody, "a.b.SVC.Cluster.Local": nobody,
	} {
		owner, reserved := n.Owner(san)
		got := owner
		if reserved && owner == "" {
			got = nobody
		}
		if got != want || !reserved && owner != "" {
			t.Errorf("%s: %q (reserved: %v), want %q", san, owner, reserved, want)
		}
	}

	n.proven = false
	if node, reserved := n.Owner("m2"); node != "" || !reserved {
		t.Errorf("m2 is %q's (%v) by the word of a member that proves nothing", node, reserved)
	}
}
