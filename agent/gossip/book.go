package gossip

import (
	"bytes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"
)

// book is what this member knows of the others for certain: whose key is whose,
// and what each last said of itself. Signatures are checked here, once for each
// statement, never for each packet.
type book struct {
	log  *slog.Logger
	self string

	mu     sync.Mutex
	trust  Trust // nil: members are believed as they are
	byName map[string]*peer
	byID   map[keyID]*peer
	pairs  map[keyID]*pair // by the other's key
	told   map[string]bool
}

// peer is one verified member. It never changes.
type peer struct {
	name     string
	id       keyID
	grant    Grant
	rawGrant []byte
	verify   *ecdsa.PublicKey
	dh       *ecdh.PublicKey
	since    time.Time

	// What it last said; raw is nil while only its grant is known.
	statement
	raw  []byte
	addr netip.AddrPort
}

// pair holds the ciphers of two members: one for each shared key.
type pair struct {
	ring  *ring
	own   keyID
	aeads []cipher.AEAD
}

// maxTold bounds the set of what was told: more liars than that are a flood.
const maxTold = 1000

func newBook(self string, trust Trust, log *slog.Logger) *book {
	return &book{self: self, trust: trust, log: log, byName: map[string]*peer{}, byID: map[keyID]*peer{},
		pairs: map[keyID]*pair{}, told: map[string]bool{}}
}

var (
	errUnsigned = errors.New("its metadata is not signed with the key of that name")
	errOld      = errors.New("it is older than what the member said since")
	errTooHigh  = errors.New("its incarnation is above what the member said")
	errUnknown  = errors.New("the member is not known")
)

// verified tells whether members must prove who they are.
func (b *book) verified() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trust != nil
}

func (b *book) setTrust(t Trust) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trust = t
}

// peer returns what is known of a member.
func (b *book) peer(name string) *peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byName[name]
}

func (b *book) peerOf(id keyID) *peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[id]
}

// state returns the trust, and the member as known.
func (b *book) state(name string) (Trust, *peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trust, b.byName[name]
}

// introduce takes a member's name and grant, as a stream's first bytes tell them.
func (b *book) introduce(name string, rawGrant []byte) (*peer, error) {
	trust, known := b.state(name)
	p, err := b.grantee(trust, known, name, rawGrant)
	if err != nil {
		return nil, err
	}
	if name == b.self || p == known {
		return p, nil
	}
	return b.keep(p)
}

// grantee returns the member of a grant: the known one when the grant is the same.
func (b *book) grantee(trust Trust, known *peer, name string, rawGrant []byte) (*peer, error) {
	now := time.Now()
	if known != nil && bytes.Equal(known.rawGrant, rawGrant) {
		if now.After(known.grant.Expires.Add(expiredGrace)) {
			return nil, errGrantExpired
		}
		return known, nil
	}
	g, err := OpenGrant(name, rawGrant, trust, now)
	if err != nil {
		return nil, err
	}
	verify, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), g.Key)
	if err != nil {
		return nil, errGrantBad
	}
	dh, err := verify.ECDH()
	if err != nil {
		return nil, errGrantBad
	}
	p := &peer{name: name, id: idOf(g.Key), grant: g, rawGrant: bytes.Clone(rawGrant),
		verify: verify, dh: dh, since: now}
	if known != nil && known.id == p.id {
		p.statement, p.raw, p.addr = known.statement, known.raw, known.addr
	}
	return p, nil
}

// admit takes a member's statement about itself, whoever passed it on.
func (b *book) admit(name string, addr netip.AddrPort, raw []byte) (*peer, error) {
	trust, known := b.state(name)
	if known != nil && known.addr == addr && bytes.Equal(known.raw, raw) {
		return known, nil
	}
	raw = bytes.Clone(raw)
	s, err := decodeStatement(raw)
	if err != nil {
		return nil, err
	}
	if name != b.self && known != nil && known.raw != nil && s.serial < known.serial &&
		bytes.Equal(s.grant, known.rawGrant) {
		return nil, errOld
	}
	p := &peer{name: name, since: time.Now()}
	if trust != nil {
		g, err := b.grantee(trust, known, name, s.grant)
		if err != nil {
			return nil, err
		}
		if !verifyWith(g.verify, s.signature, metaContext, []byte(name), addrBytes(addr), s.signed) {
			return nil, errUnsigned
		}
		*p = *g
		s.Role = g.grant.Role
	}
	if name != b.self && p.raw != nil && s.serial < p.serial {
		return nil, errOld
	}
	p.statement, p.raw, p.addr = s, raw, addr
	if name == b.self {
		return p, nil // for the caller to look at; what we say is not learned from others
	}
	return b.keep(p)
}

// keep notes a member, unless something newer was noted meanwhile.
func (b *book) keep(p *peer) (*peer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.byName[p.name]; now != nil && b.trust != nil {
		if now.grant.Issued.After(p.grant.Issued) || now.id == p.id && now.raw != nil && now.serial > p.serial {
			return nil, errOld
		}
		if b.byID[now.id] == now {
			delete(b.byID, now.id)
		}
	}
	b.byName[p.name] = p
	if b.trust != nil {
		b.byID[p.id] = p
	}
	return p, nil
}

// forget drops those that are not among the members any more.
func (b *book) forget(known map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old := time.Now().Add(-forgetAfter)
	maps.DeleteFunc(b.byName, func(name string, p *peer) bool { return !known[name] && p.since.Before(old) })
	maps.DeleteFunc(b.byID, func(_ keyID, p *peer) bool { return b.byName[p.name] != p })
	maps.DeleteFunc(b.pairs, func(id keyID, _ *pair) bool { return b.byID[id] == nil })
}

// tell logs once what a member is ignored for. What honest members do, too, when
// news cross on their way, is no news.
func (b *book) tell(name string, addr any, err error) {
	if errors.Is(err, errOld) || errors.Is(err, errTooHigh) || errors.Is(err, errUnknown) {
		b.log.Debug("gossip message ignored", "member", name, "addr", addr, "reason", err)
		return
	}
	key := fmt.Sprintf("%.300s %v", name, err)
	b.mu.Lock()
	seen := b.told[key] || len(b.told) >= maxTold
	b.told[key] = true
	b.mu.Unlock()
	if !seen {
		b.log.Warn("gossip: a member is ignored", "member", name, "addr", addr, "reason", err)
	}
}
