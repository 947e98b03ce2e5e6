package hostfirewall

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nstest"
)

// host is a network namespace with iptables of a kind.
type host struct {
	t      *testing.T
	ns     string
	suffix string // of the programs' names
	conn   *nft.Conn
}

var both = Config{
	Bridge:   "shoaltest0",
	Families: []nft.Family{nft.V4, nft.V6},
	DNS:      []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")},
	Tunnel:   "shoaltest0-wg",
	Pods:     cidr.Parse("10.244.0.0/16,10.7.16.0/20,fd00:244::/56"),
}

func newHost(t *testing.T, suffix string) *host {
	h := &host{t: t, ns: nstest.New(t), suffix: suffix}
	h.do(func() (err error) { h.conn, err = nft.Open(); return err })
	t.Cleanup(h.conn.Close)
	return h
}

func (h *host) do(f func() error) {
	h.t.Helper()
	if err := nstest.In(h.ns, f); err != nil {
		h.t.Fatal(err)
	}
}

// open tells whether anything was changed.
func (h *host) open(c Config) (changed bool) {
	h.t.Helper()
	h.do(func() (err error) { changed, err = Open(h.conn, c); return err })
	return changed
}

// run runs a program with arguments; iptables and ip6tables are those of the host's kind.
func (h *host) run(command string) (out string) {
	h.t.Helper()
	h.do(func() error {
		words := strings.Fields(command)
		if strings.HasSuffix(words[0], "tables") {
			words[0] += h.suffix
		}
		b, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		out = string(b)
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return err
	})
	return out
}

// rules are what iptables says of a chain.
func (h *host) rules(program, chain string) string {
	h.t.Helper()
	return h.run(program + " -S " + chain)
}

func (h *host) has(program, chain, want string) {
	h.t.Helper()
	if d := cmp.Diff(want, h.rules(program, chain)); d != "" {
		h.t.Errorf("%s: (-want +got)\n%s", program, d)
	}
}

const (
	forward6 = `-P FORWARD ACCEPT
-A FORWARD -i shoaltest0 -m comment --comment "shoal:shoaltest0:from-pods" -j ACCEPT
-A FORWARD -o shoaltest0 -m comment --comment "shoal:shoaltest0:to-pods" -j ACCEPT
-A FORWARD -i shoaltest0-wg -o shoaltest0-wg -m comment --comment "shoal:shoaltest0:between-nodes" -j ACCEPT
-A FORWARD -d fd00:244::/56 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-to-fd00:244::/56" -j ACCEPT
-A FORWARD -s fd00:244::/56 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-from-fd00:244::/56" -j ACCEPT
-A FORWARD -d fd00:99::/64 -j DROP
`
	forward = `-P FORWARD DROP
-A FORWARD -i shoaltest0 -m comment --comment "shoal:shoaltest0:from-pods" -j ACCEPT
-A FORWARD -o shoaltest0 -m comment --comment "shoal:shoaltest0:to-pods" -j ACCEPT
-A FORWARD -i shoaltest0-wg -o shoaltest0-wg -m comment --comment "shoal:shoaltest0:between-nodes" -j ACCEPT
-A FORWARD -d 10.244.0.0/16 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-to-10.244.0.0/16" -j ACCEPT
-A FORWARD -s 10.244.0.0/16 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-from-10.244.0.0/16" -j ACCEPT
-A FORWARD -d 10.7.16.0/20 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-to-10.7.16.0/20" -j ACCEPT
-A FORWARD -s 10.7.16.0/20 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-from-10.7.16.0/20" -j ACCEPT
`
	input = `-P INPUT ACCEPT
-A INPUT -d 10.96.0.10/32 -i shoaltest0 -p udp -m udp --dport 53 -m comment --comment "shoal:shoaltest0:names-udp-10.96.0.10" -j ACCEPT
-A INPUT -d 10.96.0.10/32 -i shoaltest0 -p tcp -m tcp --dport 53 -m comment --comment "shoal:shoaltest0:names-tcp-10.96.0.10" -j ACCEPT
-A INPUT -i shoaltest0 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-of-the-node" -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -j REJECT --reject-with icmp-port-unreachable
`
	input6 = `-P INPUT DROP
-A INPUT -d fd00:96::a/128 -i shoaltest0 -p udp -m udp --dport 53 -m comment --comment "shoal:shoaltest0:names-udp-fd00:96::a" -j ACCEPT
-A INPUT -d fd00:96::a/128 -i shoaltest0 -p tcp -m tcp --dport 53 -m comment --comment "shoal:shoaltest0:names-tcp-fd00:96::a" -j ACCEPT
-A INPUT -i shoaltest0 -m conntrack --ctstate DNAT -m comment --comment "shoal:shoaltest0:services-of-the-node" -j ACCEPT
`
)

// Of both kinds of iptables, iptables itself tells what is there.
func TestRules(t *testing.T) {
	for _, suffix := range []string{"-nft", "-legacy"} {
		t.Run("iptables"+suffix, func(t *testing.T) {
			h := newHost(t, suffix)
			h.run("iptables -P FORWARD DROP")
			h.run("iptables -A INPUT -p tcp --dport 22 -j REJECT")
			h.run("ip6tables -P INPUT DROP")
			h.run("ip6tables -P FORWARD ACCEPT")
			h.run("ip6tables -A FORWARD -d fd00:99::/64 -j DROP")
			whole := func() {
				t.Helper()
				h.has("iptables", "FORWARD", forward)
				h.has("iptables", "INPUT", input)
				h.has("ip6tables", "INPUT", input6)
				h.has("ip6tables", "FORWARD", forward6)
				h.has("iptables", "OUTPUT", "-P OUTPUT ACCEPT\n")
			}
			h.open(both)
			whole()
			if h.open(both) {
				t.Error("something was changed that was right")
			}
			whole()

			h.run("iptables -F FORWARD")
			h.run("iptables -D INPUT 2")
			h.run("ip6tables -F")
			h.has("ip6tables", "FORWARD", "-P FORWARD ACCEPT\n")
			h.open(both)
			h.has("ip6tables", "FORWARD", "-P FORWARD ACCEPT\n") // where nothing drops, nothing is opened
			h.run("ip6tables -A FORWARD -d fd00:99::/64 -j DROP")
			h.open(both)
			whole()

			other := both
			other.DNS = []netip.Addr{netip.MustParseAddr("10.96.0.53")}
			h.open(other)
			if got := h.rules("iptables", "INPUT"); strings.Contains(got, "10.96.0.10") ||
				strings.Count(got, "10.96.0.53/32") != 2 || strings.Count(got, "ctstate") != 1 {
				t.Errorf("after the DNS's address changed:\n%s", got)
			}
			h.open(both)
			whole()

			h.run("iptables -P FORWARD ACCEPT") // it drops nothing any more
			h.open(both)
			h.has("iptables", "FORWARD", "-P FORWARD ACCEPT\n")
			h.run("iptables -P FORWARD DROP")

			one := both
			one.Families = one.Families[:1]
			h.open(one)
			h.has("iptables", "FORWARD", forward)
			h.has("ip6tables", "INPUT", "-P INPUT DROP\n")
			h.open(both)
			h.open(Config{Bridge: "shoaltest1", Families: both.Families}) // another cluster's
			h.do(func() error { return Close(h.conn, "shoaltest1") })
			whole()
			h.do(func() error { return Close(h.conn, both.Bridge) })
			h.has("iptables", "FORWARD", "-P FORWARD DROP\n")
			h.has("iptables", "INPUT", "-P INPUT ACCEPT\n-A INPUT -p tcp -m tcp --dport 22 -j REJECT --reject-with icmp-port-unreachable\n")
			h.has("ip6tables", "INPUT", "-P INPUT DROP\n")
		})
	}
}

// Where there is no such chain, none is made.
func TestNothingIsMade(t *testing.T) {
	h := newHost(t, "")
	h.open(both)
	if got := h.run("nft list ruleset"); got != "" {
		t.Errorf("there is %s", got)
	}
	h.run("nft add table ip filter")
	h.run("nft add chain ip filter FORWARD") // without a hook
	before := h.run("nft list ruleset")
	h.open(both)
	if d := cmp.Diff(before, h.run("nft list ruleset")); d != "" {
		t.Errorf("(-before +after)\n%s", d)
	}
}

// FuzzParseList: whatever iptables lists is others' but what has our comment.
func FuzzParseList(f *testing.F) {
	f.Add("-A FORWARD -i x -m comment --comment \"shoal:x:from-pods\" -j ACCEPT")
	f.Add("-A FORWARD -m comment --comment")
	f.Fuzz(func(t *testing.T, line string) {
		ours, comments, others, _ := parseList([]string{"-P FORWARD DROP", line}, "shoal:x:")
		if len(ours) != len(comments) || len(ours)+others > 1 || len(ours) > 0 && !strings.Contains(line, "shoal:x:") {
			t.Errorf("ours %v, comments %v, others %d", ours, comments, others)
		}
	})
}

// BenchmarkWhole is what the network's check costs where nothing is missing.
func BenchmarkWhole(b *testing.B) {
	ns := nstest.New(b)
	err := nstest.In(ns, func() error {
		c, err := nft.Open()
		if err != nil {
			return err
		}
		defer c.Close()
		for _, program := range []string{"iptables", "ip6tables"} {
			for _, args := range []string{"-P FORWARD DROP", "-P INPUT DROP", "-A INPUT -i lo -j ACCEPT"} {
				if out, err := exec.Command(program, strings.Fields(args)...).CombinedOutput(); err != nil {
					return fmt.Errorf("%w: %s", err, out)
				}
			}
		}
		for b.Loop() {
			if _, err := Open(c, both); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
