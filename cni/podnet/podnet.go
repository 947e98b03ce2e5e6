package podnet

import (
	"fmt"
	"net/netip"
)

// Interface is the name of a pod's interface, as with every Kubernetes runtime.
const Interface = "eth0"

// Sandbox is a pod's sandbox as its network sees it. Who disconnects one needs to
// tell its ID and interface only.
type Sandbox struct {
	ID     string // of the sandbox, not of the pod, which may get another
	IfName string // the interface in the sandbox, mostly Interface
	NetNS  string // path of its network namespace; may be gone when it is disconnected
	// The pod's names and annotations; empty where nobody tells them.
	Namespace, Name, UID string
	Annotations          map[string]string
	HostPorts            []HostPort
	Bandwidth            Bandwidth
	// Network is the one that connected it, or is to; empty where nobody wrote it down.
	Network string
	// Addrs are the addresses that it has; empty where nobody wrote them down.
	Addrs []netip.Addr
}

// HostPort leads a port of the node to the pod. In JSON it is an element of the
// capability portMappings (CNI, CONVENTIONS.md).
type HostPort struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol,omitempty"` // tcp (default), udp, sctp
	HostIP        string `json:"hostIP,omitempty"`   // empty: every address of the node
}

// Bandwidth is how much a pod may receive (ingress) and send (egress), in bits a second;
// 0 is unbounded. In JSON it is the capability bandwidth (CNI, CONVENTIONS.md). The
// bursts, in bits, are for third-party plugins: the own network chooses them by the rate.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate"`
	IngressBurst uint64 `json:"ingressBurst"`
	EgressRate   uint64 `json:"egressRate"`
	EgressBurst  uint64 `json:"egressBurst"`
}

// Addr is the address of the node that has the port; the zero Addr is every one.
// Nobody has looked at HostIP before: the API takes any text.
func (p HostPort) Addr() (netip.Addr, error) {
	if p.HostIP == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(p.HostIP)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("host port %d: %w", p.HostPort, err)
	}
	if a.IsUnspecified() {
		return netip.Addr{}, nil
	}
	return a, nil
}
