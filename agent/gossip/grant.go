package gossip

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Annotations of a Node: its agent writes its client certificate into the one,
// base64 of DER; the coordinator answers with the grant in the other, base64.
const (
	CertificateAnnotation = "shoal-project.io/gossip-certificate"
	GrantAnnotation       = "shoal-project.io/gossip-grant"
)

// Grant is what the API gives a member, signed by the cluster's authority: its
// name and role, its key, and for a node its pod ranges and the addresses that
// lead to them. It goes with the member's metadata, so that each member can
// check it with no one's help.
type Grant struct {
	Role     Role
	Key      []byte // uncompressed P-256 point
	PodCIDRs []netip.Prefix
	NodeIPs  []netip.Addr
	Issued   time.Time // of two grants of one name the later one counts
	Expires  time.Time // end of the certificate that the key is of
}

// expiredGrace is how long a grant counts after its certificate's end: a node
// that is cut off from the API, where it would get a new one, keeps its
// neighbours over a long weekend.
const expiredGrace = 7 * 24 * time.Hour

const grantContext = "shoal gossip grant 1"

// Limits of a grant: two families of each, and room for more addresses.
const (
	maxPodCIDRs = 4
	maxNodeIPs  = 8
)

const (
	tagGrantRole      = 1
	tagGrantKey       = 2
	tagGrantPodCIDR   = 3 // repeated
	tagGrantNodeIP    = 4 // repeated
	tagGrantIssued    = 5
	tagGrantExpires   = 6
	tagGrantSignature = 7 // last
)

// Same tells whether two grants give the same.
func (g Grant) Same(o Grant) bool {
	return g.Role == o.Role && string(g.Key) == string(o.Key) && slices.Equal(g.PodCIDRs, o.PodCIDRs) &&
		slices.Equal(g.NodeIPs, o.NodeIPs) && g.Expires.Unix() == o.Expires.Unix()
}

// Sign encodes the grant for the member of that name and signs it.
func (g Grant) Sign(name string, by crypto.Signer) ([]byte, error) {
	if len(g.PodCIDRs) > maxPodCIDRs || len(g.NodeIPs) > maxNodeIPs {
		return nil, fmt.Errorf("gossip grant of %s: more than %d pod ranges or %d addresses", name,
			maxPodCIDRs, maxNodeIPs)
	}
	b := appendField(nil, tagGrantRole, []byte(g.Role))
	b = appendField(b, tagGrantKey, g.Key)
	for _, p := range g.PodCIDRs {
		raw, err := p.MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("gossip grant of %s: %w", name, err)
		}
		b = appendField(b, tagGrantPodCIDR, raw)
	}
	for _, a := range g.NodeIPs {
		b = appendField(b, tagGrantNodeIP, a.AsSlice())
	}
	b = appendNumber(b, tagGrantIssued, uint64(g.Issued.UnixMilli()))
	b = appendNumber(b, tagGrantExpires, uint64(g.Expires.Unix()))
	sig, err := signWith(by, grantContext, []byte(name), b)
	if err != nil {
		return nil, fmt.Errorf("gossip grant of %s: %w", name, err)
	}
	return appendField(b, tagGrantSignature, sig), nil
}

var (
	errGrantBad     = errors.New("malformed grant")
	errGrantNone    = errors.New("it has no grant of the API")
	errGrantForged  = errors.New("its grant is not for that name, or not signed by this cluster's authority")
	errGrantExpired = errors.New("its certificate expired long ago")
)

// OpenGrant checks that raw is a grant for the member of that name.
func OpenGrant(name string, raw []byte, by Trust, now time.Time) (Grant, error) {
	if len(raw) == 0 {
		return Grant{}, errGrantNone
	}
	g, signed, sig, err := decodeGrant(raw)
	if err != nil {
		return Grant{}, err
	}
	if !slices.ContainsFunc(by, func(c *x509.Certificate) bool {
		return c.IsCA && verifyWith(c.PublicKey, sig, grantContext, []byte(name), signed)
	}) {
		return Grant{}, errGrantForged
	}
	if now.After(g.Expires.Add(expiredGrace)) {
		return Grant{}, errGrantExpired
	}
	return g, nil
}

// decodeGrant returns the grant, the bytes that are signed, and the signature.
func decodeGrant(raw []byte) (g Grant, signed, sig []byte, err error) {
	for rest := raw; len(rest) > 0; {
		before := len(raw) - len(rest)
		tag, value, after, ok := nextField(rest)
		if !ok || sig != nil {
			return g, nil, nil, errGrantBad
		}
		if tag == tagGrantSignature {
			signed, sig = raw[:before], value
		} else if err := g.setField(tag, value); err != nil {
			return g, nil, nil, err
		}
		rest = after
	}
	if sig == nil {
		return g, nil, nil, errGrantBad
	}
	if _, err := g.verifier(); err != nil {
		return g, nil, nil, err
	}
	return g, signed, sig, nil
}

func (g *Grant) setField(tag uint64, v []byte) error {
	switch tag {
	case tagGrantRole:
		g.Role = Role(v)
	case tagGrantKey:
		g.Key = slices.Clone(v)
	case tagGrantPodCIDR:
		var p netip.Prefix
		if err := p.UnmarshalBinary(v); err != nil || !p.IsValid() || len(g.PodCIDRs) == maxPodCIDRs {
			return fmt.Errorf("%w: pod range", errGrantBad)
		}
		g.PodCIDRs = append(g.PodCIDRs, p)
	case tagGrantNodeIP:
		a, ok := netip.AddrFromSlice(v)
		if !ok || len(g.NodeIPs) == maxNodeIPs {
			return fmt.Errorf("%w: node address", errGrantBad)
		}
		g.NodeIPs = append(g.NodeIPs, a)
	case tagGrantIssued, tagGrantExpires:
		n, size := binary.Uvarint(v)
		if size != len(v) || n > 1<<53 {
			return fmt.Errorf("%w: time", errGrantBad)
		}
		if tag == tagGrantIssued {
			g.Issued = time.UnixMilli(int64(n))
		} else {
			g.Expires = time.Unix(int64(n), 0)
		}
	}
	return nil
}

// verifier is the key that checks the member's signatures.
func (g *Grant) verifier() (*ecdsa.PublicKey, error) {
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), g.Key)
	if err != nil {
		return nil, fmt.Errorf("%w: key", errGrantBad)
	}
	return key, nil
}
