package announce

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func nodes(n int) (out []Candidate) {
	for i := range n {
		out = append(out, Candidate{fmt.Sprintf("node%d", i), ParseRanges("192.0.2.0/24,2001:db8::/64")})
	}
	return out
}

func TestRankingAdmits(t *testing.T) {
	all := []Candidate{
		{"far", ParseRanges("198.51.100.0/24")},
		{"near", ParseRanges("192.0.2.0/24")},
		{"none", nil},
		{"six", ParseRanges("2001:db8::/64")},
	}
	for _, tt := range []struct {
		name  string
		claim Claim
		want  []string
	}{
		{"on_its_network", Claim{Addr: netip.MustParseAddr("192.0.2.9")}, []string{"near"}},
		{"IPv6", Claim{Addr: netip.MustParseAddr("2001:db8::9")}, []string{"six"}},
		{"nobody_near", Claim{Addr: netip.MustParseAddr("203.0.113.9")}, nil},
		{"no_backend", Claim{Addr: netip.MustParseAddr("192.0.2.9"), Local: true}, nil},
		{"backend_elsewhere", Claim{Addr: netip.MustParseAddr("192.0.2.9"), Local: true, Nodes: []string{"far"}}, nil},
		{"backend", Claim{Addr: netip.MustParseAddr("192.0.2.9"), Local: true, Nodes: []string{"far", "near"}},
			[]string{"near"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Ranking(tt.claim, all); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// A node that goes moves what it had and nothing else, one that comes takes its share; the
// order in which nodes are known does not matter.
func TestRankingMovesLittle(t *testing.T) {
	all := nodes(5)
	had := map[string]int{}
	for i := range 200 {
		c := Claim{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}
		before := Ranking(c, all)
		had[before[0]]++
		other := slices.Clone(all)
		slices.Reverse(other)
		if got := Ranking(c, other); !slices.Equal(got, before) {
			t.Fatalf("%s: %v, in another order %v", c.Addr, before, got)
		}
		for gone := range all {
			left := slices.Delete(slices.Clone(all), gone, gone+1)
			want := slices.DeleteFunc(slices.Clone(before), func(n string) bool { return n == all[gone].Name })
			if got := Ranking(c, left); !slices.Equal(got, want) {
				t.Fatalf("%s without %s: %v, want %v", c.Addr, all[gone].Name, got, want)
			}
		}
	}
	for name, n := range had {
		if n < 20 || n > 60 { // 40 each; 6 standard deviations are 34
			t.Errorf("%s has %d of 200 addresses", name, n)
		}
	}
}

func TestRanges(t *testing.T) {
	text := "192.0.2.0/24,2001:db8::/64"
	if got := FormatRanges(ParseRanges(text)); got != text {
		t.Errorf("got %s", got)
	}
	if got := ParseRanges("x,192.0.2.0/33,,192.0.2.0/24"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	many := ""
	for range 100 {
		many += "192.0.2.0/24,"
	}
	if got := ParseRanges(many); len(got) != maxRanges {
		t.Errorf("%d ranges", len(got))
	}
}
