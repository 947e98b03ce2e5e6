package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/shoal-project/shoal/cni/nstest"
	"github.com/shoal-project/shoal/cni/podnet"
)

// TestBandwidthOf: what containerd v2.4 takes and refuses.
func TestBandwidthOf(t *testing.T) {
	const in, out = "kubernetes.io/ingress-bandwidth", "kubernetes.io/egress-bandwidth"
	for _, c := range []struct {
		annotations     map[string]string
		ingress, egress uint64
		wrong           string // in the error
	}{
		{nil, 0, 0, ""},
		{map[string]string{"other": "1M"}, 0, 0, ""},
		{map[string]string{in: "1M"}, 1_000_000, 0, ""},
		{map[string]string{out: "1k"}, 0, 1000, ""},
		{map[string]string{in: "1P", out: "8Mi"}, 1e15, 8 << 20, ""},
		{map[string]string{in: "999"}, 0, 0, in},
		{map[string]string{in: "1M", out: "2P"}, 0, 0, out},
		{map[string]string{out: "-1M"}, 0, 0, out},
		{map[string]string{out: "100000E"}, 0, 0, out},
		{map[string]string{in: "10 Mbit"}, 0, 0, in},
		{map[string]string{in: ""}, 0, 0, in},
	} {
		b, err := bandwidthOf(c.annotations)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) || b != (podnet.Bandwidth{}) {
				t.Errorf("%v: got %+v, %v", c.annotations, b, err)
			}
			continue
		}
		want := podnet.Bandwidth{IngressRate: c.ingress, EgressRate: c.egress}
		if c.ingress > 0 {
			want.IngressBurst = 1<<32 - 1
		}
		if c.egress > 0 {
			want.EgressBurst = 1<<32 - 1
		}
		if err != nil || b != want {
			t.Errorf("%v: got %+v, %v", c.annotations, b, err)
		}
	}
}

// CNI-7: a plugin that has the capability is told, at the end too; another is not, and
// a pod whose annotations cannot be read is not connected.
func TestBandwidthOfPlugins(t *testing.T) {
	m := newManager(t)
	ctx := context.Background()
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("SHOAL_TEST_CALLS", calls)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{m.cfg.ConfDir, m.cfg.BinDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	conf := `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"fancy"},{"type":"fancy","capabilities":{"bandwidth":true}}]}`
	for name, do := range map[string]func(string) error{
		filepath.Join(m.cfg.BinDir, "fancy"):        func(f string) error { return os.Symlink(exe, f) },
		filepath.Join(m.cfg.ConfDir, "10.conflist"): func(f string) error { return os.WriteFile(f, []byte(conf), 0o600) },
	} {
		if err := do(name); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(id, ingress string) podnet.Sandbox {
		s := podnet.Sandbox{Namespace: "ns", Name: "p", ID: id, IfName: "eth0", NetNS: nstest.New(t)}
		if ingress != "" {
			s.Annotations = map[string]string{annotationIngress: ingress}
		}
		return s
	}
	bounded, free, wrong := pod("bounded", "2M"), pod("free", ""), pod("wrong", "fast")
	for _, s := range []podnet.Sandbox{bounded, free} {
		if _, err := m.Setup(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Setup(ctx, wrong); err == nil || !strings.Contains(err.Error(), annotationIngress) {
		t.Errorf("a pod with an annotation that cannot be read: %v", err)
	}
	for _, s := range []podnet.Sandbox{bounded, free, wrong} {
		if err := m.Teardown(ctx, s); err != nil {
			t.Error(err)
		}
	}
	const told = ` {"ingressRate":2000000,"ingressBurst":4294967295,"egressRate":0,"egressBurst":0}`
	const kept = ` {"egressBurst":0,"egressRate":0,"ingressBurst":4294967295,"ingressRate":2000000}` // by libcni
	want := "ADD bounded ns\nADD bounded ns" + told + "\nADD free ns\nADD free ns\n" +
		"DEL bounded ns" + kept + "\nDEL bounded ns\nDEL free ns\nDEL free ns\n"
	if got, err := os.ReadFile(calls); err != nil || string(got) != want {
		t.Errorf("calls %q, %v\nwant  %q", got, err, want)
	}
}

// CNI-8 on the own network: the annotation becomes a bound in the kernel, one that
// cannot be read connects nobody.
func TestBandwidthOfOwnNetwork(t *testing.T) {
	m := newManager(t)
	ctx := context.Background()
	if err := m.SetPodCIDRs([]netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}); err != nil {
		t.Fatal(err)
	}
	buckets := func() (rates []string) {
		t.Helper()
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range links {
			list, err := netlink.QdiscList(l)
			if err != nil {
				t.Fatal(err)
			}
			for _, q := range list {
				if tbf, ok := q.(*netlink.Tbf); ok {
					rates = append(rates, fmt.Sprint(l.Type(), " ", tbf.Rate*8))
				}
			}
		}
		return rates
	}
	pod := podnet.Sandbox{Namespace: "ns", Name: "p", ID: "a", IfName: "eth0", NetNS: nstest.New(t),
		Annotations: map[string]string{annotationIngress: "1", annotationEgress: "3M"}}
	if _, err := m.Setup(ctx, pod); err == nil || !strings.Contains(err.Error(), annotationIngress) {
		t.Errorf("1 bit a second: %v", err)
	}
	if got := buckets(); got != nil {
		t.Errorf("a pod that is not connected has %v", got)
	}
	pod.Annotations[annotationIngress] = "2M"
	if _, err := m.Setup(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(buckets()); got != "[veth 2000000 ifb 3000000]" && got != "[ifb 3000000 veth 2000000]" {
		t.Errorf("the kernel has %s", got)
	}
	if err := m.Teardown(ctx, pod); err != nil {
		t.Fatal(err)
	}
	m.Close() // at once
	if got := buckets(); got != nil {
		t.Errorf("after the pod's end there is %v", got)
	}
}
