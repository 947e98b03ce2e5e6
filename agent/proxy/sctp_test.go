package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
	"github.com/shoal-project/shoal/cni/sctptest"
)

const (
	sctpResend   = time.Second
	sctpServerAt = 80
)

// sctpSocket is a raw socket in a namespace. Where the kernel has SCTP itself it would
// answer too.
func sctpSocket(t *testing.T, ns string) net.PacketConn {
	t.Helper()
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err == nil {
		_ = unix.Close(fd)
		t.Skip("the kernel has SCTP and would answer beside the test")
	}
	var c net.PacketConn
	err := nstest.In(ns, func() (err error) { c, err = net.ListenPacket("ip4:132", "0.0.0.0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// serveSCTP lets clients come, and tells them its name and their address in the cookie.
func serveSCTP(t *testing.T, ns, name string) {
	t.Helper()
	c := sctpSocket(t, ns)
	go func() {
		for buf := make([]byte, 1500); ; {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			m, err := sctptest.Parse(buf[:n])
			if err != nil {
				t.Errorf("%s got a packet of %s: %v", name, from, err)
				continue
			}
			if m.To != sctpServerAt {
				continue
			}
			reply := sctptest.Message{From: m.To, To: m.From}
			switch m.Chunk {
			case sctptest.ChunkInit:
				reply.Tag, reply.Chunk = binary.BigEndian.Uint32(m.Value), sctptest.ChunkInitAck
				cookie := fmt.Appendf(nil, "%08x %s %s", reply.Tag, name, from)
				reply.Value = append(sctptest.Beginning(7), 0, sctptest.ParameterCookie)
				reply.Value = binary.BigEndian.AppendUint16(reply.Value, uint16(4+len(cookie)))
				reply.Value = append(reply.Value, cookie...)
			case sctptest.ChunkCookieEcho:
				var tag uint32
				if _, err := fmt.Sscanf(string(m.Value), "%08x", &tag); err != nil || m.Tag != 7 {
					t.Errorf("%s: cookie %q, tag %d", name, m.Value, m.Tag)
				}
				reply.Tag, reply.Chunk = tag, sctptest.ChunkCookieAck
			default:
				continue
			}
			_, _ = c.WriteTo(reply.Bytes(), from)
		}
	}()
}

// sctpPort is the next port of a client; each call is an association of its own.
var sctpPort atomic.Uint32

// callSCTP makes an association from a port (0: one of its own) and returns what the
// server says, "pod client".
func callSCTP(t *testing.T, wait time.Duration, ns, addr string, port uint16) (string, error) {
	t.Helper()
	to := netip.MustParseAddrPort(addr)
	if port == 0 {
		port = uint16(20000 + sctpPort.Add(1))
	}
	c := sctpSocket(t, ns)
	defer c.Close()
	const tag = 99
	ask := sctptest.Message{From: port, To: to.Port(), Chunk: sctptest.ChunkInit, Value: sctptest.Beginning(tag)}
	var said string
	buf := make([]byte, 1500)
	for end := time.Now().Add(wait); time.Now().Before(end); {
		if _, err := c.WriteTo(ask.Bytes(), &net.IPAddr{IP: to.Addr().AsSlice()}); err != nil {
			return "", err
		}
		for again := time.Now().Add(min(wait, sctpResend)); ; {
			_ = c.SetReadDeadline(again)
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				break
			}
			m, err := sctptest.Parse(buf[:n])
			if err != nil {
				return "", fmt.Errorf("a packet of %s: %w", from, err)
			}
			if m.To != port || m.From != to.Port() || from.String() != to.Addr().String() || m.Tag != tag {
				continue
			}
			switch m.Chunk {
			case sctptest.ChunkInitAck:
				cookie := m.Value[sctptest.InitSize:]
				said = string(cookie[len(fmt.Sprintf("%08x ", tag)):])
				ask = sctptest.Message{From: port, To: to.Port(), Tag: 7, Chunk: sctptest.ChunkCookieEcho, Value: cookie}
				again = time.Now()
			case sctptest.ChunkCookieAck:
				return said, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", addr, errSilent)
}

var errSilent = errors.New("nobody answers")

// sctpPod is a pod that serves SCTP alone.
func (n *node) sctpPod(name string, ports ...podnet.HostPort) pod {
	n.t.Helper()
	p := n.pod(name, ports...)
	serveSCTP(n.t, p.ns, name)
	return p
}

func (n *node) setSCTP(svc *corev1.Service, addrs ...netip.Addr) {
	n.t.Helper()
	slice := newSlice(svc.Name, addrs...)
	slice.Ports = []discoveryv1.EndpointPort{
		{Name: ptr("s"), Protocol: ptr(corev1.ProtocolSCTP), Port: ptr[int32](sctpServerAt)}}
	n.in.Services, n.in.Slices = []*corev1.Service{svc}, []*discoveryv1.EndpointSlice{slice}
	n.apply()
}

func sctpService(change func(*corev1.Service)) *corev1.Service {
	return newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.Ports = []corev1.ServicePort{{Name: "s", Protocol: corev1.ProtocolSCTP, Port: 8000, NodePort: 30080,
			TargetPort: intstr.FromInt32(sctpServerAt)}}
		s.Spec.ExternalIPs = []string{"203.0.113.5"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.6"}}
		if change != nil {
			change(s)
		}
	})
}

func (n *node) saysSCTP(what, ns, addr, want string) {
	n.t.Helper()
	if got, err := callSCTP(n.t, answerTime, ns, addr, 0); err != nil || got != want {
		n.t.Errorf("%s: %s: got %q, %v, want %q", what, addr, got, err, want)
	}
}

// TestSCTP: a Service of SCTP at each of its addresses, by both external policies, with
// source ranges, without endpoints, by a host port, and to itself.
func TestSCTP(t *testing.T) { // SVC-7
	n := newNode(t)
	world := n.outside()
	a := n.sctpPod("a", podnet.HostPort{HostPort: 8081, ContainerPort: sctpServerAt, Protocol: "sctp"})
	b, c := n.sctpPod("b"), n.pod("c")
	n.setSCTP(sctpService(nil), a.addr, b.addr)
	for _, x := range []struct{ ns, addr, client string }{
		{c.ns, "10.96.0.50:8000", c.addr.String()}, {world, "192.0.2.1:30080", "10.244.7.1"},
		{world, "203.0.113.5:8000", "10.244.7.1"}, {world, "203.0.113.6:8000", "10.244.7.1"},
	} {
		seen := map[string]bool{}
		for i := 0; i < 40 && len(seen) < 2; i++ {
			got, err := callSCTP(t, answerTime, x.ns, x.addr, 0)
			name, client, _ := strings.Cut(got, " ")
			if err != nil || client != x.client {
				t.Fatalf("%s: got %q, %v, want client %s", x.addr, got, err, x.client)
			}
			seen[name] = true
		}
		if !seen["a"] || !seen["b"] {
			t.Errorf("%s: only %v answered", x.addr, seen)
		}
	}
	n.setSCTP(sctpService(nil), a.addr)
	n.saysSCTP("from the node", "", "10.96.0.50:8000", "a 10.244.7.1")
	n.saysSCTP("a pod to itself", a.ns, "10.96.0.50:8000", "a 10.244.7.1")
	n.saysSCTP("a host port", world, "192.0.2.1:8081", "a 192.0.2.2")

	n.setSCTP(sctpService(func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	}), a.addr)
	n.saysSCTP("policy Local", world, "192.0.2.1:30080", "a 192.0.2.2")
	if got, err := callSCTP(t, silence, world, "203.0.113.6:8000", 0); !errors.Is(err, errSilent) {
		t.Errorf("source range: got %q, %v", got, err)
	}
	n.setSCTP(sctpService(nil))
	for _, x := range []struct{ ns, addr string }{{c.ns, "10.96.0.50:8000"}, {world, "192.0.2.1:30080"}} {
		refused := icmpTo(t, x.ns)
		if got, err := callSCTP(t, silence, x.ns, x.addr, 0); !errors.Is(err, errSilent) {
			t.Errorf("no endpoints: %s: got %q, %v", x.addr, got, err)
		}
		if kind, code := refused(); kind != 3 || code != 2 {
			t.Errorf("no endpoints: %s: refused by ICMP of type %d, code %d, want protocol unreachable",
				x.addr, kind, code)
		}
	}
}

// icmpTo returns what reads the type and code of the first packet of ICMP to a namespace.
func icmpTo(t *testing.T, ns string) func() (kind, code byte) {
	t.Helper()
	var c net.PacketConn
	err := nstest.In(ns, func() (err error) { c, err = net.ListenPacket("ip4:icmp", "0.0.0.0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func() (kind, code byte) {
		_ = c.SetReadDeadline(time.Now().Add(answerTime))
		buf := make([]byte, 1500)
		if _, _, err := c.ReadFrom(buf); err != nil {
			t.Error(err)
		}
		return buf[0], buf[1]
	}
}

func TestSCTPAffinity(t *testing.T) { // SVC-7, VIP-13
	n := newNode(t)
	a, b, c := n.sctpPod("a"), n.sctpPod("b"), n.pod("c")
	n.setSCTP(sctpService(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }),
		a.addr, b.addr)
	var first string
	for range 20 {
		got, err := callSCTP(t, answerTime, c.ns, "10.96.0.50:8000", 0)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = got
		}
		if got != first {
			t.Fatalf("moved from %q to %q", first, got)
		}
	}
}

// TestSCTPFlowsOfEndpointsThatGo: a client that begins all its associations at one port is
// led to another endpoint once its own is gone. One that is not ready, or ends, keeps what
// stands: an association does not survive a move.
func TestSCTPFlowsOfEndpointsThatGo(t *testing.T) { // SVC-7
	n := newNode(t)
	world := n.outside()
	a, b, c := n.sctpPod("a"), n.sctpPod("b"), n.pod("c")
	answers := func(what, want string) {
		t.Helper()
		for _, x := range []struct{ ns, addr string }{
			{c.ns, "10.96.0.50:8000"}, {world, "192.0.2.1:30080"}, {world, "203.0.113.5:8000"}, {world, "203.0.113.6:8000"},
		} {
			got, err := callSCTP(t, answerTime, x.ns, x.addr, 5000)
			if name, _, _ := strings.Cut(got, " "); err != nil || name != want {
				t.Errorf("%s: %s: got %q, %v, want %s", what, x.addr, got, err, want)
			}
		}
	}
	n.setSCTP(sctpService(nil), a.addr)
	answers("one endpoint", "a")
	for what, conditions := range map[string]discoveryv1.EndpointConditions{
		"it is not ready": {Ready: ptr(false), Serving: ptr(false), Terminating: ptr(false)},
		"it ends":         {Ready: ptr(false), Serving: ptr(false), Terminating: ptr(true)},
	} {
		n.setSCTP(sctpService(nil), a.addr, b.addr)
		n.in.Slices[0].Endpoints[0].Conditions = conditions
		n.apply()
		answers(what, "a")
		for range 5 {
			n.saysSCTP(what+", a client comes", c.ns, "10.96.0.50:8000", "b "+c.addr.String())
		}
	}
	n.setSCTP(sctpService(nil), b.addr)
	answers("it is gone", "b")
}
