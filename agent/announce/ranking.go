package announce

import (
	"bytes"
	"crypto/sha256"
	"net/netip"
	"slices"
	"strings"
)

// Candidate is a node that may announce addresses in some ranges.
type Candidate struct {
	Name   string
	Ranges []netip.Prefix
}

func (c *Candidate) reaches(a netip.Addr) bool {
	return slices.ContainsFunc(c.Ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Claim is an address that one node is to announce.
type Claim struct {
	Addr netip.Addr
	// Local: only one of Nodes.
	Local bool
	Nodes []string
}

// Ranking names who may announce an address, the one that is to first. It is a rendezvous
// hash: who comes or goes moves only what it gets or had.
func Ranking(c Claim, all []Candidate) []string {
	type ranked struct {
		name string
		hash [sha256.Size]byte
	}
	var list []ranked
	for i := range all {
		n := &all[i]
		if n.reaches(c.Addr) && (!c.Local || slices.Contains(c.Nodes, n.Name)) {
			list = append(list, ranked{n.Name, sha256.Sum256([]byte(n.Name + "\x00" + c.Addr.String()))})
		}
	}
	slices.SortFunc(list, func(a, b ranked) int { return bytes.Compare(a.hash[:], b.hash[:]) })
	names := make([]string, len(list))
	for i, r := range list {
		names[i] = r.name
	}
	return names
}

// maxRanges bounds what a node says of its networks, and what is read of another's words.
const maxRanges = 8

// FormatRanges is how a member says its ranges.
func FormatRanges(ranges []netip.Prefix) string {
	var words []string
	for _, r := range ranges[:min(len(ranges), maxRanges)] {
		words = append(words, r.String())
	}
	return strings.Join(words, ",")
}

// ParseRanges reads what FormatRanges wrote; what cannot be read is left out.
func ParseRanges(text string) (out []netip.Prefix) {
	for word := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(word); err == nil && len(out) < maxRanges {
			out = append(out, p)
		}
	}
	return out
}
