package main

import (
	"github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/cni"
)

// newOverlay says how pods reach those of nodes behind routers.
func newOverlay(cfg *config.Config) cni.Overlay {
	return cni.Overlay{VXLANPort: uint16(cfg.VXLANPort), VXLANID: cfg.VXLANID}
}
