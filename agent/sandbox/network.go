package sandbox

import (
	"context"
	"net/netip"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/cni/podnet"
)

// Network gives a pod its addresses, the primary one first. Pods in the node's
// network never reach it. All calls may be repeated; Teardown of what is not there
// is no error.
type Network interface {
	// Name is that of the network that connects pods now; it may change. Setup
	// refuses a sandbox that was promised to another.
	Name() string
	Setup(ctx context.Context, s podnet.Sandbox) ([]netip.Addr, error)
	Teardown(ctx context.Context, s podnet.Sandbox) error
}

// networked is the sandbox as its network sees it.
func (s *Sandbox) networked() podnet.Sandbox {
	m := s.Config.GetMetadata()
	return podnet.Sandbox{
		ID:          s.ID,
		IfName:      podnet.Interface,
		NetNS:       s.NetNS(),
		Namespace:   m.GetNamespace(),
		Name:        m.GetName(),
		UID:         m.GetUid(),
		Annotations: s.Config.GetAnnotations(),
		HostPorts:   hostPorts(s.Config.GetPortMappings()),
		Network:     s.Network,
		Addrs:       s.IPs,
	}
}

// hostPorts are the mappings that ask for a port of the node.
func hostPorts(mappings []*criv1.PortMapping) (ports []podnet.HostPort) {
	for _, m := range mappings {
		if m.HostPort != 0 {
			ports = append(ports, podnet.HostPort{
				HostPort:      uint16(m.HostPort),
				ContainerPort: uint16(m.ContainerPort),
				Protocol:      strings.ToLower(m.Protocol.String()),
				HostIP:        m.HostIp,
			})
		}
	}
	return ports
}

// Connected tells which sandboxes a network has: by their IDs all of which it was
// not told that they end, and as it knows them those that are ready.
func (m *Manager) Connected() (ids []string, ready []podnet.Sandbox) {
	for _, s := range m.List() {
		if s.HostNetwork() || !s.Networked && !s.Ready {
			continue
		}
		ids = append(ids, s.ID)
		if s.Ready {
			ready = append(ready, s.networked())
		}
	}
	return ids, ready
}
