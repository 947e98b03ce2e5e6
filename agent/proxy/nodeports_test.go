package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/podnet"
)

// TestNodePortRanges: what kube-proxy makes of its --nodeport-addresses.
func TestNodePortRanges(t *testing.T) {
	for _, c := range []struct {
		ranges     string
		everywhere bool
		in, out    string
	}{
		{"", true, "192.0.2.1 2001:db8::1 127.0.0.1", "fe80::1"},
		{"0.0.0.0/0,::/0,192.0.2.0/24", true, "198.51.100.1", "fe80::1"},
		{"192.0.2.9/24", false, "192.0.2.1 2001:db8::1", "198.51.100.1 127.0.0.1 fe80::1"},
		{"2001:db8::/32", false, "192.0.2.1 2001:db8::1", "2001:db9::1"},
		{"192.0.2.1/32,2001:db8::1/128", false, "192.0.2.1 2001:db8::1", "192.0.2.2 2001:db8::2"},
	} {
		n := nodePorts(cidr.Parse(c.ranges))
		if got := n.everywhere(); got != c.everywhere {
			t.Errorf("%q: everywhere is %v", c.ranges, got)
		}
		for text, want := range map[string]bool{c.in: true, c.out: false} {
			for _, a := range cidr.Parse(prefixes(text)...) {
				if n.has(a.Addr()) != want {
					t.Errorf("%q: that %s is in it is %v", c.ranges, a.Addr(), !want)
				}
			}
		}
	}
}

// prefixes makes ranges of one address each of a list of addresses.
func prefixes(text string) (out []string) {
	for _, a := range strings.Fields(text) {
		addr := netip.MustParseAddr(a)
		out = append(out, netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return out
}

// SVC-39, SVC-40: NodePorts answer on the addresses that the configuration names, also
// on one that comes later, and leave the others to whoever has the port there.
func TestNodePortAddresses(t *testing.T) {
	n := newNode(t)
	n.proxy.cfg.NodePorts = cidr.Parse("192.0.2.0/26,192.0.2.64/26,192.0.2.0/24,127.0.0.0/8")
	world := n.outside()
	a, client := n.pod("a"), n.pod("client")
	b := n.pod("b", podnet.HostPort{HostPort: 30080, ContainerPort: 80, Protocol: "TCP"})
	n.local(netip.MustParseAddr("198.51.100.1"))
	nodePort := func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}
	n.set(newService("web", "10.96.0.50", nodePort), a.addr)
	n.add("ns", newService("sticky", "10.96.0.51", func(s *corev1.Service) { // by a chain of its own
		nodePort(s)
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30081, 30081
	}), a.addr)
	for _, port := range []int{30080, 30081} {
		n.says(client, fmt.Sprintf("192.0.2.1:%d", port), "a")
		for _, network := range []string{"tcp", "udp"} {
			if got, err := call(world, network, fmt.Sprintf("192.0.2.1:%d", port)); err != nil || got[:2] != "a " {
				t.Errorf("%s from outside: got %q, %v", network, got, err)
			}
		}
	}
	n.says(client, "10.96.0.50:8000", "a")
	for _, x := range []struct{ ns, network, addr string }{
		{"", "tcp", "198.51.100.1:30081"}, {client.ns, "tcp", "198.51.100.1:30081"}, {client.ns, "udp", "198.51.100.1:30080"},
		{client.ns, "udp", "10.244.7.1:30080"}, {client.ns, "tcp", "10.244.7.1:30081"}, {"", "tcp", "127.0.0.1:30081"},
	} {
		if got, err := call(x.ns, x.network, x.addr); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s %s from %q: got %q, %v, want connection refused", x.network, x.addr, x.ns, got, err)
		}
	}
	if got, err := call(client.ns, "tcp", "198.51.100.1:30080"); err != nil || got[:2] != "b " {
		t.Errorf("host port of %s on an address without NodePorts: got %q, %v", b.addr, got, err)
	}
	n.local(netip.MustParseAddr("192.0.2.200"))
	n.says(client, "192.0.2.200:30080", "a")
}

// TestNodePortsOfAnotherFamily: a range of one family narrows that family alone.
func TestNodePortsOfAnotherFamily(t *testing.T) {
	n := newNode(t)
	n.proxy.cfg.NodePorts = cidr.Parse("2001:db8::/32")
	a, client := n.pod("a"), n.pod("client")
	n.set(newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}), a.addr)
	n.says(client, "10.244.7.1:30080", "a")
}

// TestHealthChecksFollowAddresses: where NodePorts answer, health checks do, on an
// address that comes too, and nowhere else.
func TestHealthChecksFollowAddresses(t *testing.T) {
	const port = 31999
	p := New(Config{Table: "healthaddr", NodePorts: cidr.Parse("203.0.113.0/24,2001:db8::/32")})
	svc := newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, port
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- p.Run(ctx, &fixedSource{service.Build(service.Input{Services: []*corev1.Service{svc}})})
	}()
	defer func() {
		cancel()
		if err := errors.Join(<-ended, p.Cleanup()); err != nil {
			t.Error(err)
		}
	}()
	address := func(does, a string) {
		t.Helper()
		if out, err := exec.Command("ip", "addr", does, a+"/32", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	answers := func(a string, want bool) {
		t.Helper()
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			resp, err := client.Get("http://" + net.JoinHostPort(a, fmt.Sprint(port)))
			if err == nil {
				resp.Body.Close()
			}
			if err == nil == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: an answer is wanted: %v, got %v", a, want, err)
			}
		}
	}
	address("add", "198.51.100.1")
	defer address("del", "198.51.100.1")
	for _, a := range []string{"203.0.113.9", "203.0.113.10", "203.0.113.9"} {
		address("add", a)
		answers(a, true)
		for _, other := range []string{"198.51.100.1", "127.0.0.1"} {
			answers(other, false)
		}
		address("del", a)
	}
}

// TestHealthChecksMove: a listener whose address counts no more is closed.
func TestHealthChecksMove(t *testing.T) {
	one, two := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.3")
	p := New(Config{})
	defer p.health.close()
	p.health.move([]netip.Addr{one})
	p.health.start(&service.Service{Key: service.Key{Name: "web"}, HealthPort: 31998})
	for i, at := range [][]netip.Addr{{one}, {one, two}, {two}, {{}}, {two}, {}} {
		p.health.move(at)
		for _, a := range []netip.Addr{one, two} {
			c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 31998).String(), answerTime)
			want := false
			for _, b := range at {
				want = want || a == b || !b.IsValid()
			}
			if (err == nil) != want {
				t.Errorf("step %d: %s: got %v", i, a, err)
			}
			if err == nil {
				c.Close()
			}
		}
	}
}
