package e2e

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/cni/nstest"
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

// tapTunnel reads all that passes the encrypted tunnels' interface of a node, as its kernel
// has it.
func tapTunnel(t *testing.T, node *harness.Agent) *nstest.Tap {
	return nstest.TapInto(t, "/run/netns/"+node.NetNS, "shoal0-wg")
}

// unread has node3 and node4, and pods there, ask each other for what the one between must
// not read.
func (f *fabric) unread(between *harness.Agent, tapped *nstest.Tap) {
	f.t.Helper()
	secret := "not-for-" + between.Name
	f.gets("friend-node3", f.page("node4")+"/"+secret)
	f.gets("friend-node4", f.page("node3")+"/"+secret)
	conn := f.open("node3", f.page("node4"))
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprintf(conn, "GET /%s HTTP/1.0\r\n\r\n", secret); err != nil {
		f.t.Error(err)
	}
	if said, err := io.ReadAll(conn); err != nil || !strings.Contains(string(said), "Hello") {
		f.t.Errorf("node3 asked a pod of node4: %q, %v", said, err)
	}
	if _, found := tapped.Saw(secret); found {
		f.t.Errorf("%s reads what pods of other nodes send each other", between.Name)
	}
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
	for _, a := range hidden { // if anybody was between, nothing is left of it
		harness.Eventually(t, a.Name+" has no inner tunnel", func() (bool, string) {
			out, err := harness.Command(a.NetNS, "sh", "-c", "ip link; ip rule; nft list tables").CombinedOutput()
			text := string(out)
			return err == nil && !strings.Contains(text, "-wg-in") && !strings.Contains(text, "8384") &&
				!strings.Contains(text, "-relay"), text
		})
	}
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
// the two nodes' pods reach each other through a node that both reach, which cannot read what
// they say; another one takes over when that dies, and its agent may be away.
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
	first := tapTunnel(t, open)
	f.gets("friend-node3", f.page("node2")+"/for-node2")
	if _, found := first.Saw("for-node2"); !found {
		t.Error("what comes to node2 itself is not seen either: the test is blind")
	}
	f.unread(open, first)
	inner := func() (out string) {
		for _, a := range hidden {
			said, err := harness.Command(a.NetNS, "ip", "-o", "link", "show", "shoal0-wg-in").CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, said)
			}
			out += string(said)
		}
		return out
	}
	before := inner()
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
	other := tapTunnel(t, second)
	conn = f.open("node3", page4)
	if err := open.Cut(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
	f.goesOn(conn)
	f.unread(second, other)
	if err := open.Plug(); err != nil {
		t.Fatal(err)
	}
	f.ready("node2")
	f.nodeGets("node3", page4)
	f.nodeGets("node4", page3)
	f.unread(second, other)
	if after := inner(); after != before {
		t.Errorf("the inner tunnels were made anew:\n%s%s", before, after)
	}
}
