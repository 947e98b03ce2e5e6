package policy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni"
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
	if err := exec.Command("ip", "link", "set", "lo", "up").Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	leak.Check(m)
}

var (
	clusterCIDR = netip.MustParsePrefix("10.244.0.0/16")
	podCIDR     = netip.MustParsePrefix("10.244.7.0/24")
)

// node is one node's network in the test's namespace, with pods in namespaces of their
// own, and another node's pods behind a link.
type node struct {
	t     *testing.T
	net   *cni.Network
	there string // the other node's namespace
	ends  []end
	ports []uint16
	// udp are the pods' sockets, which stay: flows between them go on.
	udp map[netip.AddrPort]*net.UDPConn

	mu       sync.Mutex
	received map[uint64]bool // numbers of datagrams that arrived
	sent     uint64
	began    map[Packet]bool // flows that conntrack knows
}

type end struct {
	ns   string
	addr netip.Addr
}

func newNode(t *testing.T) *node {
	n := &node{t: t, udp: map[netip.AddrPort]*net.UDPConn{}, received: map[uint64]bool{}, began: map[Packet]bool{}}
	var err error
	n.net, err = cni.New(cni.Config{
		PodCIDRs: []netip.Prefix{podCIDR}, ClusterCIDRs: []netip.Prefix{clusterCIDR},
		StateDir: filepath.Join(t.TempDir(), "cni"),
	})
	n.must(err)
	n.must(n.net.Ensure())
	n.there = nstest.New(t)
	n.ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
	n.ip("link", "set", "up1", "netns", n.there)
	n.ip("addr", "add", "192.0.2.1/24", "dev", "up0")
	n.ip("link", "set", "up0", "up")
	n.ip("route", "add", "10.244.8.0/24", "via", "192.0.2.2")
	n.must(nstest.In(n.there, func() error {
		for _, args := range [][]string{
			{"link", "set", "lo", "up"}, {"addr", "add", "192.0.2.2/24", "dev", "up1"}, {"link", "set", "up1", "up"},
			{"route", "add", "10.244.0.0/16", "via", "192.0.2.1"},
		} {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %v: %w: %s", args, err, out)
			}
		}
		return nil
	}))
	t.Cleanup(func() {
		for _, c := range n.udp {
			c.Close()
		}
		if err := n.net.Cleanup(); err != nil {
			t.Error(err)
		}
		_ = exec.Command("ip", "link", "del", "up0").Run()
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// pod makes one of this node.
func (n *node) pod(name string) netip.Addr {
	n.t.Helper()
	ns := nstest.New(n.t)
	r, err := n.net.Add(n.t.Context(), podnet.Sandbox{ID: name, IfName: "eth0", NetNS: ns})
	n.must(err)
	n.ends = append(n.ends, end{ns, r.Addrs[0]})
	return r.Addrs[0]
}

// remote makes one of the other node.
func (n *node) remote(a netip.Addr) {
	n.t.Helper()
	n.must(nstest.In(n.there, func() error {
		return exec.Command("ip", "addr", "add", a.String()+"/32", "dev", "lo").Run()
	}))
	n.ends = append(n.ends, end{n.there, a})
}

// client is the port that each end's datagrams come from.
const client = 40000

// listen has every end answer on TCP and UDP.
func (n *node) listen(ports ...uint16) {
	n.ports = ports
	for _, e := range n.ends {
		n.must(nstest.In(e.ns, func() error {
			for _, port := range append([]uint16{client}, ports...) {
				at := netip.AddrPortFrom(e.addr, port)
				c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
				if err != nil {
					return err
				}
				n.udp[at] = c
				go n.receive(c)
				if port == client {
					continue
				}
				l, err := net.Listen("tcp4", at.String())
				if err != nil {
					return err
				}
				n.t.Cleanup(func() { l.Close() })
				go accept(l)
			}
			return nil
		}))
	}
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Close()
	}
}

func (n *node) receive(c *net.UDPConn) {
	var b [64]byte
	for {
		size, _, err := c.ReadFromUDPAddrPort(b[:])
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil && size == 8 {
			n.mu.Lock()
			n.received[binary.BigEndian.Uint64(b[:])] = true
			n.mu.Unlock()
		}
	}
}

// attempt is a packet that was sent, and whether it came there.
type attempt struct {
	Packet
	back   bool // from who answers, in a flow that had begun
	passed bool
}

func (a attempt) String() string {
	text := fmt.Sprintf("%s -> %s %d/%d", a.From, a.To, a.Port, a.Protocol)
	if a.back {
		text += " (an answer)"
	}
	return text
}

// try sends a packet of each flow that there can be.
func (n *node) try(ctx context.Context) (out []attempt) {
	numbers := map[uint64]attempt{}
	send := func(a attempt, from, to netip.AddrPort) {
		n.sent++
		numbers[n.sent] = a
		// A dropped packet is an error only where the kernel tells the sender.
		_, _ = n.udp[from].WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, n.sent), to)
	}
	var tcp sync.WaitGroup
	var mu sync.Mutex
	for _, from := range n.ends {
		for _, to := range n.ends {
			if from.ns == n.there && to.ns == n.there {
				continue
			}
			for _, port := range n.ports {
				p := Packet{from.addr, to.addr, unix.IPPROTO_UDP, port}
				one, other := netip.AddrPortFrom(from.addr, client), netip.AddrPortFrom(to.addr, port)
				if n.began[p] {
					send(attempt{p, true, false}, other, one)
				}
				send(attempt{p, false, false}, one, other)
				tcp.Go(func() {
					a := attempt{Packet{from.addr, to.addr, unix.IPPROTO_TCP, port}, false, false}
					a.passed = connects(ctx, from, other)
					mu.Lock()
					defer mu.Unlock()
					out = append(out, a)
				})
			}
		}
	}
	tcp.Wait() // longer than a datagram takes
	n.mu.Lock()
	defer n.mu.Unlock()
	for number, a := range numbers {
		a.passed = n.received[number]
		if a.passed {
			n.began[a.Packet] = true
		}
		out = append(out, a)
	}
	return out
}

// patience is how long a connection may take: the kernel asks again after a second.
const patience = 300 * time.Millisecond

func connects(ctx context.Context, from end, to netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var fd int
	err := nstest.In(from.ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from.addr.As4()}); err != nil {
		return false
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	for err == unix.EINPROGRESS || err == unix.EALREADY {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(10 * time.Millisecond):
		}
		var code int
		if code, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			err = syscall.Errno(code)
		} else if err == nil {
			if _, err = unix.Getpeername(fd); err != nil {
				err = unix.EALREADY
			}
		}
	}
	return err == nil
}
