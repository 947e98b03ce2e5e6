package network

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/podnet"
)

// ErrNotReady is Status's answer as long as no network can connect a pod. Its
// text is what container runtimes say, and what users search for.
var ErrNotReady = errors.New("cni plugin not initialized")

// Config of the node's pod network. Empty strings for Bridge, Table and
// StateDir mean cni.Config's defaults.
type Config struct {
	ConfDir      string // third-party networks' configuration, /etc/cni/net.d
	BinDir       string // their plugins, /opt/cni/bin
	CacheDir     string // what they answered, for DEL after a restart; /var/lib/cni
	Bridge       string
	Table        string
	StateDir     string // the own network's reservations
	MTU          int
	ClusterCIDRs cidr.Prefixes
	ServiceCIDRs cidr.Prefixes
	DNS          []netip.Addr      // cni.Config's
	OwnPorts     []podnet.HostPort // cni.Config's
	// Hold is how long a stopped sandbox stays connected to the own network; 0: not
	// at all.
	Hold time.Duration
	Log  *slog.Logger
}

// Manager connects the pods of one node. Its methods may be called at the same time.
type Manager struct {
	cfg   Config
	log   *slog.Logger
	third *thirdParty
	holds *holds

	mu       sync.Mutex
	podCIDRs cidr.Prefixes
	own      *cni.Network // nil until the pod CIDR is known
	known    []podnet.Sandbox
}

// New looks at nothing yet.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg, log: cfg.Log}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.third = newThirdParty(cfg, m.log)
	m.holds = &holds{time: cfg.Hold, log: m.log, all: map[string]*hold{}}
	return m
}

// SetPodCIDRs tells the node's pod networks; the same again changes nothing.
func (m *Manager) SetPodCIDRs(cidrs cidr.Prefixes) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own != nil && slices.Equal(cidrs, m.podCIDRs) {
		return nil
	}
	n, err := m.newOwn(cidrs)
	if err != nil {
		return err
	}
	m.own, m.podCIDRs = n, slices.Clone(cidrs)
	if err := n.Know(m.known); err != nil {
		return err
	}
	if m.third.current() != nil {
		return nil
	}
	return n.Ensure()
}

// Know tells of the sandboxes that were connected before the agent began.
func (m *Manager) Know(list []podnet.Sandbox) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = list
	if m.own == nil {
		return nil
	}
	return m.own.Know(list)
}

func (m *Manager) newOwn(cidrs cidr.Prefixes) (*cni.Network, error) {
	return cni.New(cni.Config{
		Bridge:       m.cfg.Bridge,
		Table:        m.cfg.Table,
		StateDir:     m.cfg.StateDir,
		MTU:          m.cfg.MTU,
		PodCIDRs:     cidrs,
		ClusterCIDRs: m.cfg.ClusterCIDRs,
		ServiceCIDRs: m.cfg.ServiceCIDRs,
		DNS:          m.cfg.DNS,
		OwnPorts:     m.cfg.OwnPorts,
	})
}

func (m *Manager) ownNetwork() *cni.Network {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own
}

// Status is nil when pods can be connected, else the reason, mostly ErrNotReady.
func (m *Manager) Status(ctx context.Context) error {
	if list := m.third.current(); list != nil {
		return m.third.status(ctx, list)
	}
	if m.ownNetwork() == nil {
		return ErrNotReady
	}
	return nil
}

// Setup connects a pod and returns its addresses, the primary one first. It may
// be repeated; after an error the caller calls Teardown.
func (m *Manager) Setup(ctx context.Context, s podnet.Sandbox) ([]netip.Addr, error) {
	if list := m.third.current(); list != nil {
		return m.third.add(ctx, list, s)
	}
	n := m.ownNetwork()
	if n == nil {
		return nil, ErrNotReady
	}
	// A sandbox that is made anew has the address of the one before it.
	m.holds.endEarly(func(e podnet.Sandbox) bool { return s.UID != "" && e.UID == s.UID })
	r, err := n.Add(ctx, s)
	if errors.Is(err, cni.ErrNoAddress) && m.holds.endEarly(func(podnet.Sandbox) bool { return true }) > 0 {
		r, err = n.Add(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	return r.Addrs, nil
}

// Teardown disconnects a pod from every network that ever connected it, from the
// own one a moment later (Hold). It may be repeated and needs neither the namespace
// nor a pod that was connected.
func (m *Manager) Teardown(ctx context.Context, s podnet.Sandbox) error {
	var own error
	if n := m.ownNetwork(); n != nil && (m.third.current() != nil || !m.holds.begin(n, s)) {
		own = n.Del(ctx, s)
	}
	return errors.Join(own, m.third.del(ctx, s.ID))
}

// Check tells whether a pod's connection is still whole.
func (m *Manager) Check(ctx context.Context, s podnet.Sandbox) error {
	n := m.ownNetwork()
	if m.third.current() != nil || n == nil {
		return m.third.check(ctx, s.ID)
	}
	return n.Check(ctx, s)
}

// Release frees whatever belongs to none of the live sandboxes. Call it once
// the list of sandboxes is known for certain.
func (m *Manager) Release(ctx context.Context, live []string) error {
	var errs []error
	if n := m.ownNetwork(); n != nil {
		keep := make([]podnet.Sandbox, 0, len(live))
		for _, id := range append(m.holds.ids(), live...) {
			keep = append(keep, podnet.Sandbox{ID: id, IfName: podnet.Interface})
		}
		errs = append(errs, n.GC(ctx, keep))
	}
	return errors.Join(append(errs, m.third.gc(ctx, live))...)
}

// Close disconnects at once what is held. Pods stay connected.
func (m *Manager) Close() { m.holds.endEarly(func(podnet.Sandbox) bool { return true }) }

// Cleanup removes the own network from the node: bridge, interfaces, routes,
// nftables table and reservations. Sandboxes must be gone.
func (m *Manager) Cleanup() error {
	m.holds.drop()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.own
	if n == nil { // names suffice to remove; the prefix matters not
		var err error
		if n, err = m.newOwn(cidr.Parse("192.0.2.0/24")); err != nil {
			return err
		}
	}
	m.own = nil
	return n.Cleanup()
}

func defaultDir(dir, def string) string {
	if dir == "" {
		return def
	}
	return filepath.Clean(dir)
}
