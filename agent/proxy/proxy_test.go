package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/nft"
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
	serviceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	dnsAddr     = netip.MustParseAddr("10.96.0.10")
)

// node is one node's network in the test's namespace, with pods in namespaces
// of their own, and a client outside at 192.0.2.2.
type node struct {
	t     *testing.T
	net   *cni.Network
	proxy *Proxy
	k     *nft.Conn
	st    *state
	in    service.Input
	world string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, in: service.Input{View: service.View{Node: "here", Zone: "z1", Own: own()}}}
	var err error
	n.net, err = cni.New(cni.Config{
		PodCIDRs: []netip.Prefix{podCIDR}, ClusterCIDRs: []netip.Prefix{clusterCIDR},
		ServiceCIDRs: []netip.Prefix{serviceCIDR}, StateDir: filepath.Join(t.TempDir(), "cni"),
	})
	n.must(err)
	n.must(n.net.Ensure())
	n.proxy = New(
		Config{ServiceCIDRs: []netip.Prefix{serviceCIDR}, ClusterCIDRs: []netip.Prefix{clusterCIDR},
			PodCIDRs: []netip.Prefix{podCIDR}, DNS: []netip.Addr{dnsAddr}})
	n.k, err = nft.Open()
	n.must(err)
	t.Cleanup(func() {
		n.k.Close()
		n.proxy.health.close()
		if err := errors.Join(n.proxy.Cleanup(), n.net.Cleanup()); err != nil {
			t.Error(err)
		}
		if n.world != "" {
			_ = exec.Command("ip", "link", "del", "up0").Run()
		}
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// apply builds and sets up n.in.
func (n *node) apply() {
	n.t.Helper()
	var err error
	n.st, err = n.proxy.apply(n.k, n.st, service.Build(n.in))
	n.must(err)
	n.proxy.endFlows()
}

// own is what the cluster has for itself.
func own() service.Own {
	return service.Own{Ranges: []netip.Prefix{serviceCIDR, clusterCIDR}, DNS: []netip.Addr{dnsAddr}}
}

type pod struct {
	ns   string
	addr netip.Addr
}

// pod starts a pod that answers on TCP and UDP port 80 with its name and the
// client's address.
func (n *node) pod(name string, ports ...podnet.HostPort) pod {
	n.t.Helper()
	ns := nstest.New(n.t)
	r, err := n.net.Add(context.Background(), podnet.Sandbox{ID: name, IfName: "eth0", NetNS: ns, HostPorts: ports})
	n.must(err)
	serve(n.t, ns, name)
	return pod{ns, r.Addrs[0]}
}

func serve(t *testing.T, ns, name string) {
	t.Helper()
	serveAt(t, ns, ":80", name)
}

func serveAt(t *testing.T, ns, addr, name string) {
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	err := nstest.In(ns, func() (err error) {
		if l, err = net.Listen("tcp4", addr); err == nil {
			u, err = net.ListenPacket("udp4", addr)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	host := func(a net.Addr) string { h, _, _ := net.SplitHostPort(a.String()); return h }
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, name, " ", host(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		b := make([]byte, 10)
		for {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			u.WriteTo([]byte(name+" "+host(from)), from)
		}
	}()
}

// outside makes the client beyond the node and returns its namespace.
func (n *node) outside() string {
	n.t.Helper()
	if n.world != "" {
		return n.world
	}
	n.world = nstest.New(n.t)
	ns, err := netns.GetFromPath(n.world)
	n.must(err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(ns))
	n.must(netlink.LinkAdd(veth))
	n.must(exec.Command("sh", "-c", "ip addr add 192.0.2.1/24 dev up0 && ip link set up0 up").Run())
	n.must(nstest.In(n.world, func() error {
		return exec.Command("sh", "-c",
			"ip link set lo up; ip addr add 192.0.2.2/24 dev eth0 && ip link set eth0 up && ip route add 10.0.0.0/8 via 192.0.2.1; ip route add 203.0.113.0/24 via 192.0.2.1").
			Run()
	}))
	return n.world
}

// An answer may take long on a machine that is busy; silence is waited for.
const (
	answerTime = 20 * time.Second
	silence    = 2 * time.Second
)

// call returns what the server says, "pod client".
func call(ns, network, addr string) (string, error) { return callWithin(answerTime, ns, network, addr) }

func callWithin(wait time.Duration, ns, network, addr string) (string, error) {
	var got string
	err := nstest.In(ns, func() error {
		c, err := net.DialTimeout(network+"4", addr, wait)
		if err != nil {
			return err
		}
		defer c.Close()
		b := make([]byte, 100)
		for end := time.Now().Add(wait); ; {
			again := end
			_ = c.SetDeadline(end)
			if network == "udp" {
				if _, err := c.Write([]byte("?")); err != nil {
					return err
				}
				if next := time.Now().Add(askAgain); next.Before(end) {
					again = next
				}
			}
			_ = c.SetReadDeadline(again)
			k, err := c.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) && again.Before(end) {
				continue
			}
			got = string(b[:k])
			return err
		}
	})
	return got, err
}

// askAgain is when a datagram is sent again that nothing came back for: the kernel limits
// how often it says that one is refused (icmp_ratelimit in icmp(7)).
const askAgain = 2 * time.Second

func newService(name, ip string, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{
				{Name: "t", Protocol: corev1.ProtocolTCP, Port: 8000, TargetPort: intstr.FromInt32(80)},
				{Name: "u", Protocol: corev1.ProtocolUDP, Port: 8000, TargetPort: intstr.FromInt32(80)},
			},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func ptr[T any](v T) *T { return &v }

func newSlice(name string, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr("t"), Protocol: ptr(corev1.ProtocolTCP), Port: ptr[int32](80)},
			{Name: ptr("u"), Protocol: ptr(corev1.ProtocolUDP), Port: ptr[int32](80)},
		},
	}
	for _, a := range addrs {
		ep := discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: ptr("elsewhere"),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}}
		if podCIDR.Contains(a) {
			ep.NodeName = ptr("here")
		}
		s.Endpoints = append(s.Endpoints, ep)
	}
	return s
}

func (n *node) set(svc *corev1.Service, addrs ...netip.Addr) {
	n.t.Helper()
	n.in.Services, n.in.Slices = []*corev1.Service{svc}, []*discoveryv1.EndpointSlice{newSlice(svc.Name, addrs...)}
	n.apply()
}

func TestClusterIP(t *testing.T) { // SVC-2, VIP-6, VIP-9
	n := newNode(t)
	a, b, c := n.pod("a"), n.pod("b"), n.pod("c")
	n.set(newService("web", "10.96.0.50", nil), a.addr, b.addr)
	for _, network := range []string{"tcp", "udp"} {
		for from, ns := range map[string]string{"pod": c.ns, "node": ""} {
			seen := map[string]int{}
			for range 40 {
				got, err := call(ns, network, "10.96.0.50:8000")
				if err != nil {
					t.Fatalf("%s from %s: %v", network, from, err)
				}
				name, client, _ := strings.Cut(got, " ")
				if from == "pod" && client != c.addr.String() {
					t.Fatalf("backend saw %s, want %s", client, c.addr)
				}
				seen[name]++
			}
			if seen["a"] == 0 || seen["b"] == 0 {
				t.Errorf("%s from %s: not spread: %v", network, from, seen)
			}
		}
	}
	// Changing the backends is one small transaction; a second one changes all.
	n.set(newService("web", "10.96.0.50", nil), b.addr)
	if got, err := call(c.ns, "tcp", "10.96.0.50:8000"); err != nil || !strings.HasPrefix(got, "b ") {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestManyBackends(t *testing.T) { // more than have a class for their number
	n := newNode(t)
	c := n.pod("client")
	var addrs []netip.Addr
	for i := range int(classExact) + 1 {
		addrs = append(addrs, n.pod(fmt.Sprintf("b%d", i)).addr)
	}
	n.set(newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	}), addrs...)
	for _, to := range []string{"10.96.0.50:8000", "10.244.7.1:30080"} {
		seen := map[string]bool{}
		for range 200 {
			got, err := call(c.ns, "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(got, " ")
			seen[name] = true
		}
		if len(seen) != len(addrs) {
			t.Errorf("%s: only %v answered", to, seen)
		}
	}
}

func TestHairpin(t *testing.T) {
	n := newNode(t)
	a := n.pod("a")
	n.set(newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}), a.addr)
	for _, to := range []string{"10.96.0.50:8000", "10.244.7.1:30080"} {
		for _, network := range []string{"tcp", "udp"} {
			if got, err := call(a.ns, network, to); err != nil || got != "a 10.244.7.1" {
				t.Errorf("%s %s: got %q, %v", network, to, got, err)
			}
		}
	}
}

func TestNodePortAndExternalAddresses(t *testing.T) { // SVC-36, SVC-42, SVC-65, VIP-10, VIP-21
	n := newNode(t)
	world := n.outside()
	a := n.pod("a")
	svc := newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
		s.Spec.ExternalIPs = []string{"203.0.113.5"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.6"}}
	})
	addrs := []string{"192.0.2.1:30080", "203.0.113.5:8000", "203.0.113.6:8000"}
	check := func(what, want string) {
		t.Helper()
		for _, addr := range addrs {
			for _, network := range []string{"tcp", "udp"} {
				if got, err := call(world, network, addr); err != nil || got != want {
					t.Errorf("%s: %s %s: got %q, %v, want %q", what, network, addr, got, err, want)
				}
			}
		}
	}
	n.set(svc, a.addr)
	check("policy Cluster", "a 10.244.7.1")
	if got, err := call("", "tcp", "192.0.2.1:30080"); err != nil || !strings.HasPrefix(got, "a ") {
		t.Errorf("from the node: got %q, %v", got, err)
	}

	local := svc.DeepCopy()
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	n.set(local, a.addr)
	check("policy Local", "a 192.0.2.2")

	n.set(local, netip.MustParseAddr("10.244.9.9"))
	if _, err := callWithin(silence, world, "tcp", addrs[0]); !os.IsTimeout(err) {
		t.Errorf("no local endpoint: got %v, want silence", err)
	}

	ranges := svc.DeepCopy()
	ranges.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	n.set(ranges, a.addr)
	if _, err := callWithin(silence, world, "tcp", "203.0.113.6:8000"); !os.IsTimeout(err) {
		t.Errorf("source range: got %v, want silence", err)
	}
	if _, err := call(world, "tcp", "203.0.113.5:8000"); err != nil {
		t.Errorf("external address is not ranged: %v", err)
	}
	if got, err := call(world, "tcp", "10.96.0.50:8000"); err != nil || got != "a 10.244.7.1" {
		t.Errorf("cluster address from outside: got %q, %v", got, err)
	}

	// Where the node holds the balancer's address, what it sends there comes from it.
	n.must(exec.Command("ip", "address", "add", "203.0.113.6/32", "dev", "lo").Run())
	t.Cleanup(func() { _ = exec.Command("ip", "address", "del", "203.0.113.6/32", "dev", "lo").Run() })
	n.proxy.render.nodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for _, x := range []struct {
		sources string
		allowed bool
	}{{"192.0.2.0/24", true}, {"198.51.100.0/24", false}} {
		ranges = ranges.DeepCopy()
		ranges.Spec.LoadBalancerSourceRanges = []string{x.sources}
		n.set(ranges, a.addr)
		if _, err := callWithin(silence, "", "tcp", "203.0.113.6:8000"); (err == nil) != x.allowed {
			t.Errorf("from the node that holds the address, with the range %s: %v", x.sources, err)
		}
	}
}

func TestAffinity(t *testing.T) { // VIP-13
	n := newNode(t)
	a, b, c := n.pod("a"), n.pod("b"), n.pod("c")
	svc := newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	n.set(svc, a.addr, b.addr)
	first := map[string]string{}
	for _, network := range []string{"tcp", "udp"} {
		for range 20 {
			got, err := call(c.ns, network, "10.96.0.50:8000")
			if err != nil {
				t.Fatal(err)
			}
			if first[network] == "" {
				first[network] = got
			}
			if got != first[network] {
				t.Fatalf("%s: moved from %q to %q", network, first[network], got)
			}
		}
	}
	// It survives a restart of the agent, and ends with the backend.
	n.st = nil
	n.apply()
	if got, err := call(c.ns, "tcp", "10.96.0.50:8000"); err != nil || got != first["tcp"] {
		t.Errorf("after a restart: got %q, %v, want %q", got, err, first["tcp"])
	}
	rest, want := b, "b"
	if strings.HasPrefix(first["tcp"], "b") {
		rest, want = a, "a"
	}
	n.set(svc, rest.addr)
	for _, network := range []string{"tcp", "udp"} {
		if got, err := call(c.ns, network, "10.96.0.50:8000"); err != nil || !strings.HasPrefix(got, want+" ") {
			t.Errorf("%s after its backend left: got %q, %v", network, got, err)
		}
	}
}

func TestWithoutBackendsIsRefused(t *testing.T) {
	n := newNode(t)
	world := n.outside()
	a, c := n.pod("a"), n.pod("c")
	svc := newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
		s.Spec.ExternalIPs = []string{"203.0.113.5"}
	})
	n.set(svc)
	for _, x := range []struct{ ns, addr string }{
		{c.ns, "10.96.0.50:8000"}, {"", "10.96.0.50:8000"}, {c.ns, "10.96.0.50:9999"}, {c.ns, "10.96.77.77:80"},
		{world, "192.0.2.1:30080"}, {world, "203.0.113.5:8000"}, {"", "192.0.2.1:30080"},
	} {
		for _, network := range []string{"tcp", "udp"} {
			_, err := call(x.ns, network, x.addr)
			if x.ns == "" && network == "udp" && errors.Is(err, unix.EPERM) {
				continue // how Linux tells a refused datagram to its own sender
			}
			if !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s %s: got %v, want connection refused", network, x.addr, err)
			}
		}
	}
	n.set(svc, a.addr)
	for _, network := range []string{"tcp", "udp"} {
		if _, err := call(c.ns, network, "10.96.0.50:8000"); err != nil {
			t.Errorf("%s with a backend: %v", network, err)
		}
	}
}

func TestUDPFlowMovesWithItsBackend(t *testing.T) {
	n := newNode(t)
	a, b, c := n.pod("a"), n.pod("b"), n.pod("c")
	svc := newService("web", "10.96.0.50", nil)
	n.set(svc, a.addr)
	var conn net.Conn
	n.must(nstest.In(c.ns, func() (err error) { conn, err = net.Dial("udp4", "10.96.0.50:8000"); return err }))
	defer conn.Close()
	say := func() string {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := conn.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		k, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:k])
	}
	if got := say(); !strings.HasPrefix(got, "a ") {
		t.Fatalf("got %q", got)
	}
	n.set(svc, b.addr)
	if got := say(); !strings.HasPrefix(got, "b ") {
		t.Errorf("same socket after the backend moved: got %q", got)
	}
}

// TestAffinityOverRestart: who was remembered before an agent began anew is remembered
// after it, on every address of the Service, also where backends came in between.
func TestAffinityOverRestart(t *testing.T) { // VIP-13
	n := newNode(t)
	world := n.outside()
	client := n.pod("client")
	var addrs []netip.Addr
	for _, name := range []string{"a", "b", "c", "d"} {
		addrs = append(addrs, n.pod(name).addr)
	}
	svc := newService("web", "10.96.0.50", func(s *corev1.Service) {
		everyAddress(s)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	})
	n.set(svc, addrs[:3]...)
	calls := []struct{ ns, network, addr string }{
		{client.ns, "tcp", "10.96.0.50:8000"}, {client.ns, "udp", "10.96.0.50:8000"}, {world, "tcp", "192.0.2.1:30080"},
		{world, "udp", "192.0.2.1:30080"}, {world, "tcp", "203.0.113.5:8000"}, {world, "udp", "203.0.113.6:8000"},
	}
	before := make([]string, len(calls))
	check := func(what string) {
		t.Helper()
		for i, c := range calls {
			for range 5 {
				got, err := call(c.ns, c.network, c.addr)
				if err != nil {
					t.Fatalf("%s: %s %s: %v", what, c.network, c.addr, err)
				}
				if before[i] == "" {
					before[i] = got
				}
				if got != before[i] {
					t.Errorf("%s: %s %s from %q: got %q, want %q", what, c.network, c.addr, c.ns, got, before[i])
				}
			}
		}
	}
	check("at first")
	for range 3 { // a process that knows nothing of the one before
		n.k.Close()
		var err error
		n.k, err = nft.Open()
		n.must(err)
		n.proxy, n.st = New(n.proxy.cfg), nil
		n.apply()
		check("after a restart")
	}
	n.proxy, n.st = New(n.proxy.cfg), nil
	n.set(svc, addrs...)
	check("after a restart with one more backend")
}
