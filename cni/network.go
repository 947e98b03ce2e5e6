package cni

import (
	"cmp"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/podnet"
)

// Defaults of Config.
const (
	DefaultBridge   = "shoal0"
	DefaultTable    = "shoal_cni"
	DefaultStateDir = "/run/shoal/cni"
)

// Config of a node's pod network.
type Config struct {
	Bridge       string        // default shoal0
	PodCIDRs     cidr.Prefixes // this node's, one or one of each family; the first is the pods' primary one
	ClusterCIDRs cidr.Prefixes // all nodes' pod networks: traffic to them is not masqueraded
	// ServiceCIDRs are routed to the bridge, so that the node itself reaches Services
	// without a default route. No host port answers on them.
	ServiceCIDRs cidr.Prefixes
	DNS          []netip.Addr      // the cluster DNS's on this node: no host port answers on them
	OwnPorts     []podnet.HostPort // what the node itself listens on: no pod gets them as host ports
	MTU          int               // 0: the default route's interface's, else 1500
	StateDir     string            // reservations; best on a tmpfs, since none outlives a reboot
	Table        string            // nftables tables of the ip and the bridge family, owned; default shoal_cni
	Overlay      Overlay
	// Elsewhere: another process connects the pods to the bridge, a plugin, which says what they
	// may send: nobody else knows of them.
	Elsewhere    bool
	HostFirewall HostFirewall
}

// Network is a node's pod network. Its methods may be called at the same time.
type Network struct {
	cfg    Config
	stacks []stack // by family, the primary one first
	reaper reaper

	overlay   overlay
	tunnelMTU int // of the narrowest tunnel in use, under mu; 0: none

	mu     sync.Mutex // bridge and nftables set-up, nftables connection
	conn   *nft.Conn
	bridge int  // interface index; 0: to be made
	tables bool // were made once
	// ports are the host ports of those who have an address, by ownerOf: what to put
	// back after somebody flushed the ruleset.
	ports map[string][]podnet.HostPort
	mtu   int
}

// ownerOf is who has a sandbox's address, as the reservation says.
func ownerOf(s podnet.Sandbox) string { return s.ID + "/" + s.IfName }

// ownedBy is the sandbox that a reservation is of, by its names.
func ownedBy(owner string) podnet.Sandbox {
	id, ifName, _ := strings.Cut(owner, "/")
	return podnet.Sandbox{ID: id, IfName: ifName}
}

// hostIf is the interface's name on the node's side, within the kernel's 15 bytes.
func hostIf(s podnet.Sandbox) string {
	sum := sha1.Sum([]byte(ownerOf(s)))
	return "veth" + hex.EncodeToString(sum[:])[:10]
}

// Result tells what Add made.
type Result struct {
	Addrs    []netip.Addr // the primary family's first
	Gateways []netip.Addr // of each address
	HostIf   string
	MAC      string
}

// New checks the configuration; nothing is made before the first Add or Ensure.
func New(cfg Config) (*Network, error) {
	if cfg.Bridge == "" {
		cfg.Bridge = DefaultBridge
	}
	if cfg.Table == "" {
		cfg.Table = DefaultTable
	}
	if cfg.StateDir == "" {
		cfg.StateDir = DefaultStateDir
	}
	cfg.Overlay.VXLANPort = cmp.Or(cfg.Overlay.VXLANPort, DefaultVXLANPort)
	cfg.Overlay.WireGuardPort = cmp.Or(cfg.Overlay.WireGuardPort, DefaultWireGuardPort)
	cfg.Overlay.VXLANID = cmp.Or(cfg.Overlay.VXLANID, DefaultVXLANID)
	stacks, err := stacksOf(cfg)
	if err != nil {
		return nil, fmt.Errorf("pod network: %w", err)
	}
	return &Network{cfg: cfg, stacks: stacks, ports: map[string][]podnet.HostPort{}}, nil
}

// Ensure makes the bridge, its address, the node's switches and the nftables
// table, or puts right what differs.
func (n *Network) Ensure() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.remake()
}

// remake is Ensure for who holds n.mu. It also takes on the ports of pods from
// before.
func (n *Network) remake() error {
	n.bridge = 0
	if err := n.ensureLocked(); err != nil {
		return err
	}
	return n.adoptPorts()
}

func (n *Network) ensureLocked() error {
	if n.bridge != 0 {
		return nil
	}
	index, err := n.ensureBridge()
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if err := n.ensureTable(); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if err := n.restoreHostPorts(); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	n.bridge = index
	_, _ = n.passFirewall() // pods are made all the same; Repair tells of it
	return nil
}

// Know tells of sandboxes that were connected before this process began. Their addresses are
// reserved again where the reservations were lost, so that no other pod gets them, and their
// host ports lead to them where somebody took the tables away.
func (n *Network) Know(list []podnet.Sandbox) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	for _, s := range list {
		if len(s.HostPorts) > 0 {
			n.ports[ownerOf(s)] = s.HostPorts
		}
		for _, a := range s.Addrs {
			if st := n.stack(a); st != nil {
				errs = append(errs, st.pool.reserveAgain(ownerOf(s), a))
			}
		}
	}
	if n.bridge != 0 { // or else whoever makes it puts the ports back
		errs = append(errs, n.restoreHostPorts())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	return nil
}

// CloseHostPorts takes the host ports of a pod away; all else stays until Del.
func (n *Network) CloseHostPorts(s podnet.Sandbox) error {
	held, err := n.heldBy(ownerOf(s))
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if len(held) == 0 {
		return nil
	}
	if err := n.removeHostPorts(s, held); err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	return nil
}

// Add connects a pod. Repeated, it returns the same address. After an error
// the caller calls Del.
func (n *Network) Add(ctx context.Context, s podnet.Sandbox) (Result, error) {
	if err := n.mayHave(s.HostPorts); err != nil {
		return Result{}, fmt.Errorf("pod network: %w", err)
	}
	n.mu.Lock()
	err := n.ensureLocked()
	bridge, mtu := n.bridge, n.podMTU()
	n.mu.Unlock()
	if err != nil {
		return Result{}, err
	}
	ends, err := n.reserve(s)
	if err != nil {
		return Result{}, fmt.Errorf("pod network: %w", err)
	}
	l := link{sandbox: s, ends: ends, router: n.mac(), bridge: bridge, group: portGroup(n.cfg.Bridge), mtu: mtu}
	// The kernel makes interfaces and rules under different locks.
	rules := make(chan error, 1)
	go func() { rules <- n.addRules(s, l.addrs()) }()
	err, rulesErr := l.connect(), <-rules
	if err != nil {
		// Somebody may have deleted the bridge; the next Add looks.
		n.mu.Lock()
		n.bridge = 0
		n.mu.Unlock()
		return Result{}, fmt.Errorf("pod network: connect %s: %w", s.NetNS, err)
	}
	if rulesErr != nil {
		return Result{}, fmt.Errorf("pod network: rules for %s: %w", l.addrs()[0], rulesErr)
	}
	r := Result{HostIf: hostIf(s), MAC: macOf(l.addrs()...).String()}
	for _, e := range ends {
		r.Addrs, r.Gateways = append(r.Addrs, e.addr), append(r.Gateways, e.gateway)
	}
	return r, nil
}

// Del disconnects a pod and frees its address. It needs no network namespace,
// and disconnecting what is not connected is no error.
func (n *Network) Del(ctx context.Context, s podnet.Sandbox) error {
	held, err := n.heldBy(ownerOf(s))
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if len(held) > 0 {
		err = n.detach(s, held)
	} else {
		err = n.reaper.delete(hostIf(s), shaperOf(s))
	}
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	return nil
}

// detach takes away what is of a sandbox with these addresses.
func (n *Network) detach(s podnet.Sandbox, addrs []netip.Addr) error {
	if err := n.removeHostPorts(s, addrs); err != nil {
		return err
	}
	silenced := make(chan error, 1)
	go func() { silenced <- n.silence(s, addrs) }() // while the interface ends
	if err := errors.Join(n.reaper.delete(hostIf(s), shaperOf(s)), <-silenced); err != nil {
		return err
	}
	var errs []error
	for _, a := range addrs {
		errs = append(errs, n.release(a))
	}
	return errors.Join(errs...)
}

// Check tells what is wrong with a pod's connection, nil if nothing is.
func (n *Network) Check(ctx context.Context, s podnet.Sandbox) error {
	held, err := n.heldBy(ownerOf(s))
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	if len(held) == 0 {
		return fmt.Errorf("pod network: %s has no address", ownerOf(s))
	}
	l := link{sandbox: s}
	for _, a := range held {
		l.ends = append(l.ends, end{addr: a})
	}
	return l.check()
}

// Owners lists the sandbox ids that hold an address.
func (n *Network) Owners() ([]string, error) {
	held, err := n.held()
	if err != nil {
		return nil, fmt.Errorf("pod network: %w", err)
	}
	var ids []string
	for owner := range held {
		id, _, _ := strings.Cut(owner, "/")
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// GC frees what belongs to none of the given sandboxes (CNI GC).
func (n *Network) GC(ctx context.Context, valid []podnet.Sandbox) error {
	keep := map[string]bool{}
	for _, s := range valid {
		keep[ownerOf(s)] = true
	}
	held, err := n.held()
	if err != nil {
		return fmt.Errorf("pod network: %w", err)
	}
	var errs []error
	for owner, addrs := range held {
		if !keep[owner] {
			errs = append(errs, n.detach(ownedBy(owner), addrs))
		}
	}
	return errors.Join(errs...)
}

// Cleanup removes everything that this network put on the node.
func (n *Network) Cleanup() error {
	_, err := n.SyncPeers(Self{}, nil)
	n.mu.Lock()
	defer n.mu.Unlock()
	err = errors.Join(err, n.leaveFirewall(), n.deleteBridge(), n.deleteTable(),
		removeState(n.cfg.StateDir, n.stacks[0].pool.dir))
	n.bridge = 0
	return err
}
