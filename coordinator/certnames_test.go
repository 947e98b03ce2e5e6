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
		members: func() []gossip.Member {
			return []gossip.Member{
				{Name: "n1", Meta: gossip.Meta{}},
				{Name: coordinatorPrefix + "m2", Meta: gossip.Meta{Role: gossip.RoleCoordinator, API: "https://192.0.2.2:6443"}},
				{Name: coordinatorPrefix + "m3", Meta: gossip.Meta{Role: gossip.RoleCoordinator, API: "https://api.example.com:6443"}},
			}
		},
	}
	const nobody = "nobody"
	for san, want := range map[string]string{
		"n1": "", "192.0.2.9": "", "2001:db8::9": "", "svc": "", "n1.example.com": "",
		"m1": "m1", "M1": "m1", "192.0.2.1": "m1", "::ffff:192.0.2.1": "m1",
		"m2": nobody, "192.0.2.2": nobody, "::ffff:192.0.2.2": nobody, "api.example.com": nobody,
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
}
