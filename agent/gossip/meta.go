package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Role tells what a member does for the cluster.
type Role string

// The roles; an unknown one, from a newer release, is passed on as it came.
const (
	RoleAgent       Role = "agent"
	RoleCoordinator Role = "coordinator"
)

// Meta is what a member tells about itself. All of it together must encode to
// at most 512 bytes, memberlist's limit for a member.
type Meta struct {
	Role     Role
	PodCIDRs []netip.Prefix // pod networks that the member routes
	NodeIPs  []netip.Addr   // addresses to route them to; empty: the gossip address
	Zone     string         // topology.kubernetes.io/zone of the node
	API      string         // https URL of the API server there (coordinators)
	MAC      string         // 6 raw bytes of the tunnel device's address; empty: no tunnel
	Leaving  bool           // a planned end has begun: send no new traffic
}

// The wire form: one version byte, then fields as (tag, length, value), tag and
// length as uvarints. A reader skips tags that it does not know, so fields may
// be added without a new version.
const (
	metaVersion = 1

	tagRole    = 1
	tagPodCIDR = 2 // repeated
	tagNodeIP  = 3 // repeated
	tagZone    = 4
	tagAPI     = 5
	tagLeaving = 6
	tagMAC     = 7
)

// maxMeta is memberlist.MetaMaxSize.
const maxMeta = 512

var errMetaTooLong = fmt.Errorf("metadata is longer than %d bytes", maxMeta)

func (m Meta) clone() Meta {
	m.PodCIDRs = slices.Clone(m.PodCIDRs)
	m.NodeIPs = slices.Clone(m.NodeIPs)
	return m
}

// encode returns the wire form, or errMetaTooLong.
func (m Meta) encode() ([]byte, error) {
	b := []byte{metaVersion}
	b = appendField(b, tagRole, []byte(m.Role))
	for _, p := range m.PodCIDRs {
		raw, err := p.MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("encode pod CIDR: %w", err)
		}
		b = appendField(b, tagPodCIDR, raw)
	}
	for _, a := range m.NodeIPs {
		b = appendField(b, tagNodeIP, a.AsSlice())
	}
	b = appendField(b, tagZone, []byte(m.Zone))
	b = appendField(b, tagAPI, []byte(m.API))
	b = appendField(b, tagMAC, []byte(m.MAC))
	if m.Leaving {
		b = appendField(b, tagLeaving, []byte{1})
	}
	if len(b) > maxMeta {
		return nil, errMetaTooLong
	}
	return b, nil
}

func appendField(b []byte, tag uint64, value []byte) []byte {
	if len(value) == 0 {
		return b
	}
	b = binary.AppendUvarint(b, tag)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}

var errMetaBad = errors.New("malformed member metadata")

// decodeMeta reads the wire form. It never keeps a reference to b.
func decodeMeta(b []byte) (Meta, error) {
	var m Meta
	if len(b) == 0 || b[0] != metaVersion {
		return m, fmt.Errorf("%w: unknown version", errMetaBad)
	}
	for b = b[1:]; len(b) > 0; {
		tag, n := binary.Uvarint(b)
		if n <= 0 {
			return m, errMetaBad
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return m, errMetaBad
		}
		if err := m.setField(tag, b[n:n+int(size)]); err != nil {
			return m, err
		}
		b = b[n+int(size):]
	}
	return m, nil
}

func (m *Meta) setField(tag uint64, v []byte) error {
	switch tag {
	case tagRole:
		m.Role = Role(v)
	case tagPodCIDR:
		var p netip.Prefix
		if err := p.UnmarshalBinary(v); err != nil || !p.IsValid() {
			return fmt.Errorf("%w: pod CIDR", errMetaBad)
		}
		m.PodCIDRs = append(m.PodCIDRs, p)
	case tagNodeIP:
		a, ok := netip.AddrFromSlice(v)
		if !ok {
			return fmt.Errorf("%w: node address", errMetaBad)
		}
		m.NodeIPs = append(m.NodeIPs, a)
	case tagZone:
		m.Zone = string(v)
	case tagAPI:
		m.API = string(v)
	case tagMAC:
		m.MAC = string(v)
	case tagLeaving:
		m.Leaving = len(v) == 1 && v[0] == 1
	}
	return nil
}
