package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// add puts a Service of a namespace beside the others.
func (n *node) add(namespace string, svc *corev1.Service, addrs ...netip.Addr) {
	n.t.Helper()
	slice := newSlice(svc.Name, addrs...)
	svc.Namespace, slice.Namespace = namespace, namespace
	n.in.Services, n.in.Slices = append(n.in.Services, svc), append(n.in.Slices, slice)
	n.apply()
}

// local gives the node an address on its loopback interface.
func (n *node) local(a netip.Addr) {
	n.t.Helper()
	lo, err := netlink.LinkByName("lo")
	n.must(err)
	addr, err := netlink.ParseAddr(a.String() + "/32")
	n.must(err)
	n.must(netlink.AddrAdd(lo, addr))
	n.t.Cleanup(func() { _ = netlink.AddrDel(lo, addr) })
}

// wayOut has the node send what it knows no other way for to the world outside.
func (n *node) wayOut() string {
	n.t.Helper()
	world := n.outside()
	n.must(exec.Command("ip", "route", "add", "default", "via", "192.0.2.2").Run()) // goes with the link
	return world
}

// says checks who answers at an address, from a pod and from the node.
func (n *node) says(from pod, addr, who string) {
	n.t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		for _, ns := range []string{from.ns, ""} {
			if got, err := call(ns, network, addr); err != nil || !strings.HasPrefix(got, who+" ") {
				n.t.Errorf("%s %s from %q: got %q, %v, want %s", network, addr, ns, got, err, who)
			}
		}
	}
}

// A Service of a user in a namespace that sorts first asks for whatever the
// cluster has.
func TestNobodyTakesWhatTheClusterOwns(t *testing.T) {
	n := newNode(t)
	thief, victim, client := n.pod("thief"), n.pod("victim"), n.pod("client")
	n.wayOut()
	n.local(dnsAddr)
	for _, at := range []string{"10.96.0.10:80", "10.244.7.1:80", "127.0.0.1:80"} { // its DNS, its API
		serveAt(t, "", at, "node")
	}
	api := newService("kubernetes", "10.96.0.1", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] })
	api.Spec.Ports[0].Port = 443
	n.add("default", api, netip.MustParseAddr("10.244.7.1"))
	n.add("team", newService("web", "10.96.0.50", nil), victim.addr)
	n.add("team", newService("balanced", "10.96.0.51", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	}), victim.addr)
	n.add("aaa", newService("thief", "10.96.0.66", func(s *corev1.Service) {
		for _, port := range []int32{80, 443} {
			for _, p := range s.Spec.Ports[:2] {
				p.Port = port
				s.Spec.Ports = append(s.Spec.Ports, p)
			}
		}
		s.Spec.ExternalIPs = []string{
			dnsAddr.String(), "10.96.0.1", "10.96.0.50", "203.0.113.9", victim.addr.String(), "10.244.7.1", "127.0.0.1",
			"169.254.1.1", "224.0.0.1",
			"203.0.113.8",
		}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: dnsAddr.String()}, {IP: "10.96.0.1"}}
	}), thief.addr)
	n.says(client, "10.96.0.10:80", "node")
	n.says(client, "10.96.0.50:8000", "victim")
	n.says(client, "203.0.113.9:8000", "victim")
	n.says(client, victim.addr.String()+":80", "victim")
	n.says(client, "10.244.7.1:80", "node") // the API server's own address and port
	n.says(client, "203.0.113.8:8000", "thief")
	if got, err := call(client.ns, "tcp", "10.96.0.1:443"); err != nil || !strings.HasPrefix(got, "node ") {
		t.Errorf("the API's Service: got %q, %v", got, err)
	}
	if got, err := call("", "tcp", "127.0.0.1:80"); err != nil || !strings.HasPrefix(got, "node ") {
		t.Errorf("the node's loopback: got %q, %v", got, err)
	}
	// The order in which they come does not matter either.
	n.in.Services[0], n.in.Services[3] = n.in.Services[3], n.in.Services[0]
	n.st = nil
	n.apply()
	n.says(client, "10.96.0.50:8000", "victim")
}

// A cluster IP in a range that this node does not know of is no external one all
// the same; and a Service with the DNS's own address, of an earlier version, has
// no traffic.
func TestClusterAddressesComeFirst(t *testing.T) {
	n := newNode(t)
	thief, victim, client := n.pod("thief"), n.pod("victim"), n.pod("client")
	n.wayOut()
	n.local(dnsAddr)
	serveAt(t, "", "10.96.0.10:80", "node")
	n.add("aaa",
		newService("thief", "10.96.0.66", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"10.97.0.50"} }),
		thief.addr)
	n.says(client, "10.97.0.50:8000", "thief")
	n.add("team", newService("web", "10.97.0.50", nil), victim.addr)
	n.says(client, "10.97.0.50:8000", "victim")
	n.add("zzz",
		newService("dns", dnsAddr.String(),
			func(s *corev1.Service) { s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 80, 80 }), thief.addr)
	n.says(client, "10.96.0.10:80", "node")
}

// Where nodes and the API listen, no external address leads elsewhere, also at
// other nodes.
func TestOwnListeners(t *testing.T) {
	n := newNode(t)
	world := n.outside()
	serve(t, world, "other-node")
	n.proxy.cfg.Own = func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:80")} }
	thief, client := n.pod("thief"), n.pod("client")
	n.add("aaa", newService("thief", "10.96.0.66", func(s *corev1.Service) {
		s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 80, 80
		s.Spec.ExternalIPs = []string{"192.0.2.2", "192.0.2.1"}
	}), thief.addr)
	n.says(client, "192.0.2.2:80", "other-node")
	n.says(client, "192.0.2.1:80", "thief") // no node has told that address
	n.proxy.cfg.Own = nil
	n.apply()
	n.says(client, "192.0.2.2:80", "thief")
}

// A host port takes neither what parts of the cluster listen on, nor a NodePort,
// which the cluster gave to a Service; a balancer's address that is a node's takes
// no NodePort either.
func TestHostPortsComeLast(t *testing.T) {
	n := newNode(t)
	world := n.outside()
	serveAt(t, "", "192.0.2.1:6443", "node")
	serveAt(t, "", "127.0.0.1:6443", "node")
	n.proxy.cfg.Own = func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")} }
	n.proxy.cfg.NodeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	var ports []podnet.HostPort
	for _, port := range []uint16{6443, 30080, 8080} {
		for _, protocol := range []string{"TCP", "UDP"} {
			ports = append(ports, podnet.HostPort{HostPort: port, ContainerPort: 80, Protocol: protocol})
		}
	}
	ports = append(ports,
		podnet.HostPort{HostIP: "192.0.2.1", HostPort: 6443, ContainerPort: 80, Protocol: "TCP"})
	thief, victim, client := n.pod("thief", ports...), n.pod("victim"), n.pod("client")
	n.add("team", newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}), victim.addr)
	n.add("aaa", newService("thief", "10.96.0.66", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports[0].Port, s.Spec.Ports[1].Port = 30080, 30080
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	}), thief.addr)
	for _, from := range []pod{client, {ns: world}} {
		n.says(from, "192.0.2.1:6443", "node")
		n.says(from, "192.0.2.1:30080", "victim")
		n.says(from, "192.0.2.1:8080", "thief")
	}
	n.says(client, "10.96.0.66:30080", "thief")
	if got, err := call("", "tcp", "127.0.0.1:6443"); err != nil || !strings.HasPrefix(got, "node ") {
		t.Errorf("on the node's loopback: got %q, %v", got, err)
	}
}

// Pods and Services do not get to the gossip of this node or of another, whose
// members know each other by their nodes' addresses.
func TestGossipIsNotForPods(t *testing.T) {
	n := newNode(t)
	world := n.outside()
	client := n.pod("client")
	serve(t, world, "other-node")
	serve(t, "", "node")
	gossip := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:80")}
	n.proxy.cfg.Gossip = func() []netip.AddrPort { return gossip }
	n.set(newService("around", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}), gossip[0].Addr())
	var calls sync.WaitGroup
	silent := func(who, ns, network, addr string) {
		calls.Go(func() {
			if got, err := callWithin(silence, ns, network, addr); !os.IsTimeout(err) {
				t.Errorf("%s at %s %s: got %q, %v, want silence", who, network, addr, got, err)
			}
		})
	}
	for _, addr := range []string{"192.0.2.1:80", "192.0.2.2:80", "10.96.0.50:8000", "10.244.7.1:30080"} {
		silent("a pod", client.ns, "tcp", addr)
		silent("a pod", client.ns, "udp", addr)
	}
	silent("by a Service", world, "tcp", "192.0.2.1:30080")
	calls.Wait()
	for ns, addr := range map[string]string{"": "192.0.2.2:80", world: "192.0.2.1:80"} {
		if got, err := call(ns, "tcp", addr); err != nil {
			t.Errorf("nodes among themselves: got %q, %v", got, err)
		}
	}
	gossip = nil
	n.apply()
	if got, err := call(client.ns, "tcp", "192.0.2.2:80"); err != nil {
		t.Errorf("a member that is gone: got %q, %v", got, err)
	}
}

// NodePorts do not answer on the DNS's address, though it is the node's.
func TestNodePortsOnAddressesOfTheNode(t *testing.T) {
	n := newNode(t)
	n.local(dnsAddr)
	a, client := n.pod("a"), n.pod("client")
	n.set(newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = 30080
	}), a.addr)
	for _, ns := range []string{client.ns, ""} {
		if _, err := call(ns, "tcp", "10.96.0.10:30080"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("from %q: got %v, want connection refused", ns, err)
		}
	}
}

// Endpoints that got past the API must not open the node's own loopback or link.
func TestEndpointsOfTheNodeItself(t *testing.T) {
	n := newNode(t)
	client := n.pod("client")
	serve(t, "", "node")
	link := netip.MustParseAddr("169.254.7.7")
	n.local(link)
	svc := newService("web", "10.96.0.50", nil)
	n.set(svc, netip.MustParseAddr("127.0.0.1"), link, netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("224.0.0.1"))
	if got := service.Build(n.in).Get(service.Key{Namespace: "ns", Name: "web"}); len(got.Endpoints) != 0 {
		t.Errorf("endpoints %v", got.Endpoints)
	}
	for _, ns := range []string{client.ns, ""} {
		if got, err := callWithin(silence, ns, "tcp", "10.96.0.50:8000"); err == nil {
			t.Errorf("from %q: %q answers", ns, got)
		}
	}
}

// Hosts differ in whether bridged packets meet the rules for routed ones; a
// Service works between pods of one node either way, and the ports are isolated.
func TestWithAndWithoutBridgeNetfilter(t *testing.T) {
	const key = "/proc/sys/net/bridge/bridge-nf-call-iptables"
	for _, on := range []string{"0", "1"} {
		t.Run(on, func(t *testing.T) {
			if out, err := exec.Command("sh", "-c", "echo "+on+" > "+key).CombinedOutput(); err != nil {
				t.Fatalf("%s", out)
			}
			n := newNode(t)
			a, b := n.pod("a"), n.pod("b")
			n.set(newService("web", "10.96.0.50", nil), a.addr)
			for from, want := range map[pod]string{a: "a 10.244.7.1", b: "a " + b.addr.String()} {
				for _, network := range []string{"tcp", "udp"} {
					if got, err := call(from.ns, network, "10.96.0.50:8000"); err != nil || got != want {
						t.Errorf("%s: got %q, %v, want %q", network, got, err, want)
					}
				}
			}
			// Around the node: a neighbour entry makes the pod send to the port.
			around := fmt.Sprintf("ip route add %s dev eth0 && ip neigh replace %s lladdr 0a:58:%s dev eth0", a.addr,
				a.addr, hex(a.addr))
			n.must(nstest.In(b.ns, func() error { return exec.Command("sh", "-c", around).Run() }))
			if got, err := callWithin(silence, b.ns, "tcp", a.addr.String()+":80"); err == nil {
				t.Errorf("around the node: got %q", got)
			}
		})
	}
}

func hex(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}
