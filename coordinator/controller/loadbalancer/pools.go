package loadbalancer

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The ConfigMap that holds the pools.
const (
	PoolsNamespace = metav1.NamespaceSystem
	PoolsName      = "shoal-load-balancer"
)

// poolText is one pool as it is written.
type poolText struct {
	// Addresses are blocks (192.0.2.64/28), ranges (192.0.2.10-192.0.2.20) and addresses.
	Addresses []string `json:"addresses"`
	// AutoAssign: false: only Services that ask for the pool, or an address of it.
	AutoAssign *bool `json:"autoAssign,omitempty"`
	// Namespaces that may have its addresses; none: all.
	Namespaces []string `json:"namespaces,omitempty"`
}

// span is all addresses from one to another.
type span struct{ first, last netip.Addr }

func (s span) contains(a netip.Addr) bool {
	return s.first.BitLen() == a.BitLen() && s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0
}

// pool is a set of addresses that may be given.
type pool struct {
	name       string
	spans      []span
	auto       bool
	namespaces []string
}

func (p *pool) contains(a netip.Addr) bool {
	return slices.ContainsFunc(p.spans, func(s span) bool { return s.contains(a) })
}

// admits tells whether Services of a namespace may have its addresses.
func (p *pool) admits(namespace string) bool {
	return len(p.namespaces) == 0 || slices.Contains(p.namespaces, namespace)
}

// parsePools reads the ConfigMap's data. Addresses of reserved, which the cluster has
// for itself, are refused. Pools are in the order of their names.
func parsePools(data map[string]string, reserved []netip.Prefix) ([]pool, error) {
	var out []pool
	for _, name := range slices.Sorted(maps.Keys(data)) {
		p, err := parsePool(name, data[name], reserved)
		if err != nil {
			return nil, fmt.Errorf("pool %q: %w", name, err)
		}
		for _, other := range out {
			if s, ok := other.overlap(p); ok {
				return nil, fmt.Errorf("pool %q: %s is in pool %q, too", name, s.first, other.name)
			}
		}
		out = append(out, p)
	}
	return out, nil
}

func parsePool(name, text string, reserved []netip.Prefix) (pool, error) {
	var t poolText
	if err := yaml.UnmarshalStrict([]byte(text), &t); err != nil {
		return pool{}, err
	}
	if len(t.Addresses) == 0 {
		return pool{}, errors.New("no addresses")
	}
	p := pool{name: name, auto: t.AutoAssign == nil || *t.AutoAssign, namespaces: t.Namespaces}
	for _, a := range t.Addresses {
		s, err := parseSpan(a)
		if err != nil {
			return pool{}, err
		}
		for _, r := range reserved {
			if own := spanOf(r); own.contains(s.first) || own.contains(s.last) || s.contains(own.first) {
				return pool{}, fmt.Errorf("%s is in %s, which the cluster has for pods or cluster IPs", a, r)
			}
		}
		p.spans = append(p.spans, s)
	}
	return p, nil
}

func (p *pool) overlap(o pool) (span, bool) {
	for _, a := range p.spans {
		for _, b := range o.spans {
			if a.contains(b.first) || b.contains(a.first) {
				return b, true
			}
		}
	}
	return span{}, false
}

// parseSpan reads a block, a range or an address.
func parseSpan(text string) (span, error) {
	var s span
	var err error
	text = strings.TrimSpace(text)
	if from, to, ok := strings.Cut(text, "-"); ok {
		if s.first, err = netip.ParseAddr(strings.TrimSpace(from)); err == nil {
			s.last, err = netip.ParseAddr(strings.TrimSpace(to))
		}
	} else if strings.Contains(text, "/") {
		var p netip.Prefix
		if p, err = netip.ParsePrefix(text); err == nil {
			s = spanOf(p)
		}
	} else {
		s.first, err = netip.ParseAddr(text)
		s.last = s.first
	}
	switch {
	case err != nil:
		return span{}, fmt.Errorf("%q is no block, range or address: %w", text, err)
	case s.first.BitLen() != s.last.BitLen() || s.last.Less(s.first):
		return span{}, fmt.Errorf("%q does not go from an address to a later one", text)
	}
	for _, a := range []netip.Addr{s.first, s.last} {
		if !a.IsGlobalUnicast() || a.Is4In6() || a.Zone() != "" {
			return span{}, fmt.Errorf("%q: %s is no address that others can reach", text, a)
		}
	}
	return s, nil
}

// spanOf is a block, from its first address to its last.
func spanOf(p netip.Prefix) span {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return span{p.Addr(), end}
}
