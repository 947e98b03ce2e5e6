package policy

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/sctptest"
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
	if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leak.Check(m)
}

// node forwards packets in the test's namespace, as a node does: between pods in
// namespaces of their own, and those of another node in one namespace.
type node struct {
	t     *testing.T
	conn  *nft.Conn
	there string // the other node's namespace
	ends  []end
	ports []uint16
	// udp are the pods' sockets, which stay: flows between them go on.
	udp   map[netip.AddrPort]*net.UDPConn
	sctp  map[netip.Addr]net.PacketConn // raw; the kernel need have no SCTP
	began map[Packet]bool               // flows that conntrack knows
	// sctpPort is that of the last association, each has its own.
	sctpPort uint16
}

type end struct {
	ns   string
	addr netip.Addr
}

// both are a pod's addresses: 10.244.x.y has the other fd00:10:244:x::y.
func both(v4 netip.Addr) []netip.Addr {
	b := v4.As4()
	return []netip.Addr{v4, netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::%d", b[2], b[3]))}
}

// flowKey is what tells a packet: addresses, protocol and ports.
func flowKey(f nft.Family) nft.Key {
	return nft.Key{f.Saddr(), f.Daddr(), nft.L4Proto(), nft.Sport(), nft.Dport()}
}

// probe notes each packet before policies look at it, and again after: the kernel's
// verdict is read there, and needs no wait for what does not come. It has connections
// tracked also while no pod is isolated, as a node's other tables do.
const probe = `
table %[1]s probe {
	set seen { type %[2]s . %[2]s . inet_proto . inet_service . inet_service; flags dynamic; size 65535; }
	set passed { type %[2]s . %[2]s . inet_proto . inet_service . inet_service; flags dynamic; size 65535; }
	chain before {
		type filter hook forward priority -10;
		ct state invalid counter
		meta l4proto { tcp, udp, sctp } add @seen { %[1]s saddr . %[1]s daddr . meta l4proto . th sport . th dport }
	}
	chain after {
		type filter hook forward priority 10;
		meta l4proto { tcp, udp, sctp } add @passed { %[1]s saddr . %[1]s daddr . meta l4proto . th sport . th dport }
	}
}
`

func newNode(t *testing.T) *node {
	n := &node{t: t, udp: map[netip.AddrPort]*net.UDPConn{}, began: map[Packet]bool{},
		sctp: map[netip.Addr]net.PacketConn{}, sctpPort: 20000}
	var err error
	n.conn, err = nft.Open()
	n.must(err)
	t.Cleanup(func() {
		for _, c := range n.udp {
			c.Close()
		}
		for _, c := range n.sctp {
			c.Close()
		}
		for _, f := range families {
			_ = n.conn.Delete(nft.Table{Family: f, Name: "probe"})
		}
		n.conn.Close()
	})
	for path, value := range map[string]string{
		"ipv4/ip_forward":          "1",
		"ipv6/conf/all/forwarding": "1",
		// A flow is known however slow the test is.
		"netfilter/nf_conntrack_udp_timeout":        "36000",
		"netfilter/nf_conntrack_udp_timeout_stream": "36000",
	} {
		n.must(os.WriteFile("/proc/sys/net/"+path, []byte(value), 0))
	}
	n.nft(fmt.Sprintf(probe, "ip", "ipv4_addr") + fmt.Sprintf(probe, "ip6", "ipv6_addr"))
	n.there = n.connect("uplink", netip.MustParseAddr("10.244.8.254"))
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// nft has nft(8) do something in one transaction.
func (n *node) nft(commands string) {
	n.t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("nft: %v: %s", err, out)
	}
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// connect makes a namespace that has an address in each family, and sends all to the
// node.
func (n *node) connect(name string, v4 netip.Addr) (ns string) {
	n.t.Helper()
	ns = nstest.New(n.t)
	n.must(ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", ns))
	n.t.Cleanup(func() { _ = ip("link", "del", name) })
	n.must(ip("addr", "add", "fe80::1/64", "dev", name, "nodad"))
	n.must(ip("link", "set", name, "up"))
	n.must(nstest.In(ns, func() error {
		for _, c := range []string{
			"link set lo up", "addr add fe80::2/64 dev eth0 nodad", "link set eth0 up",
			"-4 route add default via inet6 fe80::1 dev eth0", "-6 route add default via fe80::1 dev eth0",
		} {
			if err := ip(strings.Fields(c)...); err != nil {
				return err
			}
		}
		return nil
	}))
	n.addresses(ns, name, v4)
	return ns
}

// addresses gives a namespace behind an interface both addresses of a pod.
func (n *node) addresses(ns, name string, v4 netip.Addr) {
	n.t.Helper()
	for _, a := range both(v4) {
		n.must(nstest.In(ns, func() error {
			args := []string{"addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "eth0"}
			if a.Is6() {
				args = append(args, "nodad")
			}
			return ip(args...)
		}))
		n.must(ip("route", "add", a.String(), "via", "inet6", "fe80::2", "dev", name))
		n.ends = append(n.ends, end{ns, a})
	}
}

// pod makes one of this node, and returns its addresses.
func (n *node) pod(name string, v4 netip.Addr) []netip.Addr {
	n.t.Helper()
	n.connect(name, v4)
	return both(v4)
}

// remote makes one of the other node.
func (n *node) remote(v4 netip.Addr) { n.addresses(n.there, "uplink", v4) }

// client is the port that each end's datagrams come from.
const client = 40000

// open gives every end sockets for datagrams from and to the ports, and one for SCTP.
func (n *node) open(ports ...uint16) {
	n.ports = ports
	for _, e := range n.ends {
		n.must(nstest.In(e.ns, func() error {
			for _, port := range append([]uint16{client}, ports...) {
				at := netip.AddrPortFrom(e.addr, port)
				c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
				if err != nil {
					return err
				}
				n.udp[at] = c
			}
			raw := "ip4:132"
			if e.addr.Is6() {
				raw = "ip6:132"
			}
			c, err := net.ListenPacket(raw, e.addr.String())
			if err != nil {
				return err
			}
			n.sctp[e.addr] = c
			return nil
		}))
	}
}

// attempt is a packet that was sent, and whether it came through.
type attempt struct {
	Packet
	back   bool // from who answers, in a flow that had begun
	key    string
	passed bool
}

func (a attempt) String() string {
	text := fmt.Sprintf("%s -> %s %d/%d", a.From, a.To, a.Port, a.Protocol)
	if a.back {
		text += " (an answer)"
	}
	return text
}

// try sends a packet of each flow that there can be; want is the model.
func (n *node) try(want func(Packet) bool) (out []attempt) {
	n.t.Helper()
	n.nft("flush set ip probe seen\nflush set ip probe passed\nflush set ip6 probe seen\nflush set ip6 probe passed\n")
	for _, from := range n.ends {
		var flows []Packet
		for _, to := range n.ends {
			if from.ns == to.ns || from.addr.Is4() != to.addr.Is4() {
				continue // not forwarded
			}
			for _, port := range n.ports {
				flows = append(flows, Packet{from.addr, to.addr, unix.IPPROTO_UDP, port})
			}
		}
		for _, p := range flows {
			one, other := netip.AddrPortFrom(p.From, client), netip.AddrPortFrom(p.To, p.Port)
			if n.began[p] {
				out = append(out, n.datagram(p, other, one, true))
			}
			out = append(out, n.datagram(p, one, other, false))
		}
		for _, p := range flows {
			p.Protocol = unix.IPPROTO_SCTP
			out = append(out, n.association(p))
		}
		for i, fd := range n.sockets(from, len(flows)) {
			flows[i].Protocol = unix.IPPROTO_TCP
			out = append(out, n.connection(fd, flows[i]))
		}
	}
	seen := n.read("seen")
	for deadline := time.Now().Add(time.Minute); ; seen = n.read("seen") {
		missing := 0
		var one attempt
		for _, a := range out {
			if !seen[a.key] {
				missing, one = missing+1, a
			}
		}
		if missing == 0 {
			break
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%d packets did not reach the node, such as %s", missing, one)
		}
		time.Sleep(time.Millisecond) // nothing tells of a packet
	}
	// What was seen is on its way through the hooks, as a reader of RCU: this waits for
	// the end of all that.
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, 1, 0, 0); errno != 0 {
		n.t.Fatalf("membarrier: %v", errno)
	}
	// A dump misses elements while the kernel's hash table grows, and never invents one:
	// what is to have passed is looked for again.
	passed := n.read("passed")
	missed := func(a attempt) bool { return want(a.Packet) && !passed[a.key] }
	for deadline := time.Now().Add(time.Minute); slices.ContainsFunc(out, missed) && time.Now().Before(deadline); {
		maps.Copy(passed, n.read("passed"))
	}
	for i := range out {
		a := &out[i]
		if a.passed = passed[a.key]; a.passed && a.Protocol == unix.IPPROTO_UDP {
			n.began[a.Packet] = true
		}
	}
	return out
}

func (n *node) read(set string) map[string]bool {
	n.t.Helper()
	out := map[string]bool{}
	for _, f := range families {
		elems, err := n.conn.Elements(nft.Table{Family: f, Name: "probe"}, &nft.Set{Name: set, Key: flowKey(f).Type()})
		n.must(err)
		for k := range elems {
			out[k] = true
		}
	}
	return out
}

func keyOf(proto uint8, from, to netip.AddrPort) string {
	return string(nft.Data{}.Addr(from.Addr()).Addr(to.Addr()).Proto(proto).Port(from.Port()).Port(to.Port()))
}

func (n *node) datagram(p Packet, from, to netip.AddrPort, back bool) attempt {
	n.t.Helper()
	_, err := n.udp[from].WriteToUDPAddrPort([]byte("x"), to)
	n.must(err)
	return attempt{Packet: p, back: back, key: keyOf(p.Protocol, from, to)}
}

// association sends what begins one of SCTP.
func (n *node) association(p Packet) attempt {
	n.t.Helper()
	n.sctpPort++
	begin := sctptest.Message{From: n.sctpPort, To: p.Port, Chunk: sctptest.ChunkInit, Value: sctptest.Beginning(1)}
	_, err := n.sctp[p.From].WriteTo(begin.Bytes(), &net.IPAddr{IP: p.To.AsSlice()})
	n.must(err)
	from, to := netip.AddrPortFrom(p.From, n.sctpPort), netip.AddrPortFrom(p.To, p.Port)
	return attempt{Packet: p, key: keyOf(p.Protocol, from, to)}
}

// sockets are of an end, for connections; one visit of its namespace makes all.
func (n *node) sockets(from end, count int) []int {
	n.t.Helper()
	domain := unix.AF_INET
	if from.addr.Is6() {
		domain = unix.AF_INET6
	}
	out := make([]int, count)
	n.must(nstest.In(from.ns, func() (err error) {
		for i := range out {
			if out[i], err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
		}
		return nil
	}))
	return out
}

// connection sends what begins a TCP connection.
func (n *node) connection(fd int, p Packet) attempt {
	n.t.Helper()
	defer unix.Close(fd)
	to := netip.AddrPortFrom(p.To, p.Port)
	n.must(unix.Bind(fd, sockaddr(netip.AddrPortFrom(p.From, 0))))
	if err := unix.Connect(fd, sockaddr(to)); err != nil && err != unix.EINPROGRESS && err != unix.ECONNREFUSED {
		n.t.Fatal(err)
	}
	at, err := unix.Getsockname(fd)
	n.must(err)
	own := uint16(0)
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		own = uint16(at.Port)
	case *unix.SockaddrInet6:
		own = uint16(at.Port)
	}
	return attempt{Packet: p, key: keyOf(p.Protocol, netip.AddrPortFrom(p.From, own), to)}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}
