package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/foreign"
	"github.com/shoal-project/shoal/cni/podnet"
)

// ErrNotReady is Status's answer as long as no network can connect a pod. Its
// text is what container runtimes say, and what users search for.
var ErrNotReady = errors.New("cni plugin not initialized")

// requestTime is the kubelet's runtimeRequestTimeout where nothing else is said.
const requestTime = 2 * time.Minute

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
	Overlay      cni.Overlay
	HostFirewall cni.HostFirewall
	// Firewalld is opened while the own network is on the node; nil: it is left alone.
	Firewalld Firewalld
	Tunnels   Tunnels
	// Foreign tells when another program changed what the own network stands on; nil: nobody does.
	Foreign *foreign.Watcher
	// None leaves the pods to a third party: without its configuration there is no network.
	None bool
	// Elsewhere: a runtime of others connects the pods, with the own network's plugin.
	Elsewhere bool
	// Request is how long a plugin's DEL may take, its ADD twice that; 0: requestTime.
	Request time.Duration
	// Hold is how long a stopped sandbox stays connected; 0: not at all.
	Hold time.Duration
	Log  *slog.Logger
}

// Firewalld is a firewall that is told when the own network comes and goes.
type Firewalld interface {
	Open() // costs nothing when it is open
	Close() error
}

// Manager connects the pods of one node. Its methods may be called at the same time.
type Manager struct {
	cfg   Config
	log   *slog.Logger
	third *thirdParty
	holds *holds
	// wake has Run look at the routes again.
	wake chan struct{}
	// use is held by who makes something of the own network, and for writing by who
	// takes it away.
	use sync.RWMutex
	// made: something of the own network may be on the node.
	made atomic.Bool
	// setting is SetPodCIDRs'; it comes before use, and mu after that.
	setting sync.Mutex
	// tunnels is Run's.
	tunnels tunnels
	// away: a third party's configuration was here a moment ago, and may come back.
	away atomic.Bool

	mu       sync.Mutex
	waiting  map[string]chan struct{} // by pod UID: closed when it is connected
	podCIDRs cidr.Prefixes
	own      *cni.Network // nil until the pod CIDR is known
	known    []podnet.Sandbox
}

// New looks at nothing yet.
func New(cfg Config) *Manager {
	m := &Manager{cfg: cfg, log: cfg.Log, wake: make(chan struct{}, 1), waiting: map[string]chan struct{}{}}
	m.made.Store(true) // by an agent before, for all we know
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	m.tunnels = tunnels{cfg: cfg.Tunnels, poke: m.poke}
	m.cfg.Overlay.Ended = m.poke
	m.third = newThirdParty(cfg, m.log)
	m.holds = &holds{time: cfg.Hold, log: m.log, all: map[string]*hold{}}
	return m
}

// SetPodCIDRs tells the node's pod networks; the same again changes nothing.
func (m *Manager) SetPodCIDRs(cidrs cidr.Prefixes) error {
	m.setting.Lock()
	defer m.setting.Unlock()
	n, err := m.newNetworks(cidrs)
	if n == nil || err != nil {
		return err
	}
	m.use.RLock()
	defer m.use.RUnlock()
	if m.Name() != Builtin {
		return nil
	}
	m.making()
	return n.Ensure()
}

// making is called before something of the own network is made.
func (m *Manager) making() {
	m.made.Store(true)
	if m.cfg.Firewalld != nil {
		m.cfg.Firewalld.Open()
	}
}

// newNetworks takes the node's pod networks; nil when it has these.
func (m *Manager) newNetworks(cidrs cidr.Prefixes) (*cni.Network, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own != nil && slices.Equal(cidrs, m.podCIDRs) {
		return nil, nil
	}
	n, err := m.newOwn(cidrs)
	if err != nil {
		return nil, err
	}
	m.own, m.podCIDRs = n, slices.Clone(cidrs)
	m.poke()
	return n, n.Know(m.known)
}

// Builtin is the name of the own network. No CNI configuration can have it.
const Builtin = "(builtin)"

// Name is the network that connects pods now; "" for none.
func (m *Manager) Name() string {
	if list := m.third.current(); list != nil {
		return list.Name
	}
	if m.cfg.None || m.away.Load() {
		return ""
	}
	return Builtin
}

func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
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
		Overlay:      m.cfg.Overlay,
		Elsewhere:    m.cfg.Elsewhere,
		HostFirewall: m.cfg.HostFirewall,
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
	if m.ownNetwork() == nil || m.Name() != Builtin {
		return ErrNotReady
	}
	return nil
}

// Setup connects a pod and returns its addresses, the primary one first. It may
// be repeated; after an error the caller calls Teardown.
func (m *Manager) Setup(ctx context.Context, s podnet.Sandbox) ([]netip.Addr, error) {
	if now := m.Name(); s.Network != "" && s.Network != now {
		return nil, fmt.Errorf("the pod network changed from %s to %s, trying again", s.Network, now)
	}
	var err error
	if s.Bandwidth, err = bandwidthOf(s.Annotations); err != nil {
		return nil, err
	}
	// A sandbox that is made anew has the address of the one before it.
	m.holds.endEarly(func(e *hold) bool { return s.UID != "" && e.sandbox.UID == s.UID })
	addrs, err := m.connect(ctx, s)
	if err != nil && !errors.Is(err, ErrNotReady) && m.holds.endEarly(anyHold) > 0 {
		addrs, err = m.connect(ctx, s) // they may have had the last addresses
	}
	if err == nil {
		m.connected(s.UID)
	}
	return addrs, err
}

func (m *Manager) connect(ctx context.Context, s podnet.Sandbox) ([]netip.Addr, error) {
	if list := m.third.current(); list != nil {
		return m.third.add(ctx, list, s)
	}
	m.use.RLock()
	defer m.use.RUnlock()
	n := m.ownNetwork()
	if n == nil || m.Name() != Builtin {
		return nil, ErrNotReady
	}
	m.making()
	r, err := n.Add(ctx, s)
	if err != nil {
		return nil, err
	}
	return r.Addrs, nil
}

// Teardown disconnects a pod from every network that ever connected it, a moment
// later (Hold) where it is still the same network. It may be repeated and needs
// neither the namespace nor a pod that was connected.
func (m *Manager) Teardown(ctx context.Context, s podnet.Sandbox) error {
	if m.hold(s) {
		return nil
	}
	return m.disconnect(ctx, s)
}

// hold tells whether a pod is disconnected a moment later. Host ports go at once:
// they are the node's, and may be wanted. A third party's cannot be taken alone.
func (m *Manager) hold(s podnet.Sandbox) bool {
	now := m.Name()
	if now == "" || s.Network != "" && s.Network != now {
		return false
	}
	e := &hold{sandbox: s, disconnect: m.disconnect, third: now != Builtin}
	if e.third {
		return len(s.HostPorts) == 0 && (m.holds.has(s.ID) || m.third.has(s.ID)) && m.holds.begin(e)
	}
	n := m.ownNetwork()
	if n == nil || !m.holds.begin(e) {
		return false
	}
	if len(s.HostPorts) == 0 {
		return true
	}
	m.use.RLock()
	defer m.use.RUnlock()
	if err := n.CloseHostPorts(s); err != nil {
		m.log.Warn("host ports of a pod that has ended stay for a moment", "pod", s.Namespace+"/"+s.Name, "err", err)
	}
	return true
}

func (m *Manager) disconnect(ctx context.Context, s podnet.Sandbox) error {
	return errors.Join(m.disconnectOwn(ctx, s), m.third.del(ctx, s.ID, s.NetNS))
}

func (m *Manager) disconnectOwn(ctx context.Context, s podnet.Sandbox) error {
	m.use.RLock()
	defer m.use.RUnlock()
	if n := m.ownNetwork(); n != nil {
		return n.Del(ctx, s)
	}
	return nil
}

// Check tells whether a pod's connection is still whole.
func (m *Manager) Check(ctx context.Context, s podnet.Sandbox) error {
	n := m.ownNetwork()
	if m.Name() != Builtin || n == nil {
		return m.third.check(ctx, s.ID)
	}
	return n.Check(ctx, s)
}

// Release frees what the own network has of none of the live sandboxes; Follow does
// that of third parties' networks, whose plugins may take their time. Call it once the
// list of sandboxes is known for certain.
func (m *Manager) Release(ctx context.Context, live []string) error {
	n := m.ownNetwork()
	if n == nil {
		return nil
	}
	live = append(m.holds.ids(), live...)
	keep := make([]podnet.Sandbox, 0, len(live))
	for _, id := range live {
		keep = append(keep, podnet.Sandbox{ID: id, IfName: podnet.Interface})
	}
	m.use.RLock()
	defer m.use.RUnlock()
	return n.GC(ctx, keep)
}

// Close disconnects at once what is held. Pods stay connected.
func (m *Manager) Close() { m.holds.endEarly(anyHold) }

// Cleanup removes the own network from the node: bridge, interfaces, routes,
// nftables table and reservations. Sandboxes must be gone.
func (m *Manager) Cleanup() error {
	m.holds.endEarly(func(e *hold) bool { return e.third })
	err := m.takeAway()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.own = nil
	return err
}

// takeAway removes what is on the node of the own network, which can be made again.
func (m *Manager) takeAway() error {
	m.holds.drop()
	m.use.Lock()
	defer m.use.Unlock()
	n := m.ownNetwork()
	if n == nil { // names suffice to remove; the prefix matters not
		var err error
		if n, err = m.newOwn(cidr.Parse("192.0.2.0/24")); err != nil {
			return err
		}
	}
	err := n.Cleanup()
	if m.cfg.Firewalld != nil {
		err = errors.Join(err, m.cfg.Firewalld.Close())
	}
	m.made.Store(err != nil)
	return err
}

func defaultDir(dir, def string) string {
	if dir == "" {
		return def
	}
	return filepath.Clean(dir)
}
