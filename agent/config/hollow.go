package config

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Hollow makes the process play many nodes at once, without their kernel: a
// load for the API server. It is set by flags alone.
type Hollow struct {
	// Nodes is how many nodes are played; 0: the machine itself is the node.
	Nodes int
	// Prefix and a number are a node's name.
	Prefix string
	// CPU and Memory are each node's capacity, as quantities.
	CPU, Memory string
	// Zones is how many zones the nodes are spread over; 0: none.
	Zones int
	// NodeCIDR is where the nodes' addresses come from.
	NodeCIDR string
	// StartDelay is how long a container's start takes.
	StartDelay time.Duration
	// Ramp is the time over which the nodes come up.
	Ramp time.Duration
	// Services and Gossip are how many of the nodes watch Services and
	// EndpointSlices, and are members of the gossip; -1: all.
	Services, Gossip int
	// Impersonate lets each node act in its own name.
	Impersonate bool
}

func defaultHollow() Hollow {
	return Hollow{Prefix: "hollow-", CPU: "4", Memory: "32Gi", Zones: 3,
		NodeCIDR: "198.18.0.0/15", StartDelay: 100 * time.Millisecond,
		Ramp: 10 * time.Second, Impersonate: true}
}

func (h *Hollow) flags(fs *pflag.FlagSet) {
	fs.IntVar(&h.Nodes, "hollow", h.Nodes, "play this many nodes without their kernel, for load tests (needs --kubeconfig of an administrator)")
	fs.StringVar(&h.Prefix, "hollow-prefix", h.Prefix, "names of hollow nodes begin with this")
	fs.StringVar(&h.CPU, "hollow-cpu", h.CPU, "CPU capacity of a hollow node")
	fs.StringVar(&h.Memory, "hollow-memory", h.Memory, "memory capacity of a hollow node")
	fs.IntVar(&h.Zones, "hollow-zones", h.Zones, "zones that hollow nodes are spread over, 0 for none")
	fs.StringVar(&h.NodeCIDR, "hollow-node-cidr", h.NodeCIDR, "addresses of hollow nodes")
	fs.DurationVar(&h.StartDelay, "hollow-start-delay", h.StartDelay, "how long the start of a container takes on hollow nodes")
	fs.DurationVar(&h.Ramp, "hollow-ramp", h.Ramp, "time over which hollow nodes come up")
	fs.IntVar(&h.Services, "hollow-services", h.Services, "how many hollow nodes watch Services and EndpointSlices, -1 for all")
	fs.IntVar(&h.Gossip, "hollow-gossip", h.Gossip, "how many hollow nodes are members of the gossip, -1 for all")
	fs.BoolVar(&h.Impersonate, "hollow-impersonate", h.Impersonate, "hollow nodes act in their own names (system:node:NAME)")
}

func (h *Hollow) validate(kubeconfig string) error {
	if h.Nodes == 0 {
		return nil
	}
	var errs []error
	if h.Nodes < 0 {
		errs = append(errs, fmt.Errorf("hollow: %d is not a number of nodes", h.Nodes))
	}
	if kubeconfig == "" {
		errs = append(errs, errors.New("hollow: nodes without --kubeconfig have nothing to talk to"))
	}
	for flag, q := range map[string]string{"hollow-cpu": h.CPU, "hollow-memory": h.Memory} {
		if v, err := resource.ParseQuantity(q); err != nil || v.Sign() <= 0 {
			errs = append(errs, fmt.Errorf("%s: %q is not a positive quantity", flag, q))
		}
	}
	p, err := netip.ParsePrefix(h.NodeCIDR)
	if err != nil || !p.Addr().Is4() || h.Nodes >= 1<<(32-p.Bits())-1 {
		errs = append(errs,
			fmt.Errorf("hollow-node-cidr: %q is not an IPv4 CIDR with an address for each node", h.NodeCIDR))
	}
	return errors.Join(errs...)
}
