package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// holding is a manager whose network has five addresses.
func holding(t *testing.T, hold time.Duration) *Manager {
	t.Helper()
	m := newManager(t)
	m.holds.time = hold
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/29")}); err != nil {
		t.Fatal(err)
	}
	return m
}

// connect connects a new sandbox of a pod and returns its address.
func connect(t *testing.T, m *Manager, id, uid string) (podnet.Sandbox, netip.Addr) {
	t.Helper()
	s := podnet.Sandbox{Namespace: "ns", Name: "p", ID: id, UID: uid, IfName: podnet.Interface, NetNS: nstest.New(t)}
	ips, err := m.Setup(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return s, ips[0]
}

// stop disconnects a sandbox and lets go of its namespace, as its manager does.
func stop(t *testing.T, m *Manager, s podnet.Sandbox) {
	t.Helper()
	if err := m.Teardown(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Unmount(s.NetNS, unix.MNT_DETACH), os.Remove(s.NetNS)); err != nil {
		t.Fatal(err)
	}
}

func owners(t *testing.T, m *Manager) string {
	t.Helper()
	ids, err := m.own.Owners()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(ids)
}

// While a stopped pod is held, connections to it are refused, not lost.
func TestHeldPodRefuses(t *testing.T) {
	m := holding(t, time.Hour)
	a, addr := connect(t, m, "a", "uid-a")
	stop(t, m, a)
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(addr, 80).String(), time.Minute)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a connection to a pod that has just ended: %v", err)
	}
	if err := m.Release(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if err := m.Teardown(t.Context(), a); err != nil {
		t.Errorf("again: %v", err)
	}
	if got := owners(t, m); got != "[a]" {
		t.Errorf("held: %s", got)
	}
	if _, other := connect(t, m, "b", "uid-b"); other == addr {
		t.Error("another pod has its address")
	}
	if _, again := connect(t, m, "a2", "uid-a"); again != addr {
		t.Errorf("its next sandbox has %s, it had %s", again, addr)
	}
	m.Close()
	if got := owners(t, m); got != "[a2 b]" {
		t.Errorf("connected in the end: %s", got)
	}
}

// Pods that wait for an address do not wait for those that are held.
func TestHeldAddressesRunOut(t *testing.T) {
	m := holding(t, time.Hour)
	for round := range 3 {
		var list []podnet.Sandbox
		for i := range 5 {
			id := fmt.Sprintf("%d-%d", round, i)
			s, _ := connect(t, m, id, id)
			list = append(list, s)
		}
		for _, s := range list {
			stop(t, m, s)
		}
	}
}

func TestHoldEnds(t *testing.T) {
	m := holding(t, 50*time.Millisecond)
	a, _ := connect(t, m, "a", "uid-a")
	stop(t, m, a)
	for end := time.Now().Add(30 * time.Second); owners(t, m) != "[]" || len(m.holds.ids()) > 0; {
		if time.Now().After(end) {
			t.Fatalf("still held: %s", owners(t, m))
		}
		time.Sleep(10 * time.Millisecond)
	}
	// One without a namespace is disconnected at once.
	m.holds.time = time.Hour
	b, _ := connect(t, m, "b", "uid-b")
	if err := errors.Join(unix.Unmount(b.NetNS, unix.MNT_DETACH), os.Remove(b.NetNS)); err != nil {
		t.Fatal(err)
	}
	if err := m.Teardown(t.Context(), b); err != nil {
		t.Error(err)
	}
	if got := owners(t, m); got != "[]" {
		t.Errorf("held without a namespace: %s", got)
	}
}
