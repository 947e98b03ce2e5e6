package network

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/cni"
)

// Tunnels say whether and how pods' packets between nodes are encrypted.
type Tunnels struct {
	// Encrypt has all of them encrypted between nodes that both say so. Else only those to
	// and from nodes behind address translation are.
	Encrypt bool
	// KeyFile has this node's key; made when it is needed.
	KeyFile string
	// PeersFile has what was last known of the others.
	PeersFile string
	// Port is told to others: that of cni.Overlay.
	Port uint16
}

// keyAge is how old a key gets. Sessions have keys of their own, of two minutes each
// (REKEY_AFTER_TIME of WireGuard), so that this bounds for how long a stolen file speaks
// for the node, not what can be read.
const keyAge = 30 * 24 * time.Hour

// speaker is a gossip that can tell and be asked more than members. The hollow one is none.
type speaker interface {
	UpdateMeta(change func(*gossip.Meta)) error
	SeenAs(ctx context.Context, member string) (netip.Addr, error)
}

// tunnels is what this node does for tunnels beside the kernel: its key, and where the
// others see it.
type tunnels struct {
	cfg  Tunnels
	poke func()

	key  cni.Key // zero: none was needed
	told bool    // others know it

	paths map[string]cni.Path // of the last look

	// last is what was known of members last, as the file has it: those who were not heard
	// since this process began have no words.
	last   map[string]last
	inFile []byte

	mu    sync.Mutex
	views map[string]view // by member
	busy  bool
	// hidden is whether others were told that this node is.
	hidden bool
	// pairs are the hidden peers of a hidden node, keys the peers' tunnels (relay.go).
	pairs   map[string]pair
	keys    map[string]cni.Key
	seen    map[cni.Key]netip.AddrPort // of the last look, for others
	looked  time.Time
	seeking bool
	wg      sync.WaitGroup
}

// last is what a tunnel to a member was made of. The key is its own word, which the
// gossip checked; what the member may do in the tunnel is in its grant.
type last struct {
	Key      []byte `json:"key,omitempty"`
	Inner    []byte `json:"inner,omitempty"`
	Port     uint16 `json:"port,omitempty"`
	Encrypts bool   `json:"encrypts,omitempty"`
	// Seen is where it is, when it is hidden; Hides says that this node is, to it.
	Seen  netip.Addr `json:"seen,omitzero"`
	Hides bool       `json:"hides,omitempty"`
	// Hidden is its own word that it is, of one that this node hears nothing of itself.
	Hidden bool `json:"hidden,omitempty"`
	// Relay handed packets on to it last.
	Relay string `json:"relay,omitempty"`
}

// away tells whether the member is behind a router that translates addresses, for this node.
func (l last) away() bool { return l.Seen.IsValid() || l.Hidden }

// view is what a member said of where it sees this node.
type view struct {
	since time.Time // of the member's state, to ask anew when it was away
	at    netip.Addr
	tried time.Time
}

// viewRetry is how long a member is left alone that did not answer.
const viewRetry = 5 * time.Minute

// askers is how many members are asked at one time.
const askers = 4

// fill tells each peer's ends, and returns this node's own part. Members are the gossip's.
func (t *tunnels) fill(g Gossip, members []gossip.Member, peers []cni.Peer) (cni.Self, error) {
	self := cni.Self{Nodes: ownAddresses(members)}
	t.recall()
	by := map[string]gossip.Member{}
	for _, m := range members {
		by[m.Name] = m
	}
	needed := t.cfg.Encrypt
	for i := range peers {
		p, m := &peers[i], by[peers[i].Name]
		l := t.of(m, self.Nodes)
		p.End = cni.End{Encrypts: l.Encrypts, HasKey: len(l.Key) > 0, Hidden: l.away()}
		p.Self = cni.End{Encrypts: t.cfg.Encrypt, Hidden: l.Hides}
		p.Seen, p.Port = l.Seen, l.Port
		copy(p.Key[:], l.Key)
		copy(p.Inner[:], l.Inner)
		needed = needed || p.End.Hidden || p.Self.Hidden
	}
	s, speaks := g.(speaker)
	if !speaks || t.cfg.KeyFile == "" {
		return self, nil
	}
	var err error
	if needed {
		err = t.haveKey(s)
	}
	err = errors.Join(err, t.tellHidden(s, self.Nodes))
	self.Key = t.key
	for i := range peers {
		peers[i].Self.HasKey = t.told
		if m := by[peers[i].Name]; peers[i].End.HasKey && t.told && m.State.Up() {
			peers[i].Since = m.Since // without a tunnel it changes nothing that it came back
		}
	}
	t.pairUp(by, peers)
	return self, errors.Join(err, t.remember(by))
}

// tellHidden tells others that this node is hidden, once a member said that it is.
func (t *tunnels) tellHidden(s speaker, own []netip.Addr) error {
	hidden := t.hidesFromSome(own)
	if hidden == t.hidden || !hidden && !t.asked() {
		return nil
	}
	if err := s.UpdateMeta(func(m *gossip.Meta) { m.Hidden = hidden }); err != nil {
		return fmt.Errorf("that this node is behind address translation is not told: %w", err)
	}
	t.hidden = hidden
	return nil
}

// asked tells whether some member said where it sees this node.
func (t *tunnels) asked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.views {
		if v.at.IsValid() {
			return true
		}
	}
	return false
}

// of is what is known of a member: its own words, or the last ones.
func (t *tunnels) of(m gossip.Member, own []netip.Addr) last {
	l := t.last[m.Name]
	if m.State.Up() || m.Tunnel != "" {
		l.Key, l.Inner, l.Port, l.Encrypts = []byte(m.Tunnel), []byte(m.Inner), m.TunnelPort, m.Encrypts
	}
	if m.State.Up() {
		l.Seen = m.Seen.Addr()
		// What it hides from others it need not hide from this node.
		l.Hidden = m.Hidden && !m.AtHome
	}
	if at := t.seenBy(m.Name); at.IsValid() {
		l.Hides = !slices.Contains(own, at)
	} else if l.away() && t.asked() { // it cannot be asked
		l.Hides = t.hidesFromSome(own)
	}
	if len(l.Key) == 0 {
		l.Key = nil
	}
	if l.any() {
		t.last[m.Name] = l
	} else {
		delete(t.last, m.Name)
	}
	return l
}

func (l last) any() bool { return l.Key != nil || l.away() || l.Hides }

// maxLast bounds what is read of the file: some 100 bytes a member.
const maxLast = 8 << 20

// recall reads the file once. What cannot be read is heard again soon.
func (t *tunnels) recall() {
	if t.last != nil {
		return
	}
	t.last = map[string]last{}
	if t.cfg.PeersFile == "" {
		return
	}
	f, err := os.Open(t.cfg.PeersFile)
	if err != nil {
		return
	}
	defer f.Close()
	if t.inFile, err = io.ReadAll(io.LimitReader(f, maxLast)); err == nil {
		_ = json.Unmarshal(t.inFile, &t.last)
	}
	for name, l := range t.last {
		t.hidden = t.hidden || l.Hides
		if !isKey(l.Key) || !isKey(l.Inner) {
			delete(t.last, name)
		}
	}
}

func isKey(b []byte) bool { return len(b) == 0 || len(b) == len(cni.Key{}) }

// remember writes the file, where it says something else; members that are forgotten go.
func (t *tunnels) remember(members map[string]gossip.Member) error {
	for name := range t.last {
		if _, known := members[name]; !known {
			delete(t.last, name)
		}
	}
	if t.cfg.PeersFile == "" || len(t.last) == 0 && len(t.inFile) == 0 {
		return nil
	}
	data, err := json.Marshal(t.last) // sorted by name
	if err != nil || bytes.Equal(data, t.inFile) {
		return err
	}
	if err := replaceFile(t.cfg.PeersFile, data); err != nil {
		return fmt.Errorf("peers of tunnels are not kept for the next start: %w", err)
	}
	t.inFile = data
	return nil
}

// ClockSetBack has the node make another key for its tunnels, if it has one. A handshake of
// WireGuard says when it was begun, and peers take none that is older than the last one of
// the same key (section 5.1 of the protocol's paper): until the clock is where it was they
// would not answer this node, and pods there would be out of reach but for who speaks first.
func (m *Manager) ClockSetBack() {
	switch err := os.Remove(m.cfg.Tunnels.KeyFile); {
	case err == nil:
		m.log.Info("encrypted tunnels get another key: the clock was set back")
		m.poke()
	case !errors.Is(err, fs.ErrNotExist):
		m.log.Warn("other nodes may not answer encrypted tunnels until the clock is where it was", "err", err)
	}
}

// haveKey reads the node's key, or makes one, and tells the others its public half.
func (t *tunnels) haveKey(s speaker) error {
	key, err := loadKey(t.cfg.KeyFile, time.Now())
	if err != nil {
		return fmt.Errorf("key of encrypted tunnels: %w", err)
	}
	if t.told && key == t.key {
		return nil
	}
	if err := s.UpdateMeta(func(m *gossip.Meta) { t.cfg.tell(m, key) }); err != nil {
		return fmt.Errorf("key of encrypted tunnels is not told: %w", err)
	}
	t.key, t.told = key, true
	return nil
}

// Introduce puts the node's key into the first words that others hear, where it encrypts
// or had a key before: without it they would take another path for a moment, each time
// that the agent starts.
func (c Tunnels) Introduce(m *gossip.Meta) error {
	if _, err := os.Stat(c.KeyFile); err != nil && !c.Encrypt {
		return nil
	}
	key, err := loadKey(c.KeyFile, time.Now())
	if err != nil {
		return fmt.Errorf("key of encrypted tunnels: %w", err)
	}
	c.tell(m, key)
	m.Hidden = c.wasHidden()
	return nil
}

// wasHidden tells whether this node was behind address translation at the end of the last run.
func (c Tunnels) wasHidden() bool {
	t := tunnels{cfg: c}
	t.recall()
	return t.hidden
}

func (c Tunnels) tell(m *gossip.Meta, key cni.Key) {
	public, inner := key.PublicKey(), cni.InnerKey(key).PublicKey()
	m.Tunnel, m.Inner, m.TunnelPort, m.Encrypts = string(public[:]), string(inner[:]), c.Port, c.Encrypt
}

// loadKey reads a key from its file. One that is not there, or old, is made.
func loadKey(file string, now time.Time) (cni.Key, error) {
	info, err := os.Stat(file)
	if err == nil && now.Sub(info.ModTime()) < keyAge {
		text, err := os.ReadFile(file)
		if err != nil {
			return cni.Key{}, err
		}
		key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
		if err != nil {
			return cni.Key{}, fmt.Errorf("%s: %w; delete it to have another made", file, err)
		}
		return key, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cni.Key{}, err
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return cni.Key{}, err
	}
	return key, writeKey(file, key)
}

func writeKey(file string, key cni.Key) error {
	return replaceFile(file, []byte(base64.StdEncoding.EncodeToString(key[:])+"\n"))
}

func replaceFile(file string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".tunnel-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// seenBy is where a member said that it sees this node.
func (t *tunnels) seenBy(member string) netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.views[member].at
}

// hidesFromSome tells whether some member sees this node at no address of its own.
func (t *tunnels) hidesFromSome(own []netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.views {
		if v.at.IsValid() && !slices.Contains(own, v.at) {
			return true
		}
	}
	return false
}

// look asks those members where they see this node that no network leads to directly,
// and whom nobody asked since they came; poke is called when one answered.
func (t *tunnels) look(ctx context.Context, g Gossip, members []gossip.Member, paths map[string]cni.Path) {
	s, speaks := g.(speaker)
	if !speaks {
		return
	}
	var list []gossip.Member
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, m := range members {
		path, peer := paths[m.Name]
		v := t.views[m.Name]
		fresh := v.at.IsValid() && v.since.Equal(m.Since) || !v.tried.IsZero() && now.Sub(v.tried) < viewRetry
		if peer && path != cni.Direct && m.State.Up() && !m.Seen.IsValid() && !fresh {
			list = append(list, m)
		}
	}
	if len(list) == 0 || t.busy {
		return
	}
	t.busy = true
	t.wg.Go(func() { t.askAll(ctx, s, list) })
}

func (t *tunnels) askAll(ctx context.Context, s speaker, list []gossip.Member) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, askers)
	for _, m := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			at, err := s.SeenAs(ctx, m.Name)
			t.mu.Lock()
			defer t.mu.Unlock()
			v := view{since: m.Since, at: at, tried: time.Now()}
			if err != nil {
				v.at = t.views[m.Name].at // as it was
			}
			if t.views == nil {
				t.views = map[string]view{}
			}
			t.views[m.Name] = v
		})
	}
	wg.Wait()
	t.mu.Lock()
	t.busy = false
	t.mu.Unlock()
	if ctx.Err() == nil {
		t.poke()
	}
}
