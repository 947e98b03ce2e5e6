package cni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// Sizes of the transfers: at 8 Mbit/s a million bytes take a second, of which a
// bucket's burst is a fiftieth.
const (
	shapedRate  = 8_000_000
	shapedBytes = 1_000_000
	shapedLeast = 700 * time.Millisecond
)

// transfer sends bytes by TCP from one namespace to an address of another, and returns
// how long it took until the last one came.
func transfer(t *testing.T, from, to string, addr netip.Addr, bytes int64) time.Duration {
	t.Helper()
	var l net.Listener
	err := nstest.In(to, func() (err error) { l, err = net.Listen("tcp4", ":0"); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		sent <- nstest.In(from, func() error {
			port := l.Addr().(*net.TCPAddr).Port
			c, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", addr, port), time.Minute)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(time.Minute))
			_, err = c.Write(make([]byte, bytes))
			return err
		})
	}()
	_ = l.(*net.TCPListener).SetDeadline(time.Now().Add(time.Minute))
	c, err := l.Accept()
	if err != nil {
		t.Fatal(errors.Join(err, <-sent))
	}
	defer c.Close()
	start := time.Now()
	_ = c.SetDeadline(start.Add(time.Minute))
	got, err := io.Copy(io.Discard, c)
	if err := errors.Join(err, <-sent); err != nil || got != bytes {
		t.Fatalf("%d bytes came: %v", got, err)
	}
	return time.Since(start)
}

// attachShaped connects a pod with a bandwidth.
func attachShaped(t *testing.T, n *Network, id string, b podnet.Bandwidth) (podnet.Sandbox, Result) {
	t.Helper()
	s := podnet.Sandbox{ID: id, IfName: "eth0", NetNS: nstest.New(t), Bandwidth: b}
	r, err := n.Add(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

func exists(t *testing.T, name string) bool {
	t.Helper()
	_, err := netlink.LinkByName(name)
	if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
		t.Fatal(err)
	}
	return err == nil
}

// CNI-8, MT-11: what a pod receives and sends takes its time, whoever is at the other
// end, and after the agent's restart too.
func TestBandwidth(t *testing.T) {
	n := newNetwork(t)
	slowIn, in := attachShaped(t, n, "in", podnet.Bandwidth{IngressRate: shapedRate})
	slowOut, out := attachShaped(t, n, "out", podnet.Bandwidth{EgressRate: shapedRate, EgressBurst: 1 << 31})
	other, o := attachShaped(t, n, "other", podnet.Bandwidth{})
	gateway := n.stacks[0].gateway()
	check := func(what, from, to string, addr netip.Addr, slow bool) {
		t.Helper()
		took := transfer(t, from, to, addr, shapedBytes)
		t.Logf("%s: %.2f Mbit/s", what, shapedBytes*8/took.Seconds()/1e6)
		if slow && took < shapedLeast {
			t.Errorf("%s: %d bytes at %d bit/s took %s only", what, shapedBytes, shapedRate, took)
		}
	}
	check("to a pod from another", other.NetNS, slowIn.NetNS, in.Addrs[0], true)
	check("to a pod from the node", "", slowIn.NetNS, in.Addrs[0], true)
	check("from a pod to another", slowOut.NetNS, other.NetNS, o.Addrs[0], true)
	check("from a pod to the node", slowOut.NetNS, "", gateway, true)
	check("the other direction of a pod's, inwards", other.NetNS, slowOut.NetNS, out.Addrs[0], false)
	check("the other direction of a pod's, outwards", slowIn.NetNS, other.NetNS, o.Addrs[0], false)
	check("a pod without", "", other.NetNS, o.Addrs[0], false)
	if exists(t, shaperOf(slowIn)) || exists(t, shaperOf(other)) || !exists(t, shaperOf(slowOut)) {
		t.Error("an ifb is there for what is sent alone")
	}

	// Whoever administers the pod's own interface, the bound is not there.
	if err := nstest.In(slowOut.NetNS, func() error {
		return exec.Command("tc", "qdisc", "replace", "dev", "eth0", "root", "pfifo").Run()
	}); err != nil {
		t.Fatal(err)
	}
	again, err := New(n.cfg) // the agent starts anew
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(again.Ensure(), again.Know([]podnet.Sandbox{slowIn, slowOut, other})); err != nil {
		t.Fatal(err)
	}
	check("from a pod after a restart", slowOut.NetNS, other.NetNS, o.Addrs[0], true)
	check("to a pod after a restart", other.NetNS, slowIn.NetNS, in.Addrs[0], true)

	ctx := context.Background()
	for range 2 {
		if err := again.Del(ctx, slowOut); err != nil {
			t.Fatal(err)
		}
	}
	if exists(t, shaperOf(slowOut)) || exists(t, out.HostIf) {
		t.Error("interfaces of a pod are there after its end")
	}
}

// TestBandwidthIsMadeAnew: an attempt that was cut short is in nobody's way, and what it
// left goes with the sandbox, by GC, and with the network.
func TestBandwidthIsMadeAnew(t *testing.T) {
	n := newNetwork(t)
	ctx := context.Background()
	both := podnet.Bandwidth{IngressRate: shapedRate, EgressRate: shapedRate}
	a, ra := attachShaped(t, n, "a", both)
	if _, err := n.Add(ctx, a); err != nil {
		t.Fatalf("the same again: %v", err)
	}
	if err := deleteLink(ra.HostIf); err != nil { // the ifb alone is left
		t.Fatal(err)
	}
	if _, err := n.Add(ctx, a); err != nil {
		t.Fatalf("after half of it was taken away: %v", err)
	}
	b, rb := attachShaped(t, n, "b", podnet.Bandwidth{EgressRate: shapedRate})
	if took := transfer(t, a.NetNS, b.NetNS, rb.Addrs[0], shapedBytes); took < shapedLeast {
		t.Errorf("what is made anew does not bound: %s", took)
	}
	if err := deleteLink(ra.HostIf); err != nil {
		t.Fatal(err)
	}
	if err := n.GC(ctx, []podnet.Sandbox{b}); err != nil {
		t.Fatal(err)
	}
	if exists(t, shaperOf(a)) || !exists(t, shaperOf(b)) {
		t.Error("GC takes what is nobody's, and nothing else")
	}
	if err := deleteLink(n.cfg.Bridge); err != nil { // somebody else does
		t.Fatal(err)
	}
	if err := n.Cleanup(); err != nil {
		t.Fatal(err)
	}
	if exists(t, shaperOf(b)) {
		t.Error("an ifb is there after the cleanup")
	}
}

// TestBucket: from the smallest to the largest rate the kernel takes what is asked for.
func TestBucket(t *testing.T) {
	n := newNetwork(t)
	for i, rate := range []uint64{1000, 64_000, 1_000_000, 10_000_000_000, 34_359_738_368, 1_000_000_000_000_000} {
		s, _ := attachShaped(t, n, fmt.Sprint("pod", i), podnet.Bandwidth{IngressRate: rate, EgressRate: rate})
		for _, name := range []string{hostIf(s), shaperOf(s)} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				t.Fatal(err)
			}
			list, err := netlink.QdiscList(l)
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, q := range list {
				if tbf, ok := q.(*netlink.Tbf); ok {
					found = true
					if tbf.Rate != rate/8 || tbf.Buffer == 0 || tbf.Limit < 16*1500 || tbf.Limit > 2*bucketMost {
						t.Errorf("%d bit/s on %s: the kernel has %+v", rate, name, tbf)
					}
				}
			}
			if !found {
				t.Errorf("%d bit/s on %s: no bucket among %v", rate, name, list)
			}
		}
	}
}
