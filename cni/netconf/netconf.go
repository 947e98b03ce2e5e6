// Package netconf is the configuration type of the shoal-cni plugin, for who
// writes a conflist and for the plugin that reads it.
package netconf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/shoal-project/shoal/cni/podnet"
)

// Type is the plugin's name in a conflist.
const Type = "shoal-cni"

// Conf is one plugin entry of a conflist. Empty fields mean cni.Config's defaults.
type Conf struct {
	types.PluginConf
	Bridge       string         `json:"bridge,omitempty"`
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`
	ClusterCIDRs []netip.Prefix `json:"clusterCIDRs,omitempty"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`
	ClusterDNS   []netip.Addr   `json:"clusterDNS,omitempty"`
	MTU          int            `json:"mtu,omitempty"`
	StateDir     string         `json:"stateDir,omitempty"`
	Table        string         `json:"table,omitempty"`

	RuntimeConfig struct {
		PortMappings []podnet.HostPort `json:"portMappings,omitempty"`
		Bandwidth    podnet.Bandwidth  `json:"bandwidth,omitzero"`
	} `json:"runtimeConfig,omitempty"`
}

// Parse reads a plugin's standard input.
func Parse(stdin []byte) (*Conf, error) {
	var c Conf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return nil, fmt.Errorf("parse network configuration: %w", err)
	}
	if len(c.PodCIDRs) == 0 {
		return nil, fmt.Errorf("parse network configuration: podCIDRs is empty; give this node's pod network")
	}
	for field, list := range map[string][]netip.Prefix{"podCIDRs": c.PodCIDRs, "clusterCIDRs": c.ClusterCIDRs} {
		if slices.ContainsFunc(list, func(p netip.Prefix) bool { return !p.IsValid() }) {
			return nil,
				fmt.Errorf("parse network configuration: %s holds an empty range; give one such as 10.244.7.0/24", field)
		}
	}
	return &c, nil
}
