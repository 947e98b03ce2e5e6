package network

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni"
)

// Gossip is what Run needs of the gossip.
type Gossip interface {
	Members() []gossip.Member
	Changed() <-chan struct{}
}

// routesRetry is how often routes are tried again that could not be made.
const routesRetry = 30 * time.Second

// checkEvery is how often the own network is looked at beside the times when the kernel
// tells that somebody changed it: it does not tell of all, and may lose what it tells.
const checkEvery = time.Minute

// pairsEvery is how often hidden peers of a hidden node are looked at: WireGuard tells nobody
// that it has a session with one, or none any more.
const pairsEvery = 2 * time.Second

// Run keeps the routes to the other nodes' pods, and the own network as a
// whole, until ctx ends.
func (m *Manager) Run(ctx context.Context, g Gossip) error {
	changed := g.Changed()
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	changedByOthers := m.cfg.Foreign.Any()
	defer m.tunnels.wg.Wait()
	var done *neighbours
	var told string
	for {
		var retry <-chan time.Time
		members := g.Members()
		peers := &neighbours{peers: peersOf(members)}
		var keyErr error
		peers.self, keyErr = m.tunnels.fill(g, members, peers.peers)
		switch {
		case m.ownNetwork() == nil || m.Name() != Builtin:
			done = nil // poked when that changes
		case done == nil || !reflect.DeepEqual(peers, done):
			paths, err := m.syncRoutes(peers)
			m.tell(paths)
			m.tunnels.look(ctx, g, members, paths)
			m.tunnels.seek(ctx, g, members, peers.peers, paths)
			if err = errors.Join(keyErr, err); err != nil {
				if err.Error() != told {
					told = err.Error()
					m.log.Warn("some pods of other nodes cannot be reached", "err", err)
				}
				done, retry = nil, time.After(routesRetry)
				break
			}
			done, told = peers, ""
		}
		var look <-chan time.Time
		if m.tunnels.paired() {
			look = time.After(pairsEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look:
			done = nil
		case <-changed:
		case <-m.wake:
			done = nil
		case <-retry:
		case <-check.C:
			m.repair()
			done = nil
		case <-changedByOthers:
			m.repair()
			done = nil
		}
	}
}

// tell tells of nodes that are reached by another path than before, once by a tunnel.
func (m *Manager) tell(paths map[string]cni.Path) {
	for name, path := range paths {
		before := m.tunnels.paths[name]
		if path == before || before == cni.Unreachable && path == cni.Direct {
			continue
		}
		log := m.log.With("node", name, "path", path, "before", before)
		if by := m.tunnels.relayOf(name); path == cni.Relayed || path == cni.RelayedClear {
			log = log.With("through", by)
		}
		log.Info("pods of another node are reached by another path")
		if path == cni.RelayedClear {
			log.Warn("the node between can read what pods exchange, until the other one is upgraded")
		}
	}
	m.tunnels.paths = paths
}

// neighbours are this node and the others.
type neighbours struct {
	self  cni.Self
	peers []cni.Peer
}

func ownAddresses(members []gossip.Member) []netip.Addr {
	for _, m := range members {
		if m.Local {
			return m.NodeIPs
		}
	}
	return nil
}

func (m *Manager) syncRoutes(to *neighbours) (map[string]cni.Path, error) {
	m.use.RLock()
	defer m.use.RUnlock()
	n := m.ownNetwork()
	if n == nil || m.Name() != Builtin {
		return nil, nil
	}
	m.making()
	return n.SyncPeers(to.self, to.peers)
}

func (m *Manager) repair() {
	m.use.RLock()
	defer m.use.RUnlock()
	n := m.ownNetwork()
	if n == nil || m.Name() != Builtin {
		return
	}
	m.making()
	found, err := n.Repair()
	switch {
	case err != nil:
		m.log.Warn("the pod network is damaged", "found", found, "err", err)
	case found != "":
		m.log.Warn("somebody else changed the pod network; it is made right", "found", found)
	}
}

// peersOf lists the members that route pods: of each the ranges and addresses
// that the API gave its Node (gossip.Grant), whatever it says itself. A dead one
// keeps its routes: it may only be deaf, and nothing else has its pods. A range
// that was given on, since its Node was deleted, is the new Node's, also while the
// old machine still shows its grant.
func peersOf(members []gossip.Member) []cni.Peer {
	members = slices.DeleteFunc(slices.Clone(members), func(m gossip.Member) bool { return m.Role != gossip.RoleAgent })
	slices.SortStableFunc(members, func(a, b gossip.Member) int {
		return cmp.Or(b.Granted.Compare(a.Granted), compareBool(b.State.Up(), a.State.Up()))
	})
	taken := given{}
	peers := []cni.Peer{}
	for _, mem := range members {
		if len(mem.NodeIPs) == 0 && !mem.Local {
			continue
		}
		cidrs := slices.DeleteFunc(slices.Clone(mem.PodCIDRs), taken.overlaps)
		for _, p := range cidrs {
			taken.add(p)
		}
		if mem.Local || mem.State == gossip.StateLeft || len(cidrs) == 0 {
			continue
		}
		peers = append(peers, cni.Peer{Name: mem.Name, PodCIDRs: cidrs, Via: viaOf(mem, cidrs[0]), Nodes: mem.NodeIPs})
	}
	return peers
}

// viaOf is the member's address that leads to a range of its pods: the first of the same
// family, or, where only a tunnel does, the first.
func viaOf(m gossip.Member, p netip.Prefix) netip.Addr {
	for _, a := range m.NodeIPs {
		if a.Is4() == p.Addr().Is4() {
			return a
		}
	}
	return m.NodeIPs[0]
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// given holds ranges by their length: mostly all have the same, so that a look
// for an overlap among many is short.
type given map[int]map[netip.Prefix]bool

func (g given) add(p netip.Prefix) {
	if g[p.Bits()] == nil {
		g[p.Bits()] = map[netip.Prefix]bool{}
	}
	g[p.Bits()][p.Masked()] = true
}

func (g given) overlaps(p netip.Prefix) bool {
	for bits, list := range g {
		if bits <= p.Bits() {
			if wide, err := p.Addr().Prefix(bits); err == nil && list[wide] {
				return true
			}
			continue
		}
		for inside := range list {
			if p.Contains(inside.Addr()) {
				return true
			}
		}
	}
	return false
}
