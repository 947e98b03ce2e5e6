package service

import (
	"hash/maphash"
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/shoal-project/shoal/cni/cidr"
)

// Key names a Service.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Tables holds every Service by name. Neither it nor a value in it is ever
// changed: the same pointer in two tables means that nothing about the Service
// changed. A nil *Tables holds nothing.
type Tables struct {
	shards   [shards]map[Key]*Service // With and Changed cost little among many Services
	n        int
	gateways int // Services that have Gateway
}

const shards = 1024

var seed = maphash.MakeSeed()

func shardOf(k Key) uint64 { return maphash.Comparable(seed, k) % shards }

// NewTables holds the given Services.
func NewTables(all ...*Service) *Tables {
	change := make(map[Key]*Service, len(all))
	for _, s := range all {
		change[s.Key] = s
	}
	return (*Tables)(nil).With(change)
}

// Get returns nil for a Service that is not there.
func (t *Tables) Get(k Key) *Service {
	if t == nil {
		return nil
	}
	return t.shards[shardOf(k)][k]
}

// Len is the number of Services.
func (t *Tables) Len() int {
	if t == nil {
		return 0
	}
	return t.n
}

// Gateways is the number of those that have Gateway.
func (t *Tables) Gateways() int {
	if t == nil {
		return 0
	}
	return t.gateways
}

func gateway(s *Service) int {
	if s != nil && s.Gateway {
		return 1
	}
	return 0
}

// All goes through the Services, in no order.
func (t *Tables) All() iter.Seq2[Key, *Service] {
	return func(yield func(Key, *Service) bool) {
		if t == nil {
			return
		}
		for _, m := range t.shards {
			for k, s := range m {
				if !yield(k, s) {
					return
				}
			}
		}
	}
}

// With returns tables with a change; a nil value removes.
func (t *Tables) With(change map[Key]*Service) *Tables {
	next := &Tables{}
	if t != nil {
		*next = *t
	}
	var own [shards]bool
	for k, s := range change {
		i := shardOf(k)
		if !own[i] {
			own[i] = true
			if next.shards[i] = maps.Clone(next.shards[i]); next.shards[i] == nil {
				next.shards[i] = map[Key]*Service{}
			}
		}
		m := next.shards[i]
		before := len(m)
		next.gateways += gateway(s) - gateway(m[k])
		if s == nil {
			delete(m, k)
		} else {
			m[k] = s
		}
		next.n += len(m) - before
	}
	return next
}

// Changed names the Services that differ between two tables, in no order.
func Changed(old, next *Tables) []Key {
	var none Tables
	if old == nil {
		old = &none
	}
	if next == nil {
		next = &none
	}
	var keys []Key
	for i := range next.shards {
		o, n := old.shards[i], next.shards[i]
		if reflect.ValueOf(o).UnsafePointer() == reflect.ValueOf(n).UnsafePointer() {
			continue
		}
		for k, s := range n {
			if o[k] != s {
				keys = append(keys, k)
			}
		}
		for k := range o {
			if n[k] == nil {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// Service is one Service as this node sees it.
type Service struct {
	Key
	ExternalName string // DNS alias; everything else is empty then
	Headless     bool   // names lead to the endpoints themselves
	// somebody else cares for it: another proxy (service.kubernetes.io/service-proxy-name), the agent's DNS
	NotProxied bool
	// AnyState: an endpoint is ready whatever its pod says, also while it ends
	// (publishNotReadyAddresses).
	AnyState     bool
	Gateway      bool         // it leads to the nodes' gateway proxies (LabelGateway)
	ClusterIPs   []netip.Addr // primary first; empty when headless
	ExternalIPs  []netip.Addr
	BalancerIPs  []netip.Addr  // of load balancers that keep the destination address
	Refused      []netip.Addr  // external addresses that are the cluster's own or its nodes', or too many
	SourceRanges cidr.Prefixes // who may use BalancerIPs; empty: everybody; one that is not valid: nobody more
	Affinity     time.Duration // a client stays with its backend for that long; 0: it need not
	HealthPort   uint16        // healthCheckNodePort; 0: none
	LocalReady   int           // usable endpoints on this node, for HealthPort
	Ports        []Port
	Endpoints    []Endpoint // with DNS records; sorted by address
	// Announcement is what nodes are to announce; nil: nothing.
	Announcement *Announcement
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
	// Lasting are other endpoints, to which no new flow goes and standing ones do, as those
	// of TCP do by themselves: of UDP the ones that serve, of SCTP, whose associations do
	// not survive a move, all that are still there. Sorted.
	Lasting []netip.AddrPort
}

// Route says where new connections go.
type Route struct {
	Backends []Backend // sorted; each with the same chance
	Drop     bool      // without backends: drop (some node has them) rather than reject
	KeepIP   bool      // the backend must see the client's own address
	Last     bool      // the backends end, or their nodes do: there are no better ones
}

// Backend is one address and port that takes connections.
type Backend struct {
	netip.AddrPort
	Local bool // a pod of this node
}

func (b Backend) compare(a netip.AddrPort) int { return b.AddrPort.Compare(a) }

// Has tells whether a new connection may go to an address and port.
func (r Route) Has(a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(r.Backends, a, Backend.compare)
	return found
}

// EndpointOf is an address and port behind a Service.
type EndpointOf struct {
	Service Key
	Addr    netip.AddrPort
}

// Carries tells whether new connections go to an endpoint though there are better ones, or
// it is as good as any.
func (t *Tables) Carries(e EndpointOf) bool {
	s := t.Get(e.Service)
	return s != nil && !s.NotProxied && !s.AnyState && slices.ContainsFunc(s.Ports, func(p Port) bool {
		return slices.ContainsFunc([]Route{p.Internal, p.External, p.Cluster},
			func(r Route) bool { return !r.Last && r.Has(e.Addr) })
	})
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
