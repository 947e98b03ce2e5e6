package allocate

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// book is a store of addresses and ports that several allocators may share.
type book struct {
	mu        sync.Mutex
	prefixes  []netip.Prefix
	addresses map[netip.Addr]string
	ports     corev1.RangeAllocation
	services  []corev1.Service
}

func (b *book) claim(_ context.Context, ip netip.Addr, s *corev1.Service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, taken := b.addresses[ip]; taken {
		return errTaken
	}
	b.addresses[ip] = s.Name
	return nil
}

func (b *book) release(_ context.Context, ip netip.Addr, s *corev1.Service) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.addresses[ip] == s.Name {
		delete(b.addresses, ip)
	}
	return nil
}

func (b *book) known(context.Context, bool) (out []netip.Addr, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ip := range b.addresses {
		out = append(out, ip)
	}
	for i := range b.services {
		out = append(out, addressesOf(&b.services[i])...)
	}
	return out, nil
}

func (b *book) holder(_ context.Context, ip netip.Addr) (bool, error) {
	for i := range b.services {
		for _, held := range addressesOf(&b.services[i]) {
			if held == ip {
				return true, nil
			}
		}
	}
	return false, nil
}

func (b *book) ranges(context.Context, bool) ([]netip.Prefix, error) { return b.prefixes, nil }

func (b *book) change(_ context.Context, dryRun bool, f func(*corev1.RangeAllocation) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.ports.DeepCopy()
	if err := f(r); err != nil || dryRun {
		return err
	}
	b.ports = *r
	return nil
}

func (b *book) held(context.Context) (out []int32, err error) {
	for i := range b.services {
		out = append(out, portsOf(&b.services[i])...)
	}
	return out, nil
}

// allocator is a coordinator's on this book.
func (b *book) allocator() *Allocator {
	return &Allocator{
		families:  []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		addresses: newAddressPools(b),
		ports:     openNodePorts(b, 30000, 30009),
		reserved:  &reservedRanges{},
	}
}

func newBook(cidrs ...string) *book {
	b := &book{addresses: map[netip.Addr]string{}}
	for _, c := range cidrs {
		b.prefixes = append(b.prefixes, netip.MustParsePrefix(c))
	}
	return b
}

// Several coordinators on one store never give one address or port twice, and
// find what another has given back (SVC allocation, KEP-1880).
func TestAllocatorsShareOneBook(t *testing.T) {
	b := newBook("192.0.2.0/28")
	coordinators := []*Allocator{b.allocator(), b.allocator(), b.allocator()}
	var wg sync.WaitGroup
	made := make([]*corev1.Service, 10) // as many as ports
	for i := range made {
		wg.Go(func() {
			s := &corev1.Service{
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1}}}}
			s.Name = fmt.Sprint(i)
			if err := allocate(t, coordinators[i%3], s, nil); err != nil {
				t.Error(err)
			}
			made[i] = s
		})
	}
	wg.Wait()
	ips, ports := map[string]bool{}, map[int32]bool{}
	for _, s := range made {
		ips[s.Spec.ClusterIP], ports[s.Spec.Ports[0].NodePort] = true, true
	}
	if len(ips) != len(made) || len(ports) != len(made) || len(b.addresses) != len(made) {
		t.Fatalf("%d addresses, %d ports, %d claims of %d services", len(ips), len(ports), len(b.addresses), len(made))
	}
	s := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 1}}}}
	if err := allocate(t, coordinators[1], s, nil); err == nil || !strings.Contains(err.Error(), "failed to allocate a nodePort: range is full") {
		t.Errorf("an eleventh port: %v %v", s.Spec.Ports, err)
	}
	if len(b.addresses) != len(made) {
		t.Errorf("%d claims after a refusal", len(b.addresses))
	}
	coordinators[0].Release(made[4])
	for range 5 { // fourteen hosts: others must see what was released
		s = &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}}}
		if err := allocate(t, coordinators[2], s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := allocate(t, coordinators[2], &corev1.Service{}, nil); err == nil || !strings.Contains(err.Error(), "range is full") {
		t.Errorf("a full range: %v", err)
	}
}

// A port whose service was never written is free again after a while, not at once.
func TestOrphanedPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook("10.0.0.0/24")
		crashed := b.allocator()
		s := &corev1.Service{
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
				Ports: []corev1.ServicePort{{Port: 1, NodePort: 30003}}}}
		if _, err := crashed.Begin(t.Context(), s, nil, false); err != nil {
			t.Fatal(err)
		}
		next := b.allocator()
		again := func() error {
			return allocate(t, next,
				&corev1.Service{
					Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
						Ports: []corev1.ServicePort{{Port: 1, NodePort: 30003}}}}, nil)
		}
		if err := again(); err == nil || !strings.Contains(err.Error(), "provided port is already allocated") {
			t.Errorf("at once: %v", err)
		}
		time.Sleep(orphaned + time.Second)
		if err := again(); err != nil {
			t.Errorf("later: %v", err)
		}
	})
}

// Another range than the stored one keeps the ports that are in both.
func TestPortRangeChanges(t *testing.T) {
	b := newBook("10.0.0.0/24")
	for _, port := range []int32{30005, 30009} {
		s := &corev1.Service{
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
				Ports: []corev1.ServicePort{{Port: 1, NodePort: port}}}}
		if err := allocate(t, b.allocator(), s, nil); err != nil {
			t.Fatal(err)
		}
	}
	moved := b.allocator()
	moved.ports = openNodePorts(b, 30008, 30020)
	all := moved.ports.restore(&b.ports)
	if !all.holds(1) || all.taken != 1 {
		t.Errorf("%d taken, %b", all.taken, &all.used)
	}
}

func TestHostOf(t *testing.T) {
	for _, c := range []struct {
		prefix, ip string
		want       bool
	}{
		{"203.0.113.0/24", "203.0.113.10", true}, {"203.0.113.0/24", "203.0.113.0", false},
		{"203.0.113.0/24", "203.0.113.255", false},
		{"203.0.113.0/24", "203.0.114.1", false}, {"fd00::/112", "fd00::ffff", true}, {"fd00::/112", "fd00::", false},
	} {
		if got := hostOf(netip.MustParsePrefix(c.prefix), netip.MustParseAddr(c.ip)); got != c.want {
			t.Errorf("%s in %s: %v", c.ip, c.prefix, got)
		}
	}
}
