package main

import (
	"path/filepath"

	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/agent/network"
	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/podnet"
)

// newOverlay says how pods reach those of nodes behind routers, and by encrypted tunnels.
func newOverlay(cfg *config.Config) cni.Overlay {
	return cni.Overlay{
		VXLANPort: uint16(cfg.VXLANPort), VXLANID: cfg.VXLANID, WireGuardPort: uint16(cfg.WireGuardPort),
		Socket: filepath.Join(cfg.RunDir, "tunnel.sock"), Program: beside("shoal-tunnel"),
	}
}

// newTunnels says what is encrypted, and where the node's key is.
func newTunnels(cfg *config.Config) network.Tunnels {
	return network.Tunnels{
		Encrypt:   cfg.Encryption,
		KeyFile:   filepath.Join(cfg.DataDir, "tunnel.key"),
		PeersFile: filepath.Join(cfg.CheckpointDir(), "tunnels.json"),
		Port:      uint16(cfg.WireGuardPort),
	}
}

// tunnelPorts are where packets of other nodes' pods come, also before there is a tunnel:
// no pod and no Service gets them, else it could have all of them.
func tunnelPorts(cfg *config.Config) []podnet.HostPort {
	return []podnet.HostPort{
		{HostPort: uint16(cfg.VXLANPort), Protocol: "UDP"}, {HostPort: uint16(cfg.WireGuardPort), Protocol: "UDP"},
		{HostPort: cni.InnerPort(uint16(cfg.WireGuardPort)), Protocol: "UDP"},
	}
}
