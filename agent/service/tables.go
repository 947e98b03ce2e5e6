package service

import (
	"net/netip"
	"time"
)

// Key names a Service.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Tables holds every Service by name. A value is never changed once it is in a
// table: the same pointer in two tables means that nothing about it changed.
type Tables map[Key]*Service

// Service is one Service as this node sees it.
type Service struct {
	Key
	ExternalName string       // DNS alias; everything else is empty then
	Headless     bool         // names lead to the endpoints themselves
	NotProxied   bool         // another proxy cares for it (service.kubernetes.io/service-proxy-name)
	ClusterIPs   []netip.Addr // primary first; empty when headless
	ExternalIPs  []netip.Addr
	BalancerIPs  []netip.Addr   // of load balancers that keep the destination address
	SourceRanges []netip.Prefix // who may use BalancerIPs; empty: everybody
	Affinity     time.Duration  // a client stays with its backend for that long; 0: it need not
	HealthPort   uint16         // healthCheckNodePort; 0: none
	LocalReady   int            // usable endpoints on this node, for HealthPort
	Ports        []Port
	Endpoints    []Endpoint // with DNS records; sorted by address
}

// Port is one port of a Service.
type Port struct {
	Name     string
	Protocol string // TCP, UDP, SCTP
	Number   uint16
	NodePort uint16 // 0: none
	Internal Route  // for cluster IPs
	External Route  // for node ports, external and load balancer addresses
	Cluster  Route  // for External's addresses when a pod or process of this node uses them
}

// Route says where new connections go.
type Route struct {
	Backends []Backend // sorted; each with the same chance
	Drop     bool      // without backends: drop (some node has them) rather than reject
	KeepIP   bool      // the backend must see the client's own address
}

// Backend is one address and port that takes connections.
type Backend struct {
	netip.AddrPort
	Local bool // a pod of this node
}

// Endpoint is one address behind a Service, with the ports' real numbers.
type Endpoint struct {
	Addr     netip.Addr
	Hostname string // as given in the slice, often empty
	Ports    []EndpointPort
}

// EndpointPort is one port of an endpoint.
type EndpointPort struct {
	Name     string
	Protocol string
	Number   uint16
}
