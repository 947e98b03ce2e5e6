package main

import (
	"slices"
	"testing"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/cni/podnet"
)

// TestTunnelPortsAreTheNodes: a pod cannot ask for the ports at which other nodes' pods'
// packets come.
func TestTunnelPortsAreTheNodes(t *testing.T) {
	cfg := config.Default()
	cfg.WireGuardPort = 51821
	own := ownPorts(&cfg)
	for _, p := range []uint16{4789, 51821, 51822} {
		if !slices.Contains(own, podnet.HostPort{HostPort: p, Protocol: "UDP"}) {
			t.Errorf("UDP %d is not the node's own: %v", p, own)
		}
	}
}
