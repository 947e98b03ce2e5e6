package proxy

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/shoal-project/shoal/agent/service"
	"github.com/shoal-project/shoal/cni/nft"
	"github.com/shoal-project/shoal/cni/nft/nfttest"
)

// dump is what the kernel has as the proxy's table.
func dump(t *testing.T, p *Proxy) string {
	t.Helper()
	text, err := nfttest.Dump(p.render.Table.String())
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(text, p.render.Table.String(), "ip table", 1)
}

// described is what the proxy wants its table to hold, for the tables alone.
func described(p *Proxy, next *service.Tables) string {
	c, _ := p.render.delta(*newState(), next)
	want := p.render.base(&p.cfg)
	want.Merge(c.Add)
	want.Table.Name = "table"
	return nfttest.Listed(want.String())
}

// walker changes a small world at random, so that every transition occurs:
// kinds of Services, policies, affinity, and two that want the same address.
type walker struct {
	rnd *rand.Rand
	in  service.Input
}

func (w *walker) step() {
	name := fmt.Sprintf("s%d", w.rnd.IntN(6))
	w.in.Services = slices.DeleteFunc(slices.Clone(w.in.Services), func(s *corev1.Service) bool { return s.Name == name })
	w.in.Slices = slices.DeleteFunc(slices.Clone(w.in.Slices),
		func(s *discoveryv1.EndpointSlice) bool { return s.Name == name })
	if w.rnd.IntN(4) == 0 {
		return
	}
	svc := newService(name, fmt.Sprintf("10.96.0.%d", 20+w.rnd.IntN(4)), func(s *corev1.Service) {
		if w.rnd.IntN(2) == 0 {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.Ports[0].NodePort = int32(30000 + w.rnd.IntN(4))
			s.Spec.ExternalIPs = []string{fmt.Sprintf("203.0.113.%d", w.rnd.IntN(3)+1)}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
				{IP: fmt.Sprintf("203.0.113.%d", w.rnd.IntN(3)+10)}}
			if w.rnd.IntN(2) == 0 {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			}
			if w.rnd.IntN(2) == 0 {
				s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
			}
		}
		if w.rnd.IntN(3) == 0 {
			s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
		}
		if w.rnd.IntN(3) == 0 {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(100 + w.rnd.IntN(2)))}}
		}
	})
	w.in.Services = append(w.in.Services, svc)
	var addrs []netip.Addr
	many := w.rnd.IntN(4)
	if w.rnd.IntN(8) == 0 {
		many = w.rnd.IntN(40)
	}
	for i := range many {
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 244, byte(7 + w.rnd.IntN(2)), byte(10 + i)}))
	}
	w.in.Slices = append(w.in.Slices, newSlice(name, addrs...))
}

// The table after any walk is the one that its end state alone makes.
func TestRandomWalkConverges(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	n := newNode(t)
	w := &walker{rnd: rand.New(rand.NewPCG(seed, 0)), in: n.in}
	// Values keep their identity while nothing about them changes, as Source's do.
	var last *service.Tables
	build := func() *service.Tables {
		next := service.Build(w.in)
		same := map[service.Key]*service.Service{}
		for k, s := range next.All() {
			if old := last.Get(k); old != nil &&
				cmp.Equal(old, s, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
					cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
					cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })) {
				same[k] = old
			}
		}
		last = next.With(same)
		return last
	}
	cfg := n.proxy.cfg
	cfg.Table = "fresh"
	fresh := New(cfg)
	k2, err := nft.Open()
	n.must(err)
	defer k2.Close()
	defer fresh.Cleanup()
	for i := range 150 {
		for range 1 + w.rnd.IntN(3) {
			w.step()
		}
		tables := build()
		if n.st, err = n.proxy.apply(n.k, n.st, tables); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if i%10 != 9 {
			continue
		}
		n.must(fresh.Cleanup())
		if _, err = fresh.apply(k2, nil, tables); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		walked := dump(t, n.proxy)
		if d := cmp.Diff(dump(t, fresh), walked); d != "" {
			t.Fatalf("step %d: (-fresh +walked)\n%s", i, d)
		}
		if d := cmp.Diff(described(n.proxy, tables), walked); d != "" {
			t.Fatalf("step %d: (-described +walked)\n%s", i, d)
		}
	}
	// A restarted process takes over what it finds.
	if n.st, err = n.proxy.apply(n.k, nil, build()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(dump(t, fresh), dump(t, n.proxy)); d != "" {
		t.Errorf("after a restart: (-fresh +restarted)\n%s", d)
	}
}

// A change of one Service is a small transaction, whatever else there is.
func TestOneChangeIsSmall(t *testing.T) {
	one := netip.MustParseAddr("10.244.8.1")
	w := service.Input{View: service.View{Node: "here"}}
	for i := range 1000 {
		name := fmt.Sprintf("s%d", i)
		w.Services = append(w.Services, newService(name, fmt.Sprintf("10.96.%d.%d", 1+i/200, i%200), nil))
		w.Slices = append(w.Slices, newSlice(name, one, netip.MustParseAddr("10.244.8.2")))
	}
	p := New(Config{ServiceCIDRs: []netip.Prefix{serviceCIDR}})
	tables := service.Build(w)
	first, st := p.render.delta(*newState(), tables)
	first.after()
	slice := newSlice("s500", one, netip.MustParseAddr("10.244.8.3"))
	moved := service.BuildOne(w.Services[500], []*discoveryv1.EndpointSlice{slice}, w.View)
	c, _ := p.render.delta(st, tables.With(map[service.Key]*service.Service{moved.Key: moved}))
	const want = `table ip shoal
element backends 10.96.3.100 . tcp . 8000 . 0x00000001 : 10.244.8.3 . 80
element backends 10.96.3.100 . udp . 8000 . 0x00000001 : 10.244.8.3 . 80
`
	if d := cmp.Diff(want, c.Add.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d := cmp.Diff(strings.ReplaceAll(want, ".3 . 80", ".2 . 80"), c.Del.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// Services that want one address cost the others nothing: whoever writes two of
// that kind must not make every change one of all Services.
func TestRivalsCostOthersNothing(t *testing.T) {
	n := newNode(t)
	at := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.5"} }
	n.in.Services = []*corev1.Service{newService("a", "10.96.0.20", at), newService("b", "10.96.0.21", at),
		newService("c", "10.96.0.22", nil)}
	n.apply()
	for i, want := range []int{2, 2, 1} {
		svc := n.in.Services[i].DeepCopy()
		svc.Spec.Ports = svc.Spec.Ports[:1]
		one := service.BuildOne(svc, nil, n.in.View)
		next := n.st.tables.With(map[service.Key]*service.Service{one.Key: one})
		if all := n.proxy.render.affected(*n.st, next); len(all) != want {
			t.Errorf("a change of %s looks at %d Services, want %d", svc.Name, len(all), want)
		}
	}
	n.in.Services = n.in.Services[1:]
	n.apply()
	if owner := n.st.owners[elem{netip.MustParseAddr("203.0.113.5"), unix.IPPROTO_TCP, 8000}]; owner.Name != "b" ||
		len(n.st.rivals) != 0 {
		t.Errorf("the address is %v's, rivals %v", owner, n.st.rivals)
	}
}

func TestForeignDeletionIsRepaired(t *testing.T) {
	n := newNode(t)
	a, c := n.pod("a"), n.pod("c")
	svc := newService("web", "10.96.0.50", nil)
	n.set(svc, a.addr)
	n.must(exec.Command("nft", "delete", "table", "ip", n.proxy.cfg.Table).Run())
	// The next change fails, and is followed by a full rewrite.
	n.in.Slices = []*discoveryv1.EndpointSlice{newSlice("web", a.addr, netip.MustParseAddr("10.244.7.99"))}
	st, err := n.proxy.apply(n.k, n.st, service.Build(n.in))
	if err == nil || st != nil {
		t.Fatalf("a change of a deleted table was taken: %v", err)
	}
	n.st = nil
	n.set(svc, a.addr)
	if _, err := call(c.ns, "tcp", "10.96.0.50:8000"); err != nil {
		t.Error(err)
	}
}

func TestGoldenRules(t *testing.T) {
	w := &walker{rnd: rand.New(rand.NewPCG(7, 9)), in: service.Input{View: service.View{Node: "here"}}}
	for range 20 {
		w.step()
	}
	r := New(Config{ClusterCIDRs: []netip.Prefix{clusterCIDR}, PodCIDRs: []netip.Prefix{podCIDR}}).render
	all := r.newObjects()
	tables := service.Build(w.in)
	keys := map[service.Key]*service.Service{}
	for k, one := range tables.All() {
		keys[k] = one
	}
	for _, k := range slices.SortedFunc(maps.Keys(keys), compareKeys) {
		r.render(tables.Get(k), all)
	}
	got := []byte(all.String())
	file := filepath.Join("testdata", "rules.golden")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		_ = os.MkdirAll("testdata", 0o755)
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("run with UPDATE_GOLDEN=1 if it is meant:\n%s", cmp.Diff(string(want), string(got)))
	}
}

// One endpoint's change costs the same among many Services.
func BenchmarkOneChange(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { oneChange(b, n) })
	}
}

func oneChange(b *testing.B, n int) {
	w := service.Input{View: service.View{Node: "here"}}
	for i := range n {
		name := fmt.Sprintf("s%d", i)
		w.Services = append(w.Services,
			newService(name, fmt.Sprintf("10.96.%d.%d", 1+i/200, i%200), func(s *corev1.Service) {
				s.Spec.Ports = s.Spec.Ports[:1] // without UDP, whose flows are looked through
			}))
		w.Slices = append(w.Slices, newSlice(name, netip.MustParseAddr("10.244.8.1"), netip.MustParseAddr("10.244.8.2")))
	}
	p := New(Config{ServiceCIDRs: []netip.Prefix{serviceCIDR}})
	k, err := nft.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	defer p.Cleanup()
	tables := service.Build(w)
	start := time.Now()
	st, err := p.apply(k, nil, tables)
	if err != nil {
		b.Fatal(err)
	}
	full := time.Since(start)
	i := 0
	for b.Loop() {
		svc := w.Services[i%n]
		s := service.BuildOne(svc,
			[]*discoveryv1.EndpointSlice{
				newSlice(svc.Name, netip.AddrFrom4([4]byte{10, 244, byte(9 + i/250%250), byte(i % 250)}))}, w.View)
		tables = tables.With(map[service.Key]*service.Service{s.Key: s})
		if st, err = p.apply(k, st, tables); err != nil {
			b.Fatal(err)
		}
		i++
	}
	b.ReportMetric(float64(full.Milliseconds()), "ms/full")
}
