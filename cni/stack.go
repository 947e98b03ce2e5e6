package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/podnet"
)

// stack is one address family of a node's pod network: the addresses of its pods,
// and the sets of its table. A network has one, or one of each family (KEP-563).
type stack struct {
	nft.Family
	pool pool
	*sets
}

// sets are those of a family's table, and that of the bridge's for the family.
type sets struct {
	hostPorts     *nft.Set // pod address . port, on every address of the node
	addrHostPorts *nft.Set // the same for one address of the node
	hairpins      *nft.Set // address pairs of pods that may reach themselves through a host port
	senders       *nft.Set // who may send what: port . hardware address . address
}

// setsOf never changes: a set is known by its place in memory.
var setsOf = map[nft.Family]*sets{nft.V4: newSets(nft.V4, "pods"), nft.V6: newSets(nft.V6, "pods6")}

func newSets(f nft.Family, senders string) *sets {
	return &sets{
		hostPorts:     &nft.Set{Name: "hostports", Key: nft.ProtoPort().Type(), Data: f.Target(), Keep: true},
		addrHostPorts: &nft.Set{Name: "addr-hostports", Key: f.AddrProtoPort().Type(), Data: f.Target(), Keep: true},
		hairpins:      &nft.Set{Name: "hairpin", Key: f.AddrPair().Type(), Keep: true},
		senders:       &nft.Set{Name: senders, Key: f.Sender().Type(), Keep: true},
	}
}

// Longest prefixes of a node's pods: a gateway, some pods, and with IPv4 a broadcast
// address have room.
const (
	longestV4 = 29
	longestV6 = 125
)

// stacksOf are the families that a node's ranges are of; of each the first range counts.
func stacksOf(cfg Config) (out []stack, err error) {
	known := &index{}
	for _, p := range cfg.PodCIDRs {
		f, longest := nft.FamilyOf(p.Addr()), longestV4
		if f == nft.V6 {
			longest = longestV6
		}
		if slices.ContainsFunc(out, func(s stack) bool { return s.Family == f }) {
			continue
		}
		if p.Bits() > longest {
			return nil, fmt.Errorf("%s is too small", p)
		}
		out = append(out, stack{f, pool{filepath.Join(cfg.StateDir, cfg.Bridge), p.Masked(), known}, setsOf[f]})
	}
	if len(out) == 0 {
		return nil, errors.New("no pod CIDR")
	}
	return out, nil
}

// has tells whether an address is of the family.
func (s stack) has(a netip.Addr) bool { return nft.FamilyOf(a) == s.Family }

// only are the ranges of the family.
func (s stack) only(p cidr.Prefixes) cidr.Prefixes {
	if s.Family == nft.V6 {
		return p.V6()
	}
	return p.V4()
}

// gateway is the family's address of the node on the bridge.
func (s stack) gateway() netip.Addr { return s.pool.gateway() }

// stack is the one of an address's family, nil if the network has none.
func (n *Network) stack(a netip.Addr) *stack {
	for i := range n.stacks {
		if n.stacks[i].has(a) {
			return &n.stacks[i]
		}
	}
	return nil
}

// mac is the bridge's. It stays when a second family comes: pods know it for good.
func (n *Network) mac() net.HardwareAddr { return macOf(n.stacks[0].gateway()) }

// reserve gives a sandbox an address of each family, those that it has if it does.
func (n *Network) reserve(s podnet.Sandbox) (out []end, err error) {
	for _, st := range n.stacks {
		a, err := st.pool.reserve(ownerOf(s), s.UID)
		if err != nil {
			return nil, err
		}
		out = append(out, end{a, st.gateway()})
	}
	return out, nil
}

// release frees an address of any family; all are in one directory.
func (n *Network) release(a netip.Addr) error { return n.stacks[0].pool.release(a) }

// held are the addresses that are reserved, by owner; also those of a family that the
// network had before. A sandbox's IPv4 address comes first.
func (n *Network) held() (map[string][]netip.Addr, error) {
	all, err := n.stacks[0].pool.held()
	if err != nil {
		return nil, err
	}
	out := map[string][]netip.Addr{}
	for a, owner := range all {
		out[owner] = append(out[owner], a)
	}
	for _, list := range out {
		slices.SortFunc(list, netip.Addr.Compare)
	}
	return out, nil
}

// heldBy are an owner's addresses.
func (n *Network) heldBy(owner string) ([]netip.Addr, error) {
	held, err := n.held()
	return held[owner], err
}
