package cni

import (
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A firewall of both families lets pods through as long as the network is there, also
// after somebody flushed it.
func TestHostFirewall(t *testing.T) {
	n := newNetworkOf(t, filepath.Join(t.TempDir(), "cni"), bothRanges)
	n.cfg.HostFirewall = OpenFirewall
	n.cfg.DNS = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::a")}
	run := func(command string) string {
		t.Helper()
		words := strings.Fields(command)
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return string(out)
	}
	a, _ := attach(t, n, "a")
	b, rb := attach(t, n, "b")
	serve(t, b.NetNS, ":80")
	to := []string{}
	for i, addr := range rb.Addrs {
		to = append(to, netip.AddrPortFrom(addr, 80).String(), netip.AddrPortFrom(n.cfg.DNS[i], 53).String())
		run("ip addr add " + n.cfg.DNS[i].String() + " dev lo nodad")
		serve(t, "", to[2*i+1])
	}
	pass := func(when string, want bool) {
		t.Helper()
		patience := time.Minute
		if !want {
			patience = time.Second
		}
		for _, addr := range to {
			if got, err := askFor(t, a.NetNS, addr, patience); (err == nil) != want {
				t.Errorf("%s: %s: %q, %v", when, addr, got, err)
			}
		}
	}
	programs := []string{"iptables", "ip6tables"}
	t.Cleanup(func() {
		for _, p := range programs {
			run(p + " -P FORWARD ACCEPT")
			run(p + " -P INPUT ACCEPT")
			run(p + " -F")
			run("ip addr flush to 10.96.0.10 dev lo")
		}
		run("ip addr del fd00:10:96::a dev lo")
	})
	pass("without a firewall", true)
	for _, p := range programs {
		run(p + " -P FORWARD DROP")
		run(p + " -P INPUT DROP")
	}
	pass("with one", false)
	if _, err := n.Repair(); err != nil {
		t.Fatal(err)
	}
	pass("opened", true)
	run("nft flush ruleset") // the policies too
	for _, p := range programs {
		run(p + " -P FORWARD DROP")
		run(p + " -P INPUT DROP")
	}
	if _, err := n.Repair(); err != nil {
		t.Fatal(err)
	}
	pass("repaired", true)
	if err := n.Cleanup(); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		if got := run(p + " -S"); strings.Contains(got, "-A") {
			t.Errorf("after the cleanup %s has:\n%s", p, got)
		}
	}
}
