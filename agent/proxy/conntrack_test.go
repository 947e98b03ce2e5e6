package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/nstest"
)

// sender is a client with one UDP socket: all that it sends is one flow.
type sender struct {
	name string
	conn net.Conn
}

func newSender(t *testing.T, ns, addr string) sender {
	t.Helper()
	s := sender{name: fmt.Sprintf("%s from %q", addr, ns)}
	if err := nstest.In(ns, func() (err error) { s.conn, err = net.Dial("udp4", addr); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	return s
}

// ask sends and returns the name of the pod that answers, "" for nobody.
func (s sender) ask(t *testing.T, wait time.Duration) string {
	t.Helper()
	for deadline := time.Now().Add(wait); ; {
		_ = s.conn.SetDeadline(deadline)
		buf := make([]byte, 100)
		_, err := s.conn.Write([]byte("?"))
		k := 0
		if err == nil {
			k, err = s.conn.Read(buf)
		}
		switch {
		case err == nil:
			name, _, _ := strings.Cut(string(buf[:k]), " ")
			return name
		case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EHOSTUNREACH):
			if time.Now().After(deadline) {
				return ""
			}
			time.Sleep(10 * time.Millisecond) // an answer to what was sent before
		default:
			return ""
		}
	}
}

// everyAddress is a Service that has addresses of all kinds.
func everyAddress(s *corev1.Service) {
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	s.Spec.ExternalIPs = []string{"203.0.113.5"}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.6"}}
}

// senders are clients of every kind of address, from where each is reached.
func (n *node) senders(client pod, world string) (all []sender) {
	for _, x := range []struct{ ns, addr string }{
		{client.ns, "10.96.0.50:8000"}, {"", "10.96.0.50:8000"}, {client.ns, "203.0.113.5:8000"},
		{client.ns, "192.0.2.1:30080"}, {"", "192.0.2.1:30080"}, {world, "192.0.2.1:30080"},
		{world, "203.0.113.5:8000"}, {world, "203.0.113.6:8000"},
	} {
		all = append(all, newSender(n.t, x.ns, x.addr))
	}
	return all
}

func (n *node) answers(all []sender, what, want string) {
	n.t.Helper()
	wait := answerTime
	if want == "" {
		wait = 300 * time.Millisecond
	}
	for _, s := range all {
		if got := s.ask(n.t, wait); got != want {
			n.t.Errorf("%s: %s: answered by %q, want %q", what, s.name, got, want)
		}
	}
}

// A flow of UDP, which has no end of its own, goes to an endpoint that is there: at
// every address of a Service, when its endpoint goes, when there is a first one, and
// when the Service comes after the flow.
func TestUDPFlowsOfEveryAddress(t *testing.T) {
	n := newNode(t)
	world := n.wayOut()
	a, b, client := n.pod("a"), n.pod("b"), n.pod("client")
	svc := newService("web", "10.96.0.50", everyAddress)
	n.apply()
	all := n.senders(client, world)
	n.answers(all, "before the Service", "")
	n.set(svc)
	n.answers(all, "without an endpoint", "")
	n.set(svc, a.addr)
	n.answers(all, "the first endpoint", "a")
	n.set(svc, a.addr, b.addr)
	n.answers(all, "one more", "a")
	n.set(svc, b.addr)
	n.answers(all, "the first one went", "b")
	n.set(svc)
	n.answers(all, "all went", "")
	n.set(svc, a.addr)
	n.answers(all, "one after none", "a")
	for range 2 { // an agent that starts anew finds what changed in between, and what did not
		n.st = nil
		n.set(svc, b.addr)
		n.answers(all, "after a restart", "b")
	}
	local := svc.DeepCopy()
	local.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	n.set(local, b.addr)
	n.answers(all, "policy Local", "b")
	n.set(local, a.addr)
	n.answers(all, "policy Local, another endpoint", "a")
	n.in.Services = nil
	n.apply()
	n.answers(all, "the Service went", "")
}

// TestUDPFlowsOfNewAddresses: an address that a Service gets, or loses, while its
// endpoints stay.
func TestUDPFlowsOfNewAddresses(t *testing.T) {
	n := newNode(t)
	world := n.wayOut()
	a, client := n.pod("a"), n.pod("client")
	plain := newService("web", "10.96.0.50", nil)
	n.set(plain, a.addr)
	all := n.senders(client, world)
	n.answers(all[:2], "the cluster IP", "a")
	n.answers(all[2:], "addresses that are nobody's", "")
	n.set(newService("web", "10.96.0.50", everyAddress), a.addr)
	n.answers(all, "the Service has them", "a")
	others := newService("web", "10.96.0.50", func(s *corev1.Service) {
		everyAddress(s)
		s.Spec.ExternalIPs, s.Status.LoadBalancer.Ingress[0].IP = []string{"203.0.113.7"}, "203.0.113.8"
	})
	moved := []sender{newSender(t, world, "203.0.113.7:8000"), newSender(t, world, "203.0.113.8:8000")}
	n.answers(moved, "other addresses that are nobody's", "")
	n.set(others, a.addr)
	n.answers(moved, "the Service has these instead", "a")
	n.answers(all[6:], "it has them no more", "")
	n.answers(all[3:6], "its NodePort stays", "a")
	n.set(plain, a.addr)
	n.answers(all[2:], "it lost them", "")
	n.answers(moved, "it lost these", "")
	n.answers(all[:2], "the cluster IP", "a")
}

// TestUDPFlowsOfOthersStay: a change ends no flow of another Service, of a host port or
// of a server of the node's, nor to another machine, whatever port they have.
func TestUDPFlowsOfOthersStay(t *testing.T) {
	valid := netip.MustParseAddrPort("10.244.7.2:80")
	u := oldFlows{}
	old := service.Port{Protocol: "UDP", Number: 8000, NodePort: 30080}
	now := old
	now.Cluster.Backends = []service.Backend{{AddrPort: valid}}
	ips := []netip.Addr{netip.MustParseAddr("10.96.0.50")}
	u.add(&service.Service{ClusterIPs: ips, Ports: []service.Port{old}},
		&service.Service{ClusterIPs: ips, Ports: []service.Port{now}})
	u.local = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for _, c := range []struct {
		to, backend string
		ends        bool
	}{
		{"10.96.0.50:8000", "10.244.7.2:80", false},
		{"10.96.0.50:8000", "10.244.7.3:80", true},
		{"10.96.0.50:8000", "10.96.0.50:8000", true},
		{"10.96.0.50:8001", "10.244.7.3:80", false},
		{"192.0.2.1:30080", "10.244.7.2:80", false},
		{"192.0.2.1:30080", "10.244.7.3:80", true},
		{"192.0.2.1:30080", "192.0.2.1:30080", true},     // from before the NodePort
		{"192.0.2.9:30080", "192.0.2.9:30080", false},    // another machine's
		{"10.96.0.77:30080", "10.244.7.3:80", false},     // another Service's port of that number
		{"198.51.100.1:30080", "10.244.7.3:8080", false}, // a host port where NodePorts do not answer
	} {
		to, backend := netip.MustParseAddrPort(c.to), netip.MustParseAddrPort(c.backend)
		if got := u.ends(elem{to.Addr(), unix.IPPROTO_UDP, to.Port()}, backend); got != c.ends {
			t.Errorf("that the flow to %s, at %s, ends is %v", c.to, c.backend, got)
		}
		if u.ends(elem{to.Addr(), unix.IPPROTO_SCTP, to.Port()}, backend) {
			t.Errorf("the flow of SCTP to %s ends", c.to)
		}
	}
}

// TestUDPFlowsOfEndingEndpoints: a flow stays with an endpoint that serves while it
// ends, as kube-proxy has it, and leaves one that serves no more.
func TestUDPFlowsOfEndingEndpoints(t *testing.T) {
	n := newNode(t)
	a, b, client := n.pod("a"), n.pod("b"), n.pod("client")
	svc := newService("web", "10.96.0.50", nil)
	n.set(svc, a.addr)
	old := []sender{newSender(t, client.ns, "10.96.0.50:8000")}
	n.answers(old, "before", "a")
	ending := func(serving bool) {
		slice := newSlice("web", a.addr, b.addr)
		slice.Endpoints[0].Conditions = discoveryv1.EndpointConditions{
			Ready: ptr(false), Serving: ptr(serving), Terminating: ptr(true)}
		n.in.Slices = []*discoveryv1.EndpointSlice{slice}
		n.apply()
	}
	ending(true)
	n.answers(old, "its endpoint ends", "a")
	for range 5 {
		n.answers([]sender{newSender(t, client.ns, "10.96.0.50:8000")}, "a new flow", "b")
	}
	ending(false)
	n.answers(old, "its endpoint serves no more", "b")
}

// TestUDPFlowsAreTriedAgain: flows that the kernel does not end, here to a thread
// without the right, are ended when it does.
func TestUDPFlowsAreTriedAgain(t *testing.T) {
	p := New(Config{})
	ips := []netip.Addr{netip.MustParseAddr("10.96.0.50")}
	p.flows.add(nil, &service.Service{ClusterIPs: ips, Ports: []service.Port{{Protocol: "UDP", Number: 53}}})
	rests := make(chan time.Duration, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			t.Error(err)
		}
		rests <- p.endFlows()
	}()
	if rest := <-rests; rest < retryMax || p.flows.empty() {
		t.Errorf("flows that cannot be ended are looked for again after %s: %v", rest, !p.flows.empty())
	}
	if p.endFlows(); !p.flows.empty() {
		t.Error("flows that were ended are looked for again")
	}
}
