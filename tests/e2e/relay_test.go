package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-project/shoal/tests/harness"
)

// behindRouters is a cluster with a node on the LAN and two behind translating routers of
// their own.
func behindRouters(t *testing.T, name string, shuffles bool) (f *fabric, open *harness.Agent, hidden []*harness.Agent) {
	t.Helper()
	f = newFabricOfHosts(t, name)
	open = f.join("node2", f.Host)
	for _, n := range []string{"node3", "node4"} {
		hidden = append(hidden, f.join(n, f.Behind(shuffles)))
	}
	return f, open, hidden
}

// pathTo tells how pods of node3 reach those of another, as its agent said last.
func pathTo(a *harness.Agent, node string) string {
	logs := a.Logs()
	i := strings.LastIndex(logs, `msg="pods of another node are reached by another path" node=`+node+" ")
	if i < 0 {
		return logs
	}
	line, _, _ := strings.Cut(logs[i:], "\n")
	return line
}

func (f *fabric) reachedBy(a *harness.Agent, node, path string) {
	f.t.Helper()
	harness.Eventually(f.t, a.Name+" reaches "+node+" by "+path, func() (bool, string) {
		line := pathTo(a, node)
		return strings.Contains(line, "path="+path+" "), line
	})
}

// TestNetworkBehindTwoRouters: pods of two nodes behind different routers that translate
// addresses, and keep ports, reach each other without anybody between, also when agents and
// the node that introduced them are away.
func TestNetworkBehindTwoRouters(t *testing.T) { // NET-2
	t.Parallel() // with a cluster of its own
	f, open, hidden := behindRouters(t, "two", false)
	f.pods()
	f.reachedBy(hidden[0], "node4", "wireguard")
	f.reachedBy(hidden[1], "node3", "wireguard")
	f.all()
	page3, page4 := f.page("node3"), f.page("node4")
	conn := f.open("node3", page4)
	if err := open.Cut(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
	for _, a := range hidden {
		if err := a.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
	f.goesOn(conn)
	for _, a := range hidden {
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		f.ready(a.Name)
	}
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
	if err := open.Plug(); err != nil {
		t.Fatal(err)
	}
	f.ready("node2")
}

// TestNetworkRelayed: where the routers choose another port for each that a node talks to,
// the two nodes' pods reach each other through a node that both reach, encrypted; another
// one takes over when that dies, and its agent may be away.
func TestNetworkRelayed(t *testing.T) { // NET-2
	t.Parallel() // with a cluster of its own
	f, open, hidden := behindRouters(t, "sym", true)
	f.pods()
	f.reachedBy(hidden[0], "node4", "relay")
	f.reachedBy(hidden[1], "node3", "relay")
	// The lan's gateway sees what is bridged too.
	if out, err := f.Router("nft", `add table inet seen; add chain inet seen f { type filter hook forward priority 0; }
add rule inet seen f udp dport 51820 counter
add rule inet seen f ip saddr 10.244.0.0/16 counter drop`); err != nil {
		t.Fatal(err, out)
	}
	f.all()
	out, err := f.Router("nft", "list", "table", "inet", "seen")
	if err != nil || !strings.Contains(out, "/16 counter packets 0") {
		t.Errorf("what the router saw: %v\n%s", err, out)
	}
	page3, page4 := f.page("node3"), f.page("node4")
	conn := f.open("node3", page4)
	for _, a := range append(hidden, open) {
		if err := a.Kill(); err != nil {
			t.Fatal(err)
		}
		f.nodeGets("node3", page4)
		f.nodeGets("node4", page3)
	}
	f.goesOn(conn)
	for _, a := range append(hidden, open) {
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		f.ready(a.Name)
	}
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)

	second := f.join("node5", f.Host)
	harness.Eventually(t, "node5 has tunnels", func() (bool, string) {
		out, err := harness.Command(second.NetNS, "ip", "route", "show", "proto", "84").CombinedOutput()
		return err == nil && strings.Count(string(out), "shoal0-wg") == 2, fmt.Sprint(string(out), err)
	})
	if err := open.Cut(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
	if err := open.Plug(); err != nil {
		t.Fatal(err)
	}
	f.ready("node2")
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
}
