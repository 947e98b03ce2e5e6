package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// Role tells what a member does for the cluster.
type Role string

// The roles.
const (
	RoleAgent       Role = "agent"
	RoleCoordinator Role = "coordinator"
)

// Meta is what a member tells about itself, in its own words. What others act
// on beyond liveness is in its Grant.
type Meta struct {
	Role    Role   // of a verified member that of its grant
	Zone    string // topology.kubernetes.io/zone of the node
	API     string // https URL of the API server there (coordinators)
	Node    string // the Node on the same machine, which may have its names (coordinators)
	MAC     string // 6 raw bytes of the tunnel device's address; empty: no tunnel
	Leaving bool   // a planned end has begun: send no new traffic
	Votes   bool   // it knows how nodes vouch for each other (agent/fence)
	Layers  bool   // it shares layers of images (agent/image/peer)
	Proxies bool   // it says where its proxy leads traffic (agent/withdraw)
	// Tunnel is the public key of its WireGuard, 32 raw bytes, TunnelPort the UDP port;
	// Encrypts: what goes between pods is to be encrypted.
	Tunnel     string
	TunnelPort uint16
	Encrypts   bool
	// Hidden: some member sees it at none of its addresses, as behind a router that
	// translates them. Others behind such routers hear nothing of it but this.
	Hidden bool
	// Inner is the public key of its tunnel within those to a third member, which hands the
	// packets of hidden members on: it is told by these alone. Empty: it knows none.
	Inner string
	// Announces are the ranges in which the node announces addresses (agent/announce), with
	// commas between them; empty: none.
	Announces string
}

// statement is a member's metadata: its words, its grant, and what keeps both
// from being used again later or by others.
type statement struct {
	Meta
	grant []byte
	// serial grows with each statement of a member.
	serial uint64
	// ceiling is the highest incarnation that the member has by this statement:
	// what is said of a higher one is a lie, told to exhaust the numbers
	// (hashicorp/memberlist#358).
	ceiling uint32
	// signed and signature are what was received.
	signed, signature []byte
}

// The wire form: one version byte, then fields as (tag, length, value), tag and
// length as uvarints; the signature is the last. A reader skips tags that it
// does not know, so fields may be added without a new version.
const (
	metaVersion = 2

	tagRole      = 1 // of members that are not verified
	tagGrant     = 2
	tagSerial    = 3
	tagZone      = 4
	tagAPI       = 5
	tagLeaving   = 6
	tagMAC       = 7
	tagCeiling   = 8
	tagSignature = 9
	tagNode      = 10
	tagVotes     = 11
	tagLayers    = 12
	tagProxies   = 13
	tagAnnounces = 14

	tagTunnel     = 30
	tagTunnelPort = 31
	tagEncrypts   = 32
	tagHidden     = 33
	tagInner      = 34
)

// maxMeta is memberlist.MetaMaxSize; maxSignature bounds a P-256 signature in
// ASN.1, its field's head included.
const (
	maxMeta      = 512
	maxSignature = 74
)

const metaContext = "shoal gossip member 1"

var errMetaTooLong = fmt.Errorf("metadata is longer than %d bytes", maxMeta)

// encode returns the wire form, signed when id is given, or errMetaTooLong.
func (s statement) encode(name string, addr netip.AddrPort, id *Identity) ([]byte, error) {
	b := []byte{metaVersion}
	b = appendField(b, tagRole, []byte(s.Role))
	b = appendField(b, tagGrant, s.grant)
	b = appendNumber(b, tagSerial, s.serial)
	b = appendNumber(b, tagCeiling, uint64(s.ceiling))
	b = appendField(b, tagZone, []byte(s.Zone))
	b = appendField(b, tagAPI, []byte(s.API))
	b = appendField(b, tagNode, []byte(s.Node))
	b = appendField(b, tagMAC, []byte(s.MAC))
	if s.Leaving {
		b = appendField(b, tagLeaving, []byte{1})
	}
	if s.Votes {
		b = appendField(b, tagVotes, []byte{1})
	}
	if s.Layers {
		b = appendField(b, tagLayers, []byte{1})
	}
	if s.Proxies {
		b = appendField(b, tagProxies, []byte{1})
	}
	b = s.appendTunnel(b)
	// What a node cannot do without comes first: with too many ranges it announces nothing.
	if all := appendField(b, tagAnnounces, []byte(s.Announces)); len(all)+maxSignature <= maxMeta {
		b = all
	}
	if len(b)+maxSignature > maxMeta {
		return nil, errMetaTooLong
	}
	if id == nil {
		return b, nil
	}
	sig, err := id.sign(metaContext, []byte(name), addrBytes(addr), b)
	if err != nil {
		return nil, err
	}
	return appendField(b, tagSignature, sig), nil
}

func (m Meta) appendTunnel(b []byte) []byte {
	if m.Tunnel == "" {
		return b
	}
	b = appendField(b, tagTunnel, []byte(m.Tunnel))
	b = appendNumber(b, tagTunnelPort, uint64(m.TunnelPort))
	if m.Encrypts {
		b = appendField(b, tagEncrypts, []byte{1})
	}
	if m.Hidden {
		b = appendField(b, tagHidden, []byte{1})
		b = appendField(b, tagInner, []byte(m.Inner))
	}
	return b
}

// addrBytes is what a signature holds of where the member's gossip is reached.
func addrBytes(a netip.AddrPort) []byte {
	b := a.Addr().Unmap().As16()
	return binary.BigEndian.AppendUint16(b[:], a.Port())
}

func appendValue(b, value []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

func appendField(b []byte, tag uint64, value []byte) []byte {
	if len(value) == 0 {
		return b
	}
	return appendValue(binary.AppendUvarint(b, tag), value)
}

func appendNumber(b []byte, tag, n uint64) []byte {
	return appendField(b, tag, binary.AppendUvarint(nil, n))
}

// nextField splits the first field off.
func nextField(b []byte) (tag uint64, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, nil, false
	}
	value, rest, ok = nextValue(b[n:])
	return tag, value, rest, ok
}

func nextValue(b []byte) (value, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}

var errMetaBad = errors.New("malformed metadata")

// decodeStatement reads the wire form. The result refers to b.
func decodeStatement(b []byte) (statement, error) {
	var s statement
	if len(b) == 0 || len(b) > maxMeta || b[0] != metaVersion {
		return s, fmt.Errorf("%w: unknown version", errMetaBad)
	}
	for rest := b[1:]; len(rest) > 0; {
		before := len(b) - len(rest)
		tag, value, after, ok := nextField(rest)
		if !ok || s.signature != nil {
			return s, errMetaBad
		}
		if tag == tagSignature {
			s.signed, s.signature = b[:before], value
		} else if err := s.setField(tag, value); err != nil {
			return s, err
		}
		rest = after
	}
	return s, nil
}

// maxTunnel is the length of a key of WireGuard (X25519).
const maxTunnel = 32

func (s *statement) setTunnel(tag uint64, v []byte) error {
	switch tag {
	case tagTunnel:
		if len(v) != maxTunnel {
			return fmt.Errorf("%w: tunnel key", errMetaBad)
		}
		s.Tunnel = string(v)
	case tagInner:
		if len(v) != maxTunnel {
			return fmt.Errorf("%w: key of the inner tunnel", errMetaBad)
		}
		s.Inner = string(v)
	case tagTunnelPort:
		n, size := binary.Uvarint(v)
		if size != len(v) || n > 1<<16-1 {
			return fmt.Errorf("%w: tunnel port", errMetaBad)
		}
		s.TunnelPort = uint16(n)
	case tagEncrypts:
		s.Encrypts = len(v) == 1 && v[0] == 1
	case tagHidden:
		s.Hidden = len(v) == 1 && v[0] == 1
	}
	return nil
}

func (s *statement) setField(tag uint64, v []byte) error {
	switch tag {
	case tagRole:
		s.Role = Role(v)
	case tagGrant:
		s.grant = v
	case tagSerial, tagCeiling:
		n, size := binary.Uvarint(v)
		if size != len(v) || tag == tagCeiling && n > 1<<32-1 {
			return fmt.Errorf("%w: number", errMetaBad)
		}
		if tag == tagSerial {
			s.serial = n
		} else {
			s.ceiling = uint32(n)
		}
	case tagZone:
		s.Zone = string(v)
	case tagAPI:
		s.API = string(v)
	case tagNode:
		s.Node = string(v)
	case tagMAC:
		s.MAC = string(v)
	case tagLeaving:
		s.Leaving = len(v) == 1 && v[0] == 1
	case tagVotes:
		s.Votes = len(v) == 1 && v[0] == 1
	case tagLayers:
		s.Layers = len(v) == 1 && v[0] == 1
	case tagProxies:
		s.Proxies = len(v) == 1 && v[0] == 1
	case tagTunnel, tagTunnelPort, tagEncrypts, tagHidden, tagInner:
		return s.setTunnel(tag, v)
	case tagAnnounces:
		s.Announces = string(v)
	}
	return nil
}
