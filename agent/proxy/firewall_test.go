package proxy

import (
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/cni"
	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/nstest"
)

// TestHostFirewall: with chains of iptables that drop, in the one kind or the other, Services,
// node ports and names work once the network opens them, and nothing else does.
func TestHostFirewall(t *testing.T) {
	for _, kind := range []string{"nft", "legacy"} {
		t.Run(kind, func(t *testing.T) { testHostFirewall(t, "iptables-"+kind) })
	}
}

// farPod is a pod on another node, beyond an interface of its own.
func (n *node) farPod() netip.Addr {
	n.t.Helper()
	ns := nstest.New(n.t)
	handle, err := netns.GetFromPath(ns)
	n.must(err)
	defer handle.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up1"
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(handle))
	n.must(netlink.LinkAdd(veth))
	n.t.Cleanup(func() { _ = netlink.LinkDel(veth) })
	n.must(exec.Command("sh", "-c",
		"ip addr add 198.51.100.1/24 dev up1 && ip link set up1 up && ip route add 10.244.9.0/24 via 198.51.100.2").Run())
	n.must(nstest.In(ns, func() error {
		return exec.Command("sh", "-c", "ip addr add 10.244.9.9/32 dev lo && ip link set lo up && "+
			"ip addr add 198.51.100.2/24 dev eth0 && ip link set eth0 up && ip route add default via 198.51.100.1").Run()
	}))
	serveAt(n.t, ns, "10.244.9.9:80", "far")
	return netip.MustParseAddr("10.244.9.9")
}

func testHostFirewall(t *testing.T, iptables string) {
	n := newNode(t)
	world := n.outside()
	a, client := n.pod("a"), n.pod("client")
	n.set(newService("web", "10.96.0.50", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30080, 30080
	}), a.addr)
	n.add("ns", newService("own", "10.96.0.51", nil), netip.MustParseAddr("192.0.2.1"))
	far := n.farPod()
	n.add("ns", newService("far", "10.96.0.52", func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30081, 30081
	}), far)
	n.local(dnsAddr)
	serveAt(t, "", "192.0.2.1:80", "node")
	serveAt(t, "", dnsAddr.String()+":53", "dns")
	type way struct{ what, ns, network, to string }
	opened := []way{
		{"a Service, from a pod", client.ns, "tcp", "10.96.0.50:8000"},
		{"a Service, from a pod", client.ns, "udp", "10.96.0.50:8000"},
		{"a pod, from a pod", client.ns, "tcp", a.addr.String() + ":80"},
		{"a Service, from the node", "", "tcp", "10.96.0.50:8000"},
		{"a Service's endpoint that is the node", client.ns, "tcp", "10.96.0.51:8000"},
		{"a node port, from outside", world, "tcp", "192.0.2.1:30080"},
		{"a node port, from outside", world, "udp", "192.0.2.1:30080"},
		{"a node port of a pod on another node, from outside", world, "tcp", "192.0.2.1:30081"},
		{"a node port of a pod on another node, from outside", world, "udp", "192.0.2.1:30081"},
		{"a pod on another node, from a pod", client.ns, "tcp", far.String() + ":80"},
		{"a pod, from outside", world, "tcp", a.addr.String() + ":80"},
		{"names", client.ns, "udp", "10.96.0.10:53"},
		{"names", client.ns, "tcp", "10.96.0.10:53"},
	}
	closed := []way{
		{"the node, from a pod", client.ns, "tcp", "192.0.2.1:80"},
		{"the node, from outside", world, "tcp", "192.0.2.1:80"},
		{"a pod on another node, from outside", world, "tcp", far.String() + ":80"},
		{"names, from outside", world, "udp", "10.96.0.10:53"},
	}
	passes := func(when string, list []way, want bool) {
		t.Helper()
		wait := answerTime
		if !want {
			wait = silence
		}
		var all sync.WaitGroup
		for _, w := range list {
			all.Go(func() {
				if got, err := callWithin(wait, w.ns, w.network, w.to); (err == nil) != want {
					t.Errorf("%s: %s by %s: %q, %v", when, w.what, w.network, got, err)
				}
			})
		}
		all.Wait()
	}
	run := func(args string) {
		t.Helper()
		if out, err := exec.Command(iptables, strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v: %s", iptables, args, err, out)
		}
	}
	passes("without a firewall", append(opened, closed...), true)
	t.Cleanup(func() {
		for _, args := range []string{"-P FORWARD ACCEPT", "-P INPUT ACCEPT", "-F"} {
			run(args)
		}
	})
	run("-P FORWARD DROP")
	run("-P INPUT DROP")
	passes("with one that is left", append(opened, closed...), false)

	with := func(f cni.HostFirewall) *cni.Network {
		w, err := cni.New(cni.Config{
			PodCIDRs: cidr.Prefixes{podCIDR}, ClusterCIDRs: cidr.Prefixes{clusterCIDR},
			ServiceCIDRs: cidr.Prefixes{serviceCIDR}, StateDir: filepath.Join(t.TempDir(), "cni"),
			DNS: []netip.Addr{dnsAddr}, HostFirewall: f,
		})
		n.must(err)
		n.must(w.Ensure())
		return w
	}
	w := with(cni.OpenFirewall)
	passes("opened", opened, true)
	passes("opened", closed, false)
	run("-F")
	passes("flushed", opened, false)
	_, err := w.Repair()
	n.must(err)
	passes("repaired", opened, true)
	with(cni.LeaveFirewall)
	passes("taken back", append(opened, closed...), false)
}
