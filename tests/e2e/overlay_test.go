package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	agentconfig "github.com/shoal-project/shoal/agent/config"
	"github.com/shoal-project/shoal/tests/harness"
)

// fabric is a cluster of its own whose nodes are on several networks.
type fabric struct {
	t *testing.T
	*harness.Cluster
	nodes map[string]string // network namespace by name
}

func newFabric(t *testing.T, name string, flags ...string) *fabric {
	t.Helper()
	c, err := harness.Start(name, flags...)
	if err != nil {
		t.Fatal(err)
	}
	f := &fabric{t, c, map[string]string{"node1": c.NetNS}}
	t.Cleanup(f.stop)
	return f
}

// newFabricOfHosts is newFabric with a first machine that is no node.
func newFabricOfHosts(t *testing.T, name string) *fabric {
	t.Helper()
	c, err := harness.Prepare(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.UpCoordinator(); err != nil {
		t.Fatal(err)
	}
	f := &fabric{t, c, map[string]string{}}
	t.Cleanup(f.stop)
	return f
}

func (f *fabric) stop() {
	if f.t.Failed() {
		f.t.Log(f.Logs())
	}
	if err := f.Stop(); err != nil {
		f.t.Error(err)
	}
}

type makeHost = func(string, ...func(*harness.Agent, *agentconfig.Config)) (*harness.Agent, error)

// join starts a node that host made, and waits for it.
func (f *fabric) join(name string, host makeHost, change ...func(*harness.Agent, *agentconfig.Config)) *harness.Agent {
	f.t.Helper()
	a, err := host(name, change...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.nodes[name] = a.NetNS
	if err := a.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Logf("%s: %s", name, a.Logs())
		}
	})
	f.ready(name)
	return a
}

func (f *fabric) ready(node string) {
	f.t.Helper()
	harness.Eventually(f.t, node+" is ready", func() (bool, string) {
		_, err := f.Kubectl("", "wait", "node/"+node, "--for=condition=Ready", "--timeout=5s")
		return err == nil, fmt.Sprint(err)
	})
}

// page is the address of a node's web pod.
func (f *fabric) page(node string) string {
	return "http://" + f.Must(f.t, "get", "pod", "web-"+node, "-o", "jsonpath={.status.podIP}") + ":8080"
}

// pods are the servers and clients of policyPods on all nodes.
func (f *fabric) pods() {
	f.t.Helper()
	var names []string
	for n := range f.nodes {
		f.MustWith(f.t, fmt.Sprintf(policyPods, n), "apply", "-f", "-")
		names = append(names, "pod/web-"+n, "pod/friend-"+n, "pod/stranger-"+n)
	}
	f.Must(f.t, append([]string{"wait", "--for=condition=Ready", "--timeout=60s"}, names...)...)
}

func (f *fabric) fetch(from, url string, seconds string) (string, error) {
	return f.Kubectl("", "exec", from, "--", "timeout", seconds, "wget", "-qO-", url)
}

func (f *fabric) gets(from, url string) {
	f.t.Helper()
	harness.Eventually(f.t, from+" gets "+url, func() (bool, string) {
		out, err := f.fetch(from, url, "3")
		return err == nil && strings.Contains(out, "Hello"), fmt.Sprint(out, err)
	})
}

func (f *fabric) blocked(from, url string) {
	f.t.Helper()
	harness.Eventually(f.t, from+" does not get "+url, func() (bool, string) {
		out, err := f.fetch(from, url, "1")
		return err != nil && !strings.Contains(out, "Hello"), fmt.Sprint(out, err)
	})
}

// nodeGets asks from the node itself.
func (f *fabric) nodeGets(node, address string) {
	f.t.Helper()
	harness.Eventually(f.t, node+" gets "+address, func() (bool, string) {
		err := get(f.nodes[node], strings.TrimPrefix(address, "http://"))
		return err == nil, fmt.Sprint(err)
	})
}

// each does something for each pair of nodes, and for each with itself.
func (f *fabric) each(do func(client, server string)) {
	for client := range f.nodes {
		for server := range f.nodes {
			do(client, server)
		}
	}
}

// all checks all that pods need of each other: by address, Service and name, from nodes
// too, by node ports, and policies that count the pods' own addresses.
func (f *fabric) all() {
	f.t.Helper()
	pages := map[string]string{}
	for n := range f.nodes {
		pages[n] = f.page(n)
	}
	f.each(func(client, server string) {
		f.gets("stranger-"+client, pages[server])
		f.nodeGets(client, pages[server])
	})
	f.each(func(client, server string) { f.gets("friend-"+client, "http://web-"+server) })
	f.MustWith(f.t, denyAll, "apply", "-f", "-")
	f.each(func(client, server string) { f.blocked("friend-"+client, pages[server]) })
	f.MustWith(f.t, allowFriends, "apply", "-f", "-")
	f.each(func(client, server string) { f.gets("friend-"+client, pages[server]) })
	f.each(func(client, server string) { f.gets("friend-"+client, "http://web-"+server) })
	f.each(func(client, server string) { f.blocked("stranger-"+client, pages[server]) })
	f.Must(f.t, "delete", "networkpolicy", "--all")
}

// onlyOn is a Service whose one server is on a node, with a port at all nodes.
const onlyOn = `
apiVersion: v1
kind: Service
metadata: {name: only}
spec: {type: NodePort, selector: {only: "yes"}, ports: [{port: 80, targetPort: 8080, nodePort: 31234}]}
`

// TestNetworkThroughRouters: nodes on three networks, joined by a router that knows no
// pod, are one network of pods. It goes on without agents and coordinators, comes back
// without a coordinator after what a reboot takes.
func TestNetworkThroughRouters(t *testing.T) { // NET-2
	t.Parallel() // with a cluster of its own
	f := newFabric(t, "vx")
	node2 := f.join("node2", f.Apart)
	node3 := f.join("node3", f.Apart)
	harness.Eventually(t, "node1 has routes to both", func() (bool, string) { // it hears of who is Ready a moment later
		out, err := f.Run("ip", "route", "show", "proto", "84")
		return err == nil && strings.Count(out, "shoal0-vx") == 2, fmt.Sprint(out, err)
	})
	f.pods()
	f.all()

	f.MustWith(t, onlyOn, "apply", "-f", "-")
	f.Must(t, "label", "pod", "web-node3", "only=yes")
	for n, address := range map[string]string{"node1": f.Address, "node2": node2.Address, "node3": node3.Address} {
		harness.Eventually(t, "the node port answers at "+n, func() (bool, string) {
			err := get(f.nodes["node2"], address+":31234")
			return err == nil, fmt.Sprint(err)
		})
		f.gets("stranger-node1", "http://"+address+":31234") // a pod to another node's address
	}

	// A restart of the agent makes nothing anew; while it is away all goes on.
	device := func() string {
		out, err := harness.Command(node2.NetNS, "ip", "-o", "link", "show", "shoal0-vx").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	before := device()
	page2, page3 := f.page("node2"), f.page("node3")
	conn := f.open("node1", page2)
	if err := node2.Kill(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node1", page2)
	if err := node2.Start(); err != nil {
		t.Fatal(err)
	}
	f.ready("node2")
	f.goesOn(conn)
	if after := device(); after != before {
		t.Errorf("the tunnel was made anew:\n%s%s", before, after)
	}

	// All coordinators are away, and a node loses what a reboot takes of its network.
	supervisor, err := f.SupervisorPid()
	if err != nil {
		t.Fatal(err)
	}
	coordinator, err := f.Pid("coordinator")
	if err != nil {
		t.Fatal(err)
	}
	kill(t, []int{supervisor, coordinator})
	if err := node2.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"ip link del shoal0-vx", "nft delete table ip shoal-pods-vxlan"} {
		words := strings.Fields(command)
		if out, err := harness.Command(node2.NetNS, words[0], words[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	if err := node2.Start(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node2", page3)
	f.nodeGets("node3", page2)
	if err := f.Up(); err != nil {
		t.Fatal(err)
	}
	f.ready("node2")
	f.all()
}

// open holds a connection to a server from a node.
func (f *fabric) open(node, page string) net.Conn {
	f.t.Helper()
	var conn net.Conn
	if err := harness.Inside(f.nodes[node], func() (err error) {
		conn, err = net.DialTimeout("tcp", strings.TrimPrefix(page, "http://"), 20*time.Second)
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// goesOn checks that a connection of open still has its other end.
func (f *fabric) goesOn(conn net.Conn) {
	f.t.Helper()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		f.t.Error("a connection did not go on:", err)
		return
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err != nil {
		f.t.Errorf("a connection did not go on: %v", err)
	}
}

// encrypt is a change for a node.
func encrypt(_ *harness.Agent, cfg *agentconfig.Config) { cfg.Encryption = true }

// TestNetworkEncrypted: what pods of nodes that encrypt send each other shows nothing of
// them on the way, on one network and through a router, and a node that does not encrypt
// yet is not left out. Agents that are away or start again do not matter, nor does a new
// key.
func TestNetworkEncrypted(t *testing.T) { // NET-2
	t.Parallel() // with a cluster of its own
	f := newFabricOfHosts(t, "wg")
	node2 := f.join("node2", f.Host, encrypt)
	node3 := f.join("node3", f.Apart, encrypt)
	node4 := f.join("node4", f.Host, encrypt)
	f.pods()
	// The lan's gateway sees all that leaves a host's network, and what is bridged too.
	if out, err := f.Router("nft", `add table inet seen; add chain inet seen f { type filter hook forward priority 0; }
add rule inet seen f udp dport 51820 counter
add rule inet seen f ip saddr 10.244.0.0/16 counter drop`); err != nil {
		t.Fatal(err, out)
	}
	for _, n := range []string{"node2", "node3", "node4"} {
		harness.Eventually(t, n+" has encrypted tunnels", func() (bool, string) {
			out, err := harness.Command(f.nodes[n], "ip", "route", "show", "proto", "84").CombinedOutput()
			return err == nil && strings.Count(string(out), "shoal0-wg") == 2, fmt.Sprint(string(out), err)
		})
	}
	f.all()
	if out, err := f.Router("nft", "list", "table", "inet", "seen"); err != nil ||
		strings.Contains(out, "dport 51820 counter packets 0") || !strings.Contains(out, "/16 counter packets 0") {
		t.Errorf("what the router saw: %v\n%s", err, out)
	}

	tunnel := func() string {
		out, err := harness.Command(node3.NetNS, "ip", "-o", "link", "show", "shoal0-wg").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	before := tunnel()
	page := f.page("node3")
	conn := f.open("node2", page)
	if err := node3.Kill(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node2", page)
	if err := node3.Start(); err != nil {
		t.Fatal(err)
	}
	f.ready("node3")
	f.goesOn(conn)
	if after := tunnel(); after != before {
		t.Errorf("the tunnel was made anew:\n%s%s", before, after)
	}

	// An old key is replaced.
	key := filepath.Join(node3.Dir, "agent", "tunnel.key")
	old, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
	long := time.Now().Add(-31 * 24 * time.Hour)
	if err := os.Chtimes(key, long, long); err != nil {
		t.Fatal(err)
	}
	stop := f.longestGap("node2", page)
	if err := node3.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := node3.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "there is another key", func() (bool, string) {
		now, err := os.ReadFile(key)
		return err == nil && string(now) != string(old), fmt.Sprint(err)
	})
	f.ready("node3")
	time.Sleep(5 * time.Second) // in which the others hear of it: what is measured
	t.Logf("the longest time without an answer while the key changed: %s", stop())
	f.goesOn(conn)

	// One that does not encrypt (any more, or yet) reaches all others.
	if err := node4.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := node4.Change(func(_ *harness.Agent, cfg *agentconfig.Config) { cfg.Encryption = false }); err != nil {
		t.Fatal(err)
	}
	if err := node4.Start(); err != nil {
		t.Fatal(err)
	}
	f.ready("node4")
	if out, err := f.Router("nft", "delete", "table", "inet", "seen"); err != nil {
		t.Fatal(err, out)
	}
	f.all()
	if out, err := harness.Command(node2.NetNS, "ip", "route", "show", "proto", "84").CombinedOutput(); err != nil ||
		strings.Count(string(out), "shoal0-wg") != 1 {
		t.Errorf("node2 has one other that encrypts: %v\n%s", err, out)
	}
}

// longestGap asks a server again and again, by a new connection each time, until the
// function that it returns is called: that tells the longest time from one answer to the next.
func (f *fabric) longestGap(node, page string) func() time.Duration {
	f.t.Helper()
	ended, said := make(chan struct{}), make(chan time.Duration)
	go func() {
		longest, last := time.Duration(0), time.Now()
		for {
			select {
			case <-ended:
				said <- max(longest, time.Since(last))
				return
			default:
			}
			if err := get(f.nodes[node], strings.TrimPrefix(page, "http://")); err == nil {
				longest = max(longest, time.Since(last))
				last = time.Now()
			}
		}
	}()
	return func() time.Duration { close(ended); return <-said }
}

// asks is a pod that is ready as long as it gets a page: nobody can run a command in a pod
// of a node that is hidden.
const asks = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {role: client, friend: "yes"}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: localhost/busybox:1, command: [sleep, "9999"],
    readinessProbe: {periodSeconds: 1, timeoutSeconds: 3, exec: {command: [wget, -qO-, %[3]s]}}}]
`

// TestNetworkBehindTranslation: pods of a node behind a router that translates addresses
// reach those of the others and are reached, by address, Service and name, with their own
// addresses; and go on without agents and the coordinator.
func TestNetworkBehindTranslation(t *testing.T) { // NET-2
	t.Parallel() // with a cluster of its own
	f := newFabricOfHosts(t, "nat")
	node2 := f.join("node2", f.Host)
	node3 := f.join("node3", f.Hidden)
	for n := range f.nodes {
		f.MustWith(t, fmt.Sprintf(policyPods, n), "apply", "-f", "-")
		f.Must(t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/web-"+n, "pod/friend-"+n)
	}
	f.each(func(client, server string) { f.nodeGets(client, f.page(server)) })
	f.each(func(client, server string) {
		name := "asks-" + client + "-" + server
		f.MustWith(t, fmt.Sprintf(asks, name, client, "http://web-"+server), "apply", "-f", "-")
		f.Must(t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+name)
	})
	// A policy that lets friends in counts the pods' own addresses.
	f.MustWith(t, allowFriends, "apply", "-f", "-")
	f.blocked("stranger-node2", f.page("node3"))
	f.gets("friend-node2", f.page("node3"))
	f.Must(t, "label", "pod", "asks-node3-node2", "friend-")
	f.Must(t, "wait", "--for=condition=Ready=False", "--timeout=60s", "pod/asks-node3-node2")
	f.Must(t, "label", "pod", "asks-node3-node2", "friend=yes")
	f.Must(t, "wait", "--for=condition=Ready", "--timeout=60s", "pod/asks-node3-node2")

	f.Must(t, "delete", "networkpolicy", "--all")
	f.nodeGets("node2", f.page("node3"))
	conn := f.open("node2", f.page("node3"))
	page2, page3 := f.page("node2"), f.page("node3")
	if err := node3.Kill(); err != nil {
		t.Fatal(err)
	}
	f.nodeGets("node2", page3)
	f.nodeGets("node3", page2)
	if err := node3.Start(); err != nil {
		t.Fatal(err)
	}
	f.ready("node3")
	f.goesOn(conn)

	// Without the coordinator each of them loses what a reboot takes of its network.
	if err := f.KillCoordinator(); err != nil {
		t.Fatal(err)
	}
	for _, a := range []*harness.Agent{node3, node2} {
		if err := a.Kill(); err != nil {
			t.Fatal(err)
		}
		if out, err := harness.Command(a.NetNS, "ip", "link", "del", "shoal0-wg").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		f.nodeGets("node2", page3)
		f.nodeGets("node3", page2)
	}
	if err := f.UpCoordinator(); err != nil {
		t.Fatal(err)
	}
	f.ready("node3")
}
