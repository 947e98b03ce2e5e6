package policy

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shoal-project/shoal/agent/policyfeed"
)

// manyPolicies and manyPods are a large cluster, with a tenth of the pods on this node.
const manyPolicies, manyPods = 1000, 1000

func manyPod(i int) (PodID, *policyfeed.Pod) {
	k := Key{Namespace: fmt.Sprint("ns", i%50), Name: fmt.Sprint("pod", i)}
	p := &policyfeed.Pod{
		Key:    k,
		Labels: map[string]string{"app": fmt.Sprint("app", i/50), "tier": fmt.Sprint(i % 3)},
		Addrs:  both(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})),
		Ports:  []policyfeed.Port{{Name: "http", Number: 8080}},
	}
	if i%10 == 0 {
		p.Node = "here"
		return PodID{k, fmt.Sprint("uid", i)}, p
	}
	return PodID{Key: k}, p
}

// manyWorld has policies that each let one application of its namespace be reached by
// another and by a namespace, from blocks of addresses too.
func manyWorld() delta {
	d := newDelta()
	for i := range 50 {
		name := fmt.Sprint("ns", i)
		d.namespaces[name] = &policyfeed.Namespace{Name: name, Labels: map[string]string{"team": fmt.Sprint(i % 5)}}
	}
	for i := range manyPods {
		id, p := manyPod(i)
		d.pods[id] = p
	}
	for i := range manyPolicies {
		app := func(n int) metav1.LabelSelector {
			return metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app", n%20)}}
		}
		other, team := app(i/50+1), metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint(i % 5)}}
		p := policyfeed.Policy{Key: Key{Namespace: fmt.Sprint("ns", i%50), Name: fmt.Sprint("policy", i)}}
		p.Spec = networkingv1.NetworkPolicySpec{
			PodSelector: app(i / 50),
			PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{
					{PodSelector: &other}, {NamespaceSelector: &team},
					{IPBlock: &networkingv1.IPBlock{CIDR: "192.0.2.0/24",
						Except: []string{fmt.Sprintf("192.0.2.%d/32", i%256)}}},
				},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromString("http"))}},
			}},
			Egress: []networkingv1.NetworkPolicyEgressRule{{
				To:    []networkingv1.NetworkPolicyPeer{{PodSelector: &other}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: ptr(intstr.FromInt32(8080)), EndPort: ptr(int32(8090))}},
			}},
		}
		d.policies[p.Key] = &p
	}
	return d
}

// BenchmarkAll is a start: from nothing to the kernel's tables.
func BenchmarkAll(b *testing.B) {
	for b.Loop() {
		c := newCompiler("bench", slog.New(slog.DiscardHandler))
		c.change(manyWorld())
		var k kernel
		if err := k.apply(c); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		k.close()
		if err := Cleanup("bench"); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// benchChange measures a change and its way back.
func benchChange(b *testing.B, there, back delta) {
	c := newCompiler("bench", slog.New(slog.DiscardHandler))
	c.change(manyWorld())
	var k kernel
	defer func() {
		k.close()
		if err := Cleanup("bench"); err != nil {
			b.Error(err)
		}
	}()
	if err := k.apply(c); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		d := newDelta()
		from := []delta{there, back}[i%2]
		for k, p := range from.policies {
			d.policies[k] = p
		}
		for id, p := range from.pods {
			d.pods[id] = p
		}
		c.change(d)
		if err := k.apply(c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOwnPod(b *testing.B) { // comes and goes
	id, p := manyPod(10)
	there, back := newDelta(), newDelta()
	there.pods[id], back.pods[id] = nil, p
	benchChange(b, there, back)
}

func BenchmarkRemotePod(b *testing.B) { // comes and goes
	id, p := manyPod(15)
	there, back := newDelta(), newDelta()
	there.pods[id], back.pods[id] = nil, p
	benchChange(b, there, back)
}

func BenchmarkPolicy(b *testing.B) { // comes and goes
	there, back := newDelta(), newDelta()
	k := Key{Namespace: "ns10", Name: "policy10"}
	there.policies[k], back.policies[k] = nil, manyWorld().policies[k]
	benchChange(b, there, back)
}
