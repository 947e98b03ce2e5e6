package cni

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/cidr"
	"github.com/shoal-project/shoal/cni/conntrack"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nft/nfttest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// tablesWalker changes what pods ask for at random, beside what the tables are to
// hold for it.
type tablesWalker struct {
	t               *testing.T
	rnd             *rand.Rand
	n               *Network
	routed, bridged nft.Objects
}

func newTablesWalker(t *testing.T, rnd *rand.Rand) *tablesWalker {
	w := &tablesWalker{t: t, rnd: rnd, n: newNetwork(t)}
	for _, a := range []string{"10.96.0.10", "169.254.20.10", "fd00::10"} {
		w.n.cfg.DNS = append(w.n.cfg.DNS, netip.MustParseAddr(a))
	}
	w.must(w.n.Ensure())
	var err error
	w.routed = w.n.routedObjects(w.n.stacks[0])
	w.bridged, err = w.n.bridgedObjects()
	w.must(err)
	return w
}

func (w *tablesWalker) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// step connects a pod, disconnects one, or is a restart of the agent.
func (w *tablesWalker) step() {
	i := byte(w.rnd.IntN(8))
	a, addr := podnet.Sandbox{ID: fmt.Sprint("pod", i), IfName: "eth0"}, netip.AddrFrom4([4]byte{10, 244, 7, 10 + i})
	switch w.rnd.IntN(8) {
	case 0:
		n, err := New(w.n.cfg)
		w.must(err)
		w.must(n.Ensure())
		w.n.conn.Close()
		w.n = n
	case 1, 2, 3:
		w.must(w.n.removeHostPorts(a, []netip.Addr{addr}))
		w.must(w.n.silence(a, []netip.Addr{addr}))
		w.forget(a, addr)
	default:
		a.HostPorts = w.ports()
		w.must(w.n.addRules(a, []netip.Addr{addr}))
		w.expect(a, addr)
	}
}

// ports are some of few, so that pods take them from each other.
func (w *tablesWalker) ports() (ports []podnet.HostPort) {
	at := []string{"", "0.0.0.0", "::", "::1", "192.0.2.1", "192.0.2.2"}
	for range w.rnd.IntN(4) {
		ports = append(ports, podnet.HostPort{
			HostIP:        at[w.rnd.IntN(len(at))],
			HostPort:      uint16(8080 + w.rnd.IntN(3)),
			ContainerPort: uint16(80 + w.rnd.IntN(2)),
			Protocol:      []string{"TCP", "udp", "sctp"}[w.rnd.IntN(3)],
		})
	}
	return ports
}

func (w *tablesWalker) expect(a podnet.Sandbox, addr netip.Addr) {
	w.n.addSenders(w.bridged, a, []netip.Addr{addr})
	s := w.n.stacks[0]
	for _, p := range a.HostPorts {
		to := nft.Target(netip.AddrPortFrom(addr, p.ContainerPort))
		at, err := p.Addr()
		w.must(err)
		switch {
		case !at.IsValid():
			w.routed.Add(s.hostPorts, nft.Data{}.Proto(nft.Proto(p.Protocol)).Port(p.HostPort), to)
		case at.Is4():
			w.routed.Add(s.addrHostPorts, nft.AddrProtoPort(at, nft.Proto(p.Protocol), p.HostPort), to)
		}
		w.routed.Add(s.hairpins, pairOf(addr), nil)
	}
}

func (w *tablesWalker) forget(a podnet.Sandbox, addr netip.Addr) {
	own, gone := w.n.stacks[0], nft.NewObjects(w.n.bridgedTable())
	w.n.addSenders(gone, a, []netip.Addr{addr})
	for key := range gone.Elements[own.senders] {
		delete(w.bridged.Elements[own.senders], key)
	}
	for _, s := range []*nft.Set{own.hostPorts, own.addrHostPorts} {
		for key, to := range w.routed.Elements[s] {
			if nft.ParseTarget(nft.Data(to)).Addr() == addr {
				delete(w.routed.Elements[s], key)
				delete(w.routed.Elements[own.hairpins], string(pairOf(addr)))
			}
		}
	}
}

// The tables after any walk are what is described for the pods that are left.
func TestRandomWalkOfTables(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	w := newTablesWalker(t, rand.New(rand.NewPCG(seed, 0)))
	for i := range 200 {
		w.step()
		if i%10 != 9 {
			continue
		}
		for _, want := range []nft.Objects{w.routed, w.bridged} {
			got, err := nfttest.Dump(want.Table.String())
			w.must(err)
			if d := cmp.Diff(nfttest.Listed(want.String()), got); d != "" {
				t.Fatalf("step %d: (-described +kernel)\n%s", i, d)
			}
		}
	}
}

// A pod's host ports of UDP and SCTP end flows to the node that lead elsewhere, and nobody else's:
// what others ask of a server at the same port of another machine goes on.
func TestOldFlows(t *testing.T) {
	dns, pod, other := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("10.244.7.5"), "10.244.7.6"
	stale := staleFlows{
		pod: []netip.Addr{pod},
		ports: endablePorts([]podnet.HostPort{{HostPort: 53, Protocol: "udp"}, {HostPort: 54, Protocol: "sctp"},
			{HostPort: 80, Protocol: "tcp"}}),
		node: []netip.Addr{netip.MustParseAddr("192.0.2.1"), dns},
		not:  cidr.Parse("10.96.0.0/16"),
	}
	for _, f := range []struct {
		what, to, answers string
		proto             uint8
		port              uint16
		ends              bool
	}{
		{"to the node's loopback", "127.0.0.1", "127.0.0.1", unix.IPPROTO_UDP, 53, true},
		{"to the node", "192.0.2.1", "192.0.2.1", unix.IPPROTO_UDP, 53, true},
		{"to the pod that had the port", "192.0.2.1", other, unix.IPPROTO_UDP, 53, true},
		{"to the pod that has it", "192.0.2.1", pod.String(), unix.IPPROTO_UDP, 53, false},
		{"to another port", "192.0.2.1", "192.0.2.1", unix.IPPROTO_UDP, 80, false},
		{"to that port by TCP", "192.0.2.1", "192.0.2.1", unix.IPPROTO_TCP, 80, false},
		{"by SCTP to the pod that had the port", "192.0.2.1", other, unix.IPPROTO_SCTP, 54, true},
		{"by SCTP to the pod that has it", "192.0.2.1", pod.String(), unix.IPPROTO_SCTP, 54, false},
		{"by SCTP to a port of UDP", "192.0.2.1", other, unix.IPPROTO_SCTP, 53, false},
		{"to another machine", "198.51.100.1", "198.51.100.1", unix.IPPROTO_UDP, 53, false},
		{"to a Service", "10.96.0.77", other, unix.IPPROTO_UDP, 53, false},
		{"to the cluster DNS", dns.String(), dns.String(), unix.IPPROTO_UDP, 53, false},
	} {
		flow := conntrack.Flow{Proto: f.proto, To: netip.AddrPortFrom(netip.MustParseAddr(f.to), f.port),
			By: netip.AddrPortFrom(netip.MustParseAddr(f.answers), f.port)}
		if got := stale.match(flow); got != f.ends {
			t.Errorf("%s: it ends: %v", f.what, got)
		}
	}
}
