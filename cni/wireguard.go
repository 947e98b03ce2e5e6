package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Key is a key of WireGuard, private or public.
type Key = wgtypes.Key

// DefaultWireGuardPort is the port that WireGuard's documentation uses.
const DefaultWireGuardPort = 51820

// keepalive is how often a node behind address translation says something, so that the
// router goes on knowing it: WireGuard's documentation has 25 s for it.
const keepalive = 25 * time.Second

// settled is when a peer that was not heard has no session any more (REJECT_AFTER_TIME,
// section 6.1 of the protocol's paper).
const settled = 180 * time.Second

// One interface has all encrypted tunnels, of both families: the kernel's where it has
// WireGuard, else a TUN interface of shoal-tunnel. Both go on without this process, and
// both take a packet from a peer only if its source is in that peer's ranges.

// wireguardName is the interface's name.
func (n *Network) wireguardName() string {
	const suffix, most = "-wg", unix.IFNAMSIZ - 1
	return n.cfg.Bridge[:min(len(n.cfg.Bridge), most-len(suffix))] + suffix
}

// tunnelDevice is what has WireGuard's configuration: the kernel, or shoal-tunnel.
type tunnelDevice interface {
	read() (*wgtypes.Device, error)
	write(wgtypes.Config) error
}

// syncWireGuard makes the interface and its peers, and adds their routes.
func (n *Network) syncWireGuard(ways []way, routes tunnelRoutes) error {
	if len(ways) == 0 {
		return nil
	}
	link, device, err := n.wireguardDevice()
	if err != nil {
		return fmt.Errorf("encrypted tunnel: %w", err)
	}
	mtu := ways[0].mtu(WireGuard)
	for _, w := range ways {
		mtu = min(mtu, w.mtu(WireGuard))
	}
	if err := n.dressTunnel(link, mtu); err != nil {
		return fmt.Errorf("encrypted tunnel: %w", err)
	}
	have, err := device.read()
	if err != nil {
		return fmt.Errorf("encrypted tunnel: %w", err)
	}
	now := time.Now()
	if change := n.wireguardChange(have, n.relay(have, ways, now), now); change != nil {
		if err := device.write(*change); errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("encrypted tunnel: UDP port %d is somebody else's, choose another for it: %w",
				n.cfg.Overlay.WireGuardPort, err)
		} else if err != nil {
			return fmt.Errorf("encrypted tunnel: %w", err)
		}
	}
	for _, w := range ways {
		routes.add(n, w, link.Attrs().Index)
	}
	return nil
}

// relay moves the ranges of hidden peers without a session to the peer that hands their
// packets on. They stay peers, without ranges: both ends go on trying to reach each other,
// at the addresses where the third sees them, and routers that translate each packet of a
// port alike let that through once both have begun. From the first handshake on the ranges
// are the peer's own. Both ends see it, and its end, at the same time.
func (n *Network) relay(have *wgtypes.Device, ways []way, now time.Time) []way {
	n.overlay.relayed = map[Key]bool{}
	at := map[Key]int{}
	for i, w := range ways {
		at[w.peer.Key] = i
	}
	out := slices.Clone(ways)
	for i := range out {
		p := &out[i].peer
		by, there := at[p.Relay]
		if p.Relay == (Key{}) || !there || hasSession(have, p.Key, now) {
			continue
		}
		out[by].peer.PodCIDRs = append(slices.Clone(out[by].peer.PodCIDRs), p.PodCIDRs...)
		p.PodCIDRs = nil
		n.overlay.relayed[p.Key] = true
	}
	return out
}

func hasSession(have *wgtypes.Device, key Key, now time.Time) bool {
	return slices.ContainsFunc(have.Peers, func(p wgtypes.Peer) bool {
		return p.PublicKey == key && isRecent(p.LastHandshakeTime, now)
	})
}

// isRecent tells whether there is a session since a handshake. One of a later time was before
// somebody set the clock back; the next one has a time of now.
func isRecent(handshake, now time.Time) bool { return now.Sub(handshake).Abs() < settled }

// Sighted is where the packets of peers' tunnels come from that have a session, by their
// keys, as this node's WireGuard sees it.
func (n *Network) Sighted() (map[Key]netip.AddrPort, error) {
	l, err := netlink.LinkByName(n.wireguardName())
	if err != nil {
		return nil, err
	}
	var device tunnelDevice = uapi{n.cfg.Overlay.Socket}
	if l.Type() == "wireguard" {
		device = kernel{n.wireguardName()}
	}
	have, err := device.read()
	if err != nil {
		return nil, err
	}
	out := map[Key]netip.AddrPort{}
	for now, i := time.Now(), 0; i < len(have.Peers); i++ {
		if p := have.Peers[i]; isRecent(p.LastHandshakeTime, now) && p.Endpoint != nil {
			out[p.PublicKey] = endpointOf(p)
		}
	}
	return out, nil
}

// wireguardDevice finds the interface, or makes it.
func (n *Network) wireguardDevice() (netlink.Link, tunnelDevice, error) {
	name := n.wireguardName()
	user := uapi{n.cfg.Overlay.Socket}
	l, err := netlink.LinkByName(name)
	if err == nil {
		switch l.Type() {
		case "wireguard":
			return l, kernel{name}, nil
		case "tuntap":
			if _, err := user.read(); err == nil {
				return l, user, nil
			}
			// Its process does not answer: another begins.
			if err := deleteLink(name); err != nil {
				return nil, nil, err
			}
		default:
			return nil, nil, fmt.Errorf("interface %s exists and is no tunnel; remove it", name)
		}
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err = netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
	switch {
	case err == nil:
		l, err := netlink.LinkByName(name)
		return l, kernel{name}, err
	case !errors.Is(err, unix.EOPNOTSUPP):
		return nil, nil, fmt.Errorf("create %s: %w", name, err)
	}
	if err := n.startTunnel(name, user); err != nil {
		return nil, nil, err
	}
	l, err = netlink.LinkByName(name)
	return l, user, err
}

// tunnelStart is how long shoal-tunnel may take until it answers.
const tunnelStart = 10 * time.Second

// tunnelAgain is how long after its end another is started.
const tunnelAgain = time.Second

// startTunnel starts shoal-tunnel, and returns when it answers. It goes on when this
// process ends.
func (n *Network) startTunnel(name string, user uapi) error {
	o := n.cfg.Overlay
	if o.Program == "" {
		return errors.New("the kernel has no WireGuard, and there is no program that has")
	}
	if err := os.MkdirAll(filepath.Dir(o.Socket), 0o755); err != nil {
		return err
	}
	cmd := exec.Command(o.Program, "-interface", name, "-socket", o.Socket, "-root", o.Socket+".root")
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{}, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%w: install shoal-tunnel beside shoal-agent", err)
	}
	ended := make(chan error, 1)
	var served atomic.Bool
	go func() {
		ended <- cmd.Wait()
		// One that never served is an error of ours, and tried again like any.
		if o.Ended != nil && served.Load() {
			time.AfterFunc(tunnelAgain, o.Ended)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), tunnelStart)
	defer cancel()
	for {
		if _, err := user.read(); err == nil {
			served.Store(true)
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("shoal-tunnel has ended (its words are in the log): %w", err)
		case <-ctx.Done():
			return errors.New("shoal-tunnel does not answer yet")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// wireguardChange is what differs from what it is to be; nil: nothing does.
func (n *Network) wireguardChange(have *wgtypes.Device, ways []way, now time.Time) *wgtypes.Config {
	var change wgtypes.Config
	self := n.overlay.self
	if have.PrivateKey != self.Key {
		change.PrivateKey = &self.Key
	}
	if port := int(n.cfg.Overlay.WireGuardPort); have.ListenPort != port {
		change.ListenPort = &port
	}
	there := map[Key]wgtypes.Peer{}
	for _, p := range have.Peers {
		there[p.PublicKey] = p
	}
	for _, w := range ways {
		p, known := there[w.peer.Key]
		delete(there, w.peer.Key)
		if n.cameBack(w.peer, p) && known {
			change.Peers = append(change.Peers, removal(w.peer.Key))
			p, known = wgtypes.Peer{}, false
		}
		if c := n.peerChange(w, p, known, now); c != nil {
			change.Peers = append(change.Peers, *c)
		}
	}
	for key := range there {
		change.Peers = append(change.Peers, removal(key))
	}
	// Who goes first: a range belongs to one peer, and a node's new key to the same.
	slices.SortStableFunc(change.Peers, func(a, b wgtypes.PeerConfig) int { return compareBool(b.Remove, a.Remove) })
	if change.PrivateKey == nil && change.ListenPort == nil && len(change.Peers) == 0 {
		return nil
	}
	return &change
}

func removal(key Key) wgtypes.PeerConfig {
	return wgtypes.PeerConfig{PublicKey: key, Remove: true, UpdateOnly: true}
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

// peerChange is what differs of one peer; nil: nothing.
func (n *Network) peerChange(w way, have wgtypes.Peer, known bool, now time.Time) *wgtypes.PeerConfig {
	c := wgtypes.PeerConfig{PublicKey: w.peer.Key, UpdateOnly: known, ReplaceAllowedIPs: true}
	differs := !known
	for _, r := range w.peer.PodCIDRs {
		c.AllowedIPs = append(c.AllowedIPs, *prefixNet(r.Masked()))
	}
	if !sameNets(c.AllowedIPs, have.AllowedIPs) {
		differs = true
	}
	// A new peer hears of this node at once (whoever has a key of before would wait for
	// seconds), and from then on only if a router must go on knowing one of the two.
	beat := time.Duration(0)
	if !known || w.peer.Self.Hidden || w.peer.End.Hidden {
		beat = keepalive
	}
	if !known || have.PersistentKeepaliveInterval != beat {
		c.PersistentKeepaliveInterval, differs = &beat, true
	}
	if to := w.endpoint(); to.IsValid() {
		before := n.overlay.endpoints[w.peer.Key]
		moved := known && !w.peer.At.IsValid() && before != to && before.IsValid()
		lost := known && !isRecent(have.LastHandshakeTime, now) && endpointOf(have) != to
		if !known || moved || lost {
			c.Endpoint, differs = net.UDPAddrFromAddrPort(to), true
		}
		if n.overlay.endpoints == nil {
			n.overlay.endpoints = map[Key]netip.AddrPort{}
		}
		n.overlay.endpoints[w.peer.Key] = to
	}
	if !differs {
		return nil
	}
	return &c
}

// cameBack tells whether a peer was away since the last handshake with it. It may know
// nothing of the session that there was, and takes its time to say so: then it is
// forgotten here too. That a peer was there when this process began says nothing.
func (n *Network) cameBack(p Peer, have wgtypes.Peer) bool {
	if p.Since.IsZero() {
		return false
	}
	if n.overlay.since == nil {
		n.overlay.since = map[Key]time.Time{}
	}
	before, known := n.overlay.since[p.Key]
	n.overlay.since[p.Key] = p.Since
	return known && before != p.Since && have.LastHandshakeTime.Before(p.Since)
}

// endpoint is where the peer is spoken to first; the zero one: it speaks first. From then
// on WireGuard answers where the peer's packets come from.
func (w way) endpoint() netip.AddrPort {
	at := w.outer
	if w.peer.End.Hidden {
		if w.peer.Self.Hidden && w.peer.At.IsValid() {
			return w.peer.At
		}
		if !w.peer.Self.Hidden || !w.peer.Seen.IsValid() {
			return netip.AddrPort{}
		}
		at = w.peer.Seen // neither can be sure; routers often keep ports
	}
	return netip.AddrPortFrom(at, w.peer.Port)
}

func endpointOf(p wgtypes.Peer) netip.AddrPort {
	if p.Endpoint == nil {
		return netip.AddrPort{}
	}
	a := p.Endpoint.AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func sameNets(a, b []net.IPNet) bool {
	texts := func(list []net.IPNet) []string {
		out := make([]string, 0, len(list))
		for _, n := range list {
			out = append(out, n.String())
		}
		slices.Sort(out)
		return out
	}
	return slices.Equal(texts(a), texts(b))
}

// tidyWireGuard removes the interface when no peer needs it: shoal-tunnel ends with it.
func (n *Network) tidyWireGuard(ways []way) error {
	for key := range n.overlay.since {
		if !slices.ContainsFunc(ways, func(w way) bool { return w.peer.Key == key }) {
			delete(n.overlay.since, key)
			delete(n.overlay.endpoints, key)
		}
	}
	if len(ways) > 0 {
		return nil
	}
	l, err := netlink.LinkByName(n.wireguardName())
	if err != nil || l.Type() != "wireguard" && l.Type() != "tuntap" {
		return nil // none, or somebody else's
	}
	if err := deleteLink(n.wireguardName()); err != nil {
		return err
	}
	if n.cfg.Overlay.Socket == "" || l.Type() != "tuntap" {
		return nil
	}
	return errors.Join(uapi{n.cfg.Overlay.Socket}.gone(), os.RemoveAll(n.cfg.Overlay.Socket),
		os.RemoveAll(n.cfg.Overlay.Socket+".root"))
}
