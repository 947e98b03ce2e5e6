package cni

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
	"github.com/shoal-project/shoal/tests/leak"
)

// TestMain runs the tests in a network and mount namespace of their own.
func TestMain(m *testing.M) {
	if os.Getenv("SHOAL_TEST_NETNS") == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), "SHOAL_TEST_NETNS=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Package net looks once whether there is IPv6, wherever it is asked first: here there is.
	if l, err := net.Listen("tcp", "[::1]:0"); err == nil {
		l.Close()
	}
	leak.Check(m)
}

// serve answers every connection in the namespace with the peer's address.
func serve(t testing.TB, ns, addr string) {
	t.Helper()
	var l net.Listener
	if err := nstest.In(ns, func() (err error) { l, err = net.Listen("tcp", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, c.RemoteAddr())
			c.Close()
		}
	}()
}

// ask returns what the server at addr says, from the namespace ("": the node). On a busy
// machine the first packets through a new interface may be lost.
func ask(t testing.TB, ns, addr string) (string, error) {
	t.Helper()
	return askFor(t, ns, addr, time.Minute)
}

// askFor is ask, for a time: where no answer is expected.
func askFor(t testing.TB, ns, addr string, patience time.Duration) (string, error) {
	t.Helper()
	var got string
	dial := func() error {
		c, err := net.DialTimeout("tcp", addr, patience)
		if err != nil {
			return err
		}
		defer c.Close()
		got, err = bufio.NewReader(c).ReadString('\n')
		if err == io.EOF {
			err = nil
		}
		host, _, _ := net.SplitHostPort(strings.TrimSpace(got))
		got = host
		return err
	}
	if ns == "" {
		return got, dial()
	}
	err := nstest.In(ns, dial)
	return got, err
}

func newNetwork(t testing.TB) *Network {
	t.Helper()
	n, err := New(Config{
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.7.0/24")},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		StateDir:     filepath.Join(t.TempDir(), "cni"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Cleanup(); err != nil {
			t.Error("cleanup:", err)
		}
	})
	return n
}

func attach(t testing.TB, n *Network, id string, ports ...podnet.HostPort) (podnet.Sandbox, Result) {
	t.Helper()
	a := podnet.Sandbox{ID: id, IfName: "eth0", NetNS: nstest.New(t), HostPorts: ports}
	r, err := n.Add(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	return a, r
}

func TestPodsReachEachOther(t *testing.T) { // NET-1, NET-2, NET-3
	n := newNetwork(t)
	a, ra := attach(t, n, "a")
	b, rb := attach(t, n, "b")
	serve(t, b.NetNS, ":80")
	target := netip.AddrPortFrom(rb.Addrs[0], 80).String()
	if got, err := ask(t, a.NetNS, target); err != nil || got != ra.Addrs[0].String() {
		t.Errorf("from a pod: got %q, %v, want its own address %s", got, err, ra.Addrs[0])
	}
	if got, err := ask(t, "", target); err != nil || got != "10.244.7.1" {
		t.Errorf("from the node: got %q, %v", got, err)
	}
	for _, x := range []podnet.Sandbox{a, b} {
		if err := n.Check(context.Background(), x); err != nil {
			t.Error(err)
		}
	}
	again, err := n.Add(context.Background(), a)
	if err != nil || again.Addrs[0] != ra.Addrs[0] {
		t.Errorf("repeated add: %v, %v", again.Addrs, err)
	}
}

func TestDelIsIdempotentAndNeedsNoNamespace(t *testing.T) {
	n := newNetwork(t)
	a, r := attach(t, n, "a", podnet.HostPort{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"})
	_ = unix.Unmount(a.NetNS, unix.MNT_DETACH)
	for range 2 {
		if err := n.Del(context.Background(), a); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := netlink.LinkByName(hostIf(a)); err == nil {
		t.Error("interface is still there")
	}
	if _, r2 := attach(t, n, "b"); r2.Addrs[0] == r.Addrs[0] {
		t.Error("a freed address was given out again at once")
	}
	if ids, err := n.Owners(); err != nil || fmt.Sprint(ids) != "[b]" {
		t.Errorf("owners %v, %v", ids, err)
	}
	if err := n.GC(context.Background(), nil); err != nil {
		t.Error(err)
	}
	if ids, _ := n.Owners(); len(ids) != 0 {
		t.Errorf("owners after GC: %v", ids)
	}
}

// TestKnownAddressesAreReserved: addresses that pods have are given to nobody else, also when
// what reserved them was lost.
func TestKnownAddressesAreReserved(t *testing.T) {
	n := newNetwork(t)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	a, r := attach(t, n, "a")
	if err := os.RemoveAll(n.stacks[0].pool.dir); err != nil {
		t.Fatal(err)
	}
	a.Addrs = append(r.Addrs, netip.MustParseAddr("192.0.2.1")) // and one of another network
	for range 2 {
		if err := n.Know([]podnet.Sandbox{a}); err != nil {
			t.Fatal(err)
		}
	}
	if _, r2 := attach(t, n, "b"); r2.Addrs[0] == r.Addrs[0] {
		t.Errorf("two pods have %s", r.Addrs[0])
	}
	if ids, err := n.Owners(); err != nil || fmt.Sprint(ids) != "[a b]" {
		t.Errorf("owners %v, %v", ids, err)
	}
}

func TestHostPort(t *testing.T) { // NET-6
	n := newNetwork(t)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	node := "10.244.7.1" // any address of the node will do
	a, _ := attach(t, n, "a", podnet.HostPort{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"},
		podnet.HostPort{HostIP: node, HostPort: 8081, ContainerPort: 80, Protocol: "TCP"})
	b, _ := attach(t, n, "b")
	serve(t, a.NetNS, ":80")
	for _, from := range []string{"", a.NetNS, b.NetNS} {
		for _, port := range []string{"8080", "8081"} {
			if _, err := ask(t, from, net.JoinHostPort(node, port)); err != nil {
				t.Errorf("port %s from %q: %v", port, from, err)
			}
		}
	}
	// A new process knows the ports from the kernel alone.
	n2, _ := New(n.cfg)
	if err := n2.Del(context.Background(), a); err != nil {
		t.Fatal(err)
	}
	if _, err := askFor(t, b.NetNS, "10.244.7.1:8080", 2*time.Second); err == nil {
		t.Error("host port still answers")
	}
}

func TestMasqueradeTowardsTheWorld(t *testing.T) {
	n := newNetwork(t)
	a, _ := attach(t, n, "a")
	// The world is a namespace on a link of its own.
	world := nstest.New(t)
	ns, _ := netns.GetFromPath(world)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(ns))
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	defer netlink.LinkDel(veth)
	up := func(name, addr string) error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		ad, _ := netlink.ParseAddr(addr)
		if err := netlink.AddrAdd(l, ad); err != nil {
			return err
		}
		return netlink.LinkSetUp(l)
	}
	if err := up("up0", "192.0.2.1/24"); err != nil {
		t.Fatal(err)
	}
	if err := nstest.In(world, func() error { return up("eth0", "192.0.2.2/24") }); err != nil {
		t.Fatal(err)
	}
	serve(t, world, ":80")
	if got, err := ask(t, a.NetNS, "192.0.2.2:80"); err != nil || got != "192.0.2.1" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := n.SyncRoutes(
		[]Peer{{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")},
			Via: netip.MustParseAddr("192.0.2.2")}}); err != nil {
		t.Fatal(err)
	}
	// Traffic to other nodes' pods keeps the pod's address.
	if err := nstest.In(world, func() error {
		l, _ := netlink.LinkByName("eth0")
		ad, _ := netlink.ParseAddr("10.244.9.9/32")
		dst, _ := netlink.ParseIPNet("10.244.7.0/24")
		if err := netlink.AddrAdd(l, ad); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP("192.0.2.1")})
	}); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(t, a.NetNS, "10.244.9.9:80"); err != nil || got != "10.244.7.2" {
		t.Errorf("to another node's pod: got %q, %v", got, err)
	}
	if err := n.SyncRoutes(nil); err != nil {
		t.Fatal(err)
	}
	if rs, _ := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: routeProtocol},
		netlink.RT_FILTER_PROTOCOL); len(rs) != 0 {
		t.Errorf("routes left: %v", rs)
	}
	if err := n.SyncRoutes(
		[]Peer{{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.9.0/24")},
			Via: netip.MustParseAddr("203.0.113.1")}}); err == nil {
		t.Error("a peer out of reach was not told")
	}
}

// What others do to the network is found and made right, and pods are reached again.
func TestRepair(t *testing.T) {
	n := newNetwork(t)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	a, r := attach(t, n, "a")
	serve(t, a.NetNS, ":80")
	for _, c := range []struct{ damage, found string }{
		{"nft flush ruleset", "nftables table"},
		{"nft list ruleset > $DIR/saved && nft flush ruleset && nft -f $DIR/saved", "nftables table"},
		{"ip link del " + DefaultBridge, "bridge is gone"},
		{"ip link set " + DefaultBridge + " down", "bridge is down"},
		{"ip addr flush dev " + DefaultBridge, "address 10.244.7.1 is gone"},
		{"ip route flush dev " + DefaultBridge, "route to 10."},
		{"sysctl -w net.ipv4.ip_forward=0", "ip_forward is 0"},
		{"sysctl -w net.ipv4.conf." + DefaultBridge + ".route_localnet=0", "route_localnet is 0"},
		{"ip link set " + r.HostIf + " nomaster", "port " + r.HostIf},
		{"ip link set " + r.HostIf + " down", "port " + r.HostIf},
		{"ip link set " + r.HostIf + " group 0", "port " + r.HostIf},
	} {
		damage := exec.Command("sh", "-c", strings.ReplaceAll(c.damage, "$DIR", t.TempDir()))
		if out, err := damage.CombinedOutput(); err != nil {
			t.Fatalf("%s: %s", c.damage, out)
		}
		if found, err := n.Repair(); err != nil || !strings.Contains(found, c.found) {
			t.Errorf("%s: found %q, %v", c.damage, found, err)
		}
		if found, err := n.Repair(); err != nil || found != "" {
			t.Errorf("%s: not repaired: %q, %v", c.damage, found, err)
		}
		if _, err := ask(t, "", netip.AddrPortFrom(r.Addrs[0], 80).String()); err != nil {
			t.Errorf("%s: the pod is not reached: %v", c.damage, err)
		}
	}
}

// Host ports are there again after somebody flushed the ruleset, whoever looks
// first: the look for damage, the next pod, or an agent that has just begun.
func TestHostPortsAfterFlush(t *testing.T) {
	n := newNetwork(t)
	if err := n.Ensure(); err != nil {
		t.Fatal(err)
	}
	a, _ := attach(t, n, "a", podnet.HostPort{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"})
	b, _ := attach(t, n, "b", podnet.HostPort{HostPort: 8081, ContainerPort: 80, Protocol: "tcp"})
	serve(t, a.NetNS, ":80")
	for name, mend := range map[string]func() error{
		"repair": func() error { _, err := n.Repair(); return err },
		"the next pod": func() error {
			attach(t, n, "c")
			attach(t, n, "d") // the first may find the damage
			return nil
		},
		"a new agent": func() error {
			next, err := New(n.cfg)
			if err != nil {
				return err
			}
			if err := next.Ensure(); err != nil {
				return err
			}
			return next.Know([]podnet.Sandbox{a, b})
		},
	} {
		if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
			t.Fatalf("%s", out)
		}
		if name == "the next pod" {
			n.bridge = 0 // as it is once an Add has met the damage
		}
		if err := mend(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := ask(t, "", "10.244.7.1:8080"); err != nil {
			t.Errorf("%s: the host port is gone: %v", name, err)
		}
	}
	// What a pod gave up, or another took over, does not come back.
	taken, _ := attach(t, n, "e", podnet.HostPort{HostPort: 8081, ContainerPort: 81, Protocol: "tcp"})
	serve(t, taken.NetNS, ":81")
	if err := n.CloseHostPorts(a); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	if _, err := n.Repair(); err != nil {
		t.Error(err)
	}
	if _, err := askFor(t, "", "10.244.7.1:8080", 2*time.Second); err == nil {
		t.Error("a host port that was closed answers again")
	}
	if _, err := ask(t, "", "10.244.7.1:8081"); err != nil {
		t.Errorf("a host port leads to the pod that had it before: %v", err)
	}
}

func TestAddressesRunOut(t *testing.T) {
	p := pool{dir: t.TempDir(), prefix: netip.MustParsePrefix("10.0.0.0/29"), known: &index{}}
	seen := map[netip.Addr]bool{}
	for i := range 5 {
		a, err := p.reserve(fmt.Sprintf("c%d/eth0", i), "")
		if err != nil || seen[a] {
			t.Fatalf("address %d: %v, %v", i, a, err)
		}
		seen[a] = true
	}
	if _, err := p.reserve("more/eth0", ""); err == nil || !strings.Contains(err.Error(), "no free address in 10.0.0.0/29") {
		t.Errorf("got %v", err)
	}
	if err := p.release(netip.MustParseAddr("10.0.0.4")); err != nil {
		t.Fatal(err)
	}
	if a, err := p.reserve("more/eth0", ""); err != nil || a.String() != "10.0.0.4" {
		t.Errorf("got %v, %v", a, err)
	}
}

// TestPoolOfTwoProcesses: what one process remembers of the directory does no harm where
// another changes it, or where it is lost.
func TestPoolOfTwoProcesses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pool")
	process := func(prefix string) pool {
		return pool{dir: dir, prefix: netip.MustParsePrefix(prefix), known: &index{}}
	}
	take := func(p pool, owner, pod, want string) {
		t.Helper()
		if a, err := p.reserve(owner, pod); err != nil || a.String() != want {
			t.Fatalf("%s of pod %s: got %v %v, want %s", owner, pod, a, err, want)
		}
	}
	free := func(p pool, a string) {
		t.Helper()
		if err := p.release(netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
	mine, other := process("10.0.0.0/29"), process("10.0.0.0/29")
	take(mine, "s1", "a", "10.0.0.2")
	take(other, "s2", "b", "10.0.0.3")
	take(mine, "s3", "c", "10.0.0.4") // the other's is refused by the file system
	take(mine, "s3", "c", "10.0.0.4") // asked for again
	free(other, "10.0.0.4")
	take(other, "s4", "d", "10.0.0.4")
	take(mine, "s3", "c", "10.0.0.5") // what was taken from it is not believed
	take(mine, "s5", "e", "10.0.0.6")
	free(other, "10.0.0.2")
	take(mine, "s6", "f", "10.0.0.2") // all are taken, as far as is known: looks again
	free(other, "10.0.0.4")
	take(mine, "s7", "d", "10.0.0.4") // the pod had it last
	if _, err := mine.reserve("s8", "f"); !errors.Is(err, ErrNoAddress) {
		t.Errorf("a sixth address: %v", err)
	}
	six := pool{dir: dir, prefix: netip.MustParsePrefix("fd00::/120"), known: mine.known}
	take(six, "s3", "c", "fd00::2") // of the other family there is none yet
	take(six, "s3", "c", "fd00::2")
	free(mine, "fd00::2") // all are in one directory
	take(six, "s9", "c", "fd00::2")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := mine.reserveAgain("s3", netip.MustParseAddr("10.0.0.5")); err != nil {
		t.Fatal(err)
	}
	take(mine, "s3", "c", "10.0.0.5")
	take(mine, "s10", "g", "10.0.0.3") // of what was lost with the directory nothing is given
	held, err := mine.held()
	if err != nil || len(held) != 2 {
		t.Errorf("held: %v, %v", held, err)
	}
}

// BenchmarkReserve takes and frees an address where 500 others are in use.
func BenchmarkReserve(b *testing.B) {
	p := pool{dir: b.TempDir(), prefix: netip.MustParsePrefix("10.0.0.0/20"), known: &index{}}
	for i := range 500 {
		if _, err := p.reserve(fmt.Sprint("s", i), fmt.Sprint("p", i)); err != nil {
			b.Fatal(err)
		}
	}
	for n := 0; b.Loop(); n++ {
		a, err := p.reserve(fmt.Sprint("x", n), fmt.Sprint("y", n))
		if err != nil {
			b.Fatal(err)
		}
		if err := p.release(a); err != nil {
			b.Fatal(err)
		}
	}
}

func TestConcurrentReservations(t *testing.T) {
	p := pool{dir: t.TempDir(), prefix: netip.MustParsePrefix("10.0.0.0/24"), known: &index{}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[netip.Addr]int{}
	for i := range 100 {
		wg.Go(func() {
			a, err := p.reserve(fmt.Sprintf("c%d/eth0", i), "")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			seen[a]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(seen) != 100 {
		t.Errorf("%d different addresses for 100 owners", len(seen))
	}
}

func BenchmarkAddDel(b *testing.B) {
	n := newNetwork(b)
	nss := make([]string, b.N)
	for i := range nss {
		nss[i] = nstest.New(b)
	}
	b.ResetTimer()
	var add, del time.Duration
	var all []podnet.Sandbox
	for i := range b.N {
		a := podnet.Sandbox{ID: fmt.Sprint(i), IfName: "eth0", NetNS: nss[i]}
		start := time.Now()
		if _, err := n.Add(context.Background(), a); err != nil {
			b.Fatal(err)
		}
		add += time.Since(start)
		start = time.Now()
		if err := n.Del(context.Background(), a); err != nil {
			b.Fatal(err)
		}
		del += time.Since(start)
	}
	var wg sync.WaitGroup
	for i := range 40 {
		a := podnet.Sandbox{ID: fmt.Sprint("x", i), IfName: "eth0", NetNS: nstest.New(b)}
		if _, err := n.Add(context.Background(), a); err != nil {
			b.Fatal(err)
		}
		all = append(all, a)
	}
	start := time.Now()
	for _, a := range all {
		wg.Go(func() { _ = n.Del(context.Background(), a) })
	}
	wg.Wait()
	b.ReportMetric(float64(time.Since(start).Microseconds()), "µs/40del")
	b.ReportMetric(float64(add.Microseconds())/float64(b.N), "µs/add")
	b.ReportMetric(float64(del.Microseconds())/float64(b.N), "µs/del")
}

// TestPodKeepsItsAddress: a pod's next sandbox, after a reboot say, gets the
// address that its last one had, unless another pod has it by now.
func TestPodKeepsItsAddress(t *testing.T) {
	p := pool{dir: t.TempDir(), prefix: netip.MustParsePrefix("10.0.0.0/29"), known: &index{}}
	take := func(owner, pod, want string) {
		t.Helper()
		a, err := p.reserve(owner, pod)
		if err != nil || a.String() != want {
			t.Fatalf("%s of pod %s: got %v %v, want %s", owner, pod, a, err, want)
		}
	}
	take("s1", "a", "10.0.0.2")
	take("s2", "b", "10.0.0.3")
	for _, a := range []string{"10.0.0.2", "10.0.0.3"} {
		if err := p.release(netip.MustParseAddr(a)); err != nil {
			t.Fatal(err)
		}
	}
	take("s3", "b", "10.0.0.3")
	take("s4", "c", "10.0.0.4")
	take("s5", "a", "10.0.0.2")
	take("s6", "a", "10.0.0.5") // two sandboxes of one pod at once
}
