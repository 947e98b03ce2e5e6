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
// both take a packet from a peer only if its source is in that peer's ranges. A second one
// is for peers that others hand packets on to (inner.go).

// tunnel is an interface of WireGuard, with what it was told last of each peer.
type tunnel struct {
	name, socket string
	key          Key // private
	port         uint16
	since        map[Key]time.Time
	endpoints    map[Key]netip.AddrPort
	names        map[Key]string // of the nodes that were seen with keys first
}

// tunnelName is an interface's name.
func (n *Network) tunnelName(suffix string) string {
	const most = unix.IFNAMSIZ - 1
	return n.cfg.Bridge[:min(len(n.cfg.Bridge), most-len(suffix))] + suffix
}

func (n *Network) wireguardName() string { return n.tunnelName("-wg") }

// nameTunnels tells the tunnels of WireGuard what this node has for them.
func (n *Network) nameTunnels() {
	cfg, o := n.cfg.Overlay, &n.overlay
	o.outer.name, o.outer.socket = n.wireguardName(), cfg.Socket
	o.outer.key, o.outer.port = o.self.Key, cfg.WireGuardPort
	o.inner.name, o.inner.socket = n.tunnelName("-wg-in"), ""
	if cfg.Socket != "" {
		o.inner.socket = cfg.Socket + ".inner"
	}
	o.inner.key, o.inner.port = InnerKey(o.self.Key), InnerPort(cfg.WireGuardPort)
}

// tunnelDevice is what has WireGuard's configuration: the kernel, or shoal-tunnel.
type tunnelDevice interface {
	read() (*wgtypes.Device, error)
	write(wgtypes.Config) error
}

// syncWireGuard makes the interfaces and their peers, and adds their routes. It returns the
// ways of the peers that are reached by the inner tunnel.
func (n *Network) syncWireGuard(ways []way, routes tunnelRoutes) (inner []way, err error) {
	if len(ways) == 0 {
		return nil, nil
	}
	outer := &n.overlay.outer
	link, device, err := n.openTunnel(outer, WireGuard, ways)
	if err != nil {
		return nil, fmt.Errorf("encrypted tunnel: %w", err)
	}
	have, err := device.read()
	if err != nil {
		return nil, fmt.Errorf("encrypted tunnel: %w", err)
	}
	now := time.Now()
	for _, w := range ways {
		routes.add(n, w, link.Attrs().Index)
	}
	by, inner := n.relay(have, ways, link.Attrs().Index, now)
	// Nobody hands on what does not go into the inner tunnel.
	innerErr := n.openInner(inner, link.Attrs().Index, routes)
	if innerErr != nil {
		by, inner, n.overlay.relayed = ways, nil, nil
	}
	if err := outer.configure(device, outer.change(have, by, now)); err != nil {
		return nil, errors.Join(innerErr, fmt.Errorf("encrypted tunnel: %w", err))
	}
	if innerErr == nil {
		innerErr = n.syncInner(inner, now)
	}
	if innerErr != nil {
		return inner, fmt.Errorf("encrypted tunnel through another node: %w", innerErr)
	}
	return inner, nil
}

// openTunnel makes a tunnel's interface, or finds it, and gives it what all of a kind have.
func (n *Network) openTunnel(t *tunnel, path Path, ways []way) (netlink.Link, tunnelDevice, error) {
	link, device, err := n.wireguardDevice(t)
	if err != nil {
		return nil, nil, err
	}
	mtu := ways[0].mtu(path)
	for _, w := range ways {
		mtu = min(mtu, w.mtu(path))
	}
	return link, device, n.dressTunnel(link, mtu)
}

// configure tells a device what differs from what it has; nothing does where change is nil.
func (t *tunnel) configure(device tunnelDevice, change *wgtypes.Config) error {
	if change == nil {
		return nil
	}
	err := device.write(*change)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("UDP port %d is somebody else's, choose another for it: %w", t.port, err)
	}
	return err
}

// relay finds the hidden peers without a session, and gives the peer that hands their
// packets on what it needs for that: the address of the peer's inner tunnel, or all of its
// ranges where it knows none. They stay peers, and both ends go on trying to reach each
// other, at the addresses where the third sees them; routers that translate each packet of a
// port alike let that through once both have begun. From the first handshake on nobody is
// between. Both ends see it, and its end, at the same time. It returns the peers of the
// outer tunnel, which is the interface link, and those of the inner one.
func (n *Network) relay(have *wgtypes.Device, ways []way, link int, now time.Time) (outer, inner []way) {
	n.overlay.relayed = map[Key]Path{}
	at := map[Key]int{}
	for i, w := range ways {
		at[w.peer.Key] = i
	}
	outer = slices.Clone(ways)
	for i := range outer {
		p := &outer[i].peer
		if !p.Self.Hidden || !p.End.Hidden || hasSession(have, p.Key, now) {
			continue
		}
		by, there := at[p.Relay]
		there = there && p.Relay != Key{}
		in, nested := n.innerWay(ways[i], link)
		// One that has begun stays as it is while there is nobody between.
		if nested && (there || n.overlay.inner.knows(in.peer.Key)) {
			inner = append(inner, in)
		}
		if !there {
			continue
		}
		through := &outer[by].peer
		if nested {
			through.PodCIDRs = append(slices.Clone(through.PodCIDRs), netip.PrefixFrom(in.outer, in.outer.BitLen()))
			n.overlay.relayed[p.Key] = Relayed
			continue
		}
		through.PodCIDRs = append(slices.Clone(through.PodCIDRs), p.PodCIDRs...)
		p.PodCIDRs = nil
		n.overlay.relayed[p.Key] = RelayedClear
	}
	return outer, inner
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
func (n *Network) wireguardDevice(t *tunnel) (netlink.Link, tunnelDevice, error) {
	name, user := t.name, uapi{t.socket}
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
	if err := os.MkdirAll(filepath.Dir(user.socket), 0o755); err != nil {
		return err
	}
	cmd := exec.Command(o.Program, "-interface", name, "-socket", user.socket, "-root", user.socket+".root")
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

// identity is what differs of the node's own part; nil: nothing does.
func (t *tunnel) identity(have *wgtypes.Device) *wgtypes.Config {
	var change wgtypes.Config
	if key := t.key; have.PrivateKey != key {
		change.PrivateKey = &key
	}
	if port := int(t.port); have.ListenPort != port {
		change.ListenPort = &port
	}
	if change.PrivateKey == nil && change.ListenPort == nil {
		return nil
	}
	return &change
}

// change is what differs from what it is to be; nil: nothing does.
func (t *tunnel) change(have *wgtypes.Device, ways []way, now time.Time) *wgtypes.Config {
	var change wgtypes.Config
	if own := t.identity(have); own != nil {
		change = *own
	}
	there := map[Key]wgtypes.Peer{}
	for _, p := range have.Peers {
		there[p.PublicKey] = p
	}
	for _, w := range ways {
		p, known := there[w.peer.Key]
		delete(there, w.peer.Key)
		if t.cameBack(w.peer, p) && known {
			change.Peers = append(change.Peers, removal(w.peer.Key))
			p, known = wgtypes.Peer{}, false
		}
		if c := t.peerChange(w, p, known, now); c != nil {
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
func (t *tunnel) peerChange(w way, have wgtypes.Peer, known bool, now time.Time) *wgtypes.PeerConfig {
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
		before := t.endpoints[w.peer.Key]
		moved := known && !w.peer.At.IsValid() && before != to && before.IsValid()
		lost := known && !isRecent(have.LastHandshakeTime, now) && endpointOf(have) != to
		if !known || moved || lost {
			c.Endpoint, differs = net.UDPAddrFromAddrPort(to), true
		}
		if t.endpoints == nil {
			t.endpoints = map[Key]netip.AddrPort{}
		}
		t.endpoints[w.peer.Key] = to
	}
	if !differs {
		return nil
	}
	return &c
}

// cameBack tells whether a peer was away since the last handshake with it. It may know
// nothing of the session that there was, and takes its time to say so: then it is
// forgotten here too. That a peer was there when this process began says nothing.
func (t *tunnel) cameBack(p Peer, have wgtypes.Peer) bool {
	if p.Since.IsZero() {
		return false
	}
	if t.since == nil {
		t.since = map[Key]time.Time{}
	}
	before, known := t.since[p.Key]
	t.since[p.Key] = p.Since
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

// tidyTunnel removes an interface when no peer needs it: shoal-tunnel ends with it.
func (n *Network) tidyTunnel(t *tunnel, ways []way) error {
	for key := range t.since {
		if !slices.ContainsFunc(ways, func(w way) bool { return w.peer.Key == key }) {
			delete(t.since, key)
		}
	}
	for key := range t.endpoints {
		if !slices.ContainsFunc(ways, func(w way) bool { return w.peer.Key == key }) {
			delete(t.endpoints, key)
		}
	}
	if len(ways) > 0 {
		return nil
	}
	l, err := netlink.LinkByName(t.name)
	if err != nil || l.Type() != "wireguard" && l.Type() != "tuntap" {
		return nil // none, or somebody else's
	}
	if err := deleteLink(t.name); err != nil {
		return err
	}
	if t.socket == "" || l.Type() != "tuntap" {
		return nil
	}
	return errors.Join(uapi{t.socket}.gone(), os.RemoveAll(t.socket), os.RemoveAll(t.socket+".root"))
}
