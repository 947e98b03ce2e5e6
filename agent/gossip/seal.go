package gossip

import (
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
)

// A packet begins with its form. What a verified member sends is sealed with a
// key of sender and receiver (static ECDH of their certificates' keys, salted
// with the shared key), so that neither the shared key nor another member's
// place in the network suffices to speak for a member.
const (
	formPlain  = 0 // no keys: loopback, or as the configuration says
	formShared = 1 // nonce, sealed with the shared key
	formPair   = 2 // sender's key ID, nonce, sealed for one receiver

	nonceSize = 12
	tagSize   = 16
	// packetOverhead is what a packet has beside memberlist's bytes.
	packetOverhead = 1 + len(keyID{}) + nonceSize + tagSize
)

const pairPurpose = "shoal gossip packet 1"

var errSealed = errors.New("packet is not sealed by a known member")

// sealPacket seals b for the member of that name.
func (g *Group) sealPacket(b []byte, name string) ([]byte, error) {
	r := g.cfg.Keys.current()
	if g.book.verified() {
		to := g.book.peer(name)
		if to == nil {
			return nil, errUnknown
		}
		own := g.identity()
		aeads, err := g.book.ciphers(to, own, r)
		if err != nil {
			return nil, err
		}
		out := append(make([]byte, 0, len(b)+packetOverhead), formPair)
		return seal(append(out, own.id[:]...), aeads[0], b, to.id[:])
	}
	if r == nil {
		return append([]byte{formPlain}, b...), nil
	}
	return seal([]byte{formShared}, r.whole[0], b, nil)
}

// seal appends nonce and sealed b to head, which is authenticated with more.
func seal(head []byte, aead cipher.AEAD, b, more []byte) ([]byte, error) {
	data := append(append([]byte(nil), head...), more...)
	nonce := make([]byte, nonceSize)
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("make nonce: %w", err)
	}
	return aead.Seal(append(head, nonce...), nonce, b, data), nil
}

// openPacket returns what a packet holds and who sent it; nil for a group
// that verifies nobody.
func (g *Group) openPacket(b []byte) ([]byte, *peer, error) {
	if len(b) == 0 {
		return nil, nil, errSealed
	}
	r := g.cfg.Keys.current()
	verified := g.book.verified()
	switch {
	case verified && b[0] == formPair && len(b) >= packetOverhead:
		head := b[:1+len(keyID{})]
		from := g.book.peerOf(keyID(head[1:]))
		if from == nil {
			return nil, nil, errSealed
		}
		own := g.identity()
		aeads, err := g.book.ciphers(from, own, r)
		if err != nil {
			return nil, nil, err
		}
		plain, err := open(aeads, b[len(head):], append(append([]byte(nil), head...), own.id[:]...))
		return plain, from, err
	case !verified && b[0] == formShared && r != nil:
		plain, err := open(r.whole, b[1:], b[:1])
		return plain, nil, err
	case !verified && b[0] == formPlain && r == nil:
		return b[1:], nil, nil
	}
	return nil, nil, errSealed
}

// open tries the ciphers in turn, since keys are rotated.
func open(aeads []cipher.AEAD, b, data []byte) ([]byte, error) {
	if len(b) < nonceSize+tagSize {
		return nil, errSealed
	}
	for _, a := range aeads {
		if plain, err := a.Open(nil, b[:nonceSize], b[nonceSize:], data); err == nil {
			return plain, nil
		}
	}
	return nil, errSealed
}

// ciphers are those shared with a member, made when they are first needed and
// when a key changed.
func (b *book) ciphers(p *peer, own *Identity, r *ring) ([]cipher.AEAD, error) {
	b.mu.Lock()
	have := b.pairs[p.id]
	b.mu.Unlock()
	if have != nil && have.ring == r && have.own == own.id {
		return have.aeads, nil
	}
	secret, err := own.dh.ECDH(p.dh)
	if err != nil {
		return nil, fmt.Errorf("agree on a key with %s: %w", p.name, err)
	}
	salts := [][]byte{nil}
	if r != nil {
		salts = r.keys
	}
	made := &pair{ring: r, own: own.id}
	for _, salt := range salts {
		a, err := derive(secret, salt, pairPurpose)
		if err != nil {
			return nil, err
		}
		made.aeads = append(made.aeads, a)
	}
	b.mu.Lock()
	b.pairs[p.id] = made
	b.mu.Unlock()
	return made.aeads, nil
}
