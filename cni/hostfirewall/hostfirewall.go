package hostfirewall

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
)

// Config says for whom the host's firewall is opened.
type Config struct {
	Bridge   string
	Families []nft.Family
	DNS      []netip.Addr  // where the node answers pods' questions for names
	Pods     cidr.Prefixes // all of the cluster's
	// Tunnel is the interface by which other nodes send through this one; empty: they do not.
	Tunnel string
}

// chains are those of the table filter that packets of pods pass.
var chains = []string{"FORWARD", "INPUT"}

const (
	table   = "filter"
	dnsPort = 53
)

// Open has the host's firewall let pods through, where it might not. Whatever is there
// already stays, so that it may be repeated at any time; what is ours and not needed goes.
// It tells whether anything was changed.
func Open(c *nft.Conn, cfg Config) (changed bool, err error) {
	var errs []error
	for _, f := range []nft.Family{nft.V4, nft.V6} {
		var want map[string][]rule
		if slices.Contains(cfg.Families, f) {
			want = cfg.rules(f)
		}
		in, err := inNFT(c, f, cfg.prefix(), want)
		inOld, errOld := inLegacy(f, cfg.prefix(), want)
		changed, errs = changed || in || inOld, append(errs, err, errOld)
	}
	if err := errors.Join(errs...); err != nil {
		return changed, fmt.Errorf("the host's firewall: %w", err)
	}
	return changed, nil
}

// Close takes back what Open did for a bridge.
func Close(c *nft.Conn, bridge string) error {
	_, err := Open(c, Config{Bridge: bridge})
	return err
}

// rule is one of ours, in the words of both homes.
type rule struct {
	comment string
	nft     nft.Rule
	args    []string // of iptables, without comment and target
}

// prefix is what the comments of a bridge's rules begin with. There is no space in a
// comment, so that what iptables lists is divided at spaces.
func (c Config) prefix() string { return "shoal:" + c.Bridge + ":" }

// rules are what is wanted, by chain.
func (c Config) rules(f nft.Family) map[string][]rule {
	from := nft.XTFrom(c.Bridge)
	input := []rule{}
	for _, a := range c.DNS {
		if nft.FamilyOf(a) != f {
			continue
		}
		for _, p := range []struct {
			name   string
			number uint8
		}{{"udp", unix.IPPROTO_UDP}, {"tcp", unix.IPPROTO_TCP}} {
			input = append(input, rule{
				comment: c.prefix() + "names-" + p.name + "-" + a.String(),
				nft: nft.Rule{from, nft.ProtoIs(p.number), nft.XTDaddr(a), nft.XTDport(p.number, dnsPort),
					nft.Count(), nft.Accept()},
				args: []string{"-i", c.Bridge, "-d", a.String(), "-p", p.name, "-m", p.name,
					"--dport", fmt.Sprint(dnsPort)},
			})
		}
	}
	forward := []rule{
		{c.prefix() + "from-pods", nft.Rule{from, nft.Count(), nft.Accept()}, []string{"-i", c.Bridge}},
		{c.prefix() + "to-pods", nft.Rule{nft.XTTo(c.Bridge), nft.Count(), nft.Accept()},
			[]string{"-o", c.Bridge}},
	}
	if c.Tunnel != "" {
		forward = append(forward, rule{c.prefix() + "between-nodes",
			nft.Rule{nft.XTFrom(c.Tunnel), nft.XTTo(c.Tunnel), nft.Count(), nft.Accept()},
			[]string{"-i", c.Tunnel, "-o", c.Tunnel}})
	}
	for _, p := range c.Pods {
		if nft.FamilyOf(p.Addr()) != f {
			continue
		}
		text := p.Masked().String()
		forward = append(forward,
			rule{c.prefix() + "services-to-" + text,
				nft.Rule{nft.DaddrIn(p), nft.XTRedirected(), nft.Count(), nft.Accept()},
				[]string{"-d", text, "-m", "conntrack", "--ctstate", "DNAT"}},
			rule{c.prefix() + "services-from-" + text,
				nft.Rule{nft.SaddrIn(p), nft.XTRedirected(), nft.Count(), nft.Accept()},
				[]string{"-s", text, "-m", "conntrack", "--ctstate", "DNAT"}})
	}
	return map[string][]rule{
		"FORWARD": forward,
		"INPUT": append(input, rule{c.prefix() + "services-of-the-node",
			nft.Rule{from, nft.XTRedirected(), nft.Count(), nft.Accept()},
			[]string{"-i", c.Bridge, "-m", "conntrack", "--ctstate", "DNAT"}}),
	}
}

// needed are the rules that a chain must have; none where it lets all pass by itself.
func needed(want []rule, accepts bool, others int) []rule {
	if accepts && others == 0 {
		return nil
	}
	return want
}

// have tells whether a chain has what it must, and no more of ours.
func have(want []rule, comments []string) bool {
	if len(want) != len(comments) {
		return false
	}
	for _, r := range want {
		if !slices.Contains(comments, r.comment) {
			return false
		}
	}
	return true
}

// tries is how often a chain is looked at anew that somebody else changes just then.
const tries = 3

// inNFT has the chains of iptables in nftables hold what they need.
func inNFT(c *nft.Conn, f nft.Family, prefix string, want map[string][]rule) (changed bool, err error) {
	var errs []error
	for _, chain := range chains {
		done, err := false, nft.ErrGone
		for try := 0; try < tries && errors.Is(err, nft.ErrGone); try++ {
			done, err = inChain(c, nft.Table{Family: f, Name: table}, chain, prefix, want[chain])
		}
		changed = changed || done
		if !errors.Is(err, nft.ErrGone) { // else it is changed all the time: the next look finds it
			errs = append(errs, err)
		}
	}
	return changed, errors.Join(errs...)
}

func inChain(c *nft.Conn, t nft.Table, chain, prefix string, want []rule) (changed bool, err error) {
	found, err := c.List(t, chain)
	if found == nil || err != nil {
		return false, err
	}
	var comments []string
	var handles []uint64
	for _, r := range found.Rules {
		if strings.HasPrefix(r.Comment, prefix) {
			comments, handles = append(comments, r.Comment), append(handles, r.Handle)
		}
	}
	want = needed(want, found.Accepts, len(found.Rules)-len(handles))
	if have(want, comments) {
		return false, nil
	}
	head := make([]nft.Commented, len(want))
	for i, r := range want {
		head[i] = nft.Commented{Rule: r.nft, Comment: r.comment}
	}
	err = c.Rehead(t, chain, handles, head)
	return err == nil, err
}
