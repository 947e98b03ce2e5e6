// Package cidr has the type of a cluster's ranges of addresses: those of pods,
// of Services, and of one node's pods. The coordinator, which knows nothing of
// cni, reads its own configuration's (coordinator/config).
package cidr

import (
	"net/netip"
	"slices"
	"strings"
)

// Prefixes are ranges of addresses, of one family or of both. Who serves one
// family only asks for its ranges; nobody takes the first for the only one.
type Prefixes []netip.Prefix

// Parse reads ranges, also several with commas between, that were validated before:
// what is none is left out.
func Parse(texts ...string) (out Prefixes) {
	for _, text := range texts {
		for s := range strings.SplitSeq(text, ",") {
			if p, err := netip.ParsePrefix(strings.TrimSpace(s)); err == nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// Text is what Parse reads.
func (p Prefixes) Text() string {
	texts := make([]string, len(p))
	for i, r := range p {
		texts[i] = r.String()
	}
	return strings.Join(texts, ",")
}

// V4 are the ranges of IPv4, V6 those of IPv6.
func (p Prefixes) V4() Prefixes { return p.only(netip.Addr.Is4) }

// V6 is described at V4.
func (p Prefixes) V6() Prefixes { return p.only(netip.Addr.Is6) }

func (p Prefixes) only(family func(netip.Addr) bool) (out Prefixes) {
	for _, r := range p {
		if family(r.Addr()) {
			out = append(out, r)
		}
	}
	return out
}

// Contains tells whether an address is in one of the ranges.
func (p Prefixes) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(r netip.Prefix) bool { return r.Contains(a) })
}
