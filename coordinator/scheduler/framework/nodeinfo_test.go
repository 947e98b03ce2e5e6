package framework

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func randomPod(r *rand.Rand, i int) *PodInfo {
	p := &PodInfo{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i))}}}
	p.Requests = Resources{MilliCPU: r.Int64N(9), Memory: r.Int64N(9), EphemeralStorage: r.Int64N(9)}
	p.NonZero = Resources{MilliCPU: 1 + r.Int64N(9), Memory: 1 + r.Int64N(9)}
	if r.IntN(2) == 0 {
		p.Requests.Other = map[corev1.ResourceName]int64{"gpu": 1 + r.Int64N(3)}
	}
	if r.IntN(2) == 0 {
		p.HostPorts = []HostPort{{IP: "0.0.0.0", Protocol: corev1.ProtocolTCP, Port: 80 + r.Int32N(2)}}
	}
	if r.IntN(3) == 0 {
		p.RequiredAntiAffinity = []AffinityTerm{{}}
	}
	return p
}

// figures prints all that a node says of its pods, but for the order.
func figures(n *NodeInfo) string {
	uids := func(pods []*PodInfo) []types.UID {
		var out []types.UID
		for _, p := range pods {
			out = append(out, p.UID())
		}
		slices.Sort(out)
		return out
	}
	other := maps.Clone(n.Requested.Other)
	maps.DeleteFunc(other, func(_ corev1.ResourceName, v int64) bool { return v == 0 })
	ports := slices.SortedFunc(maps.Keys(n.Ports), func(a, b HostPort) int { return cmp.Compare(a.Port, b.Port) })
	return fmt.Sprint(n.Requested.MilliCPU, n.Requested.Memory, n.Requested.EphemeralStorage, other, n.NonZero.MilliCPU,
		n.NonZero.Memory, ports, uids(n.Pods), uids(n.WithAffinity), uids(n.WithAntiAffinity))
}

// TestNodeInfoWalk: whatever pods come and go, the sums are those of the pods that
// are there; a what-if on a clone changes nothing of the original.
func TestNodeInfoWalk(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		n := NewNodeInfo(&corev1.Node{})
		var pods []*PodInfo
		for step := range 60 {
			if len(pods) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(pods))
				if !n.RemovePod(pods[i].UID()) || n.RemovePod(pods[i].UID()) {
					t.Fatal("a pod is removed once, and only once")
				}
				pods = slices.Delete(pods, i, i+1)
			} else {
				pods = append(pods, randomPod(r, step))
				n.AddPod(pods[len(pods)-1])
			}
			fresh := NewNodeInfo(&corev1.Node{})
			for _, p := range pods {
				fresh.AddPod(p)
			}
			if got, want := figures(n), figures(fresh); got != want {
				t.Fatalf("seed %d, step %d: %s, want %s", seed, step, got, want)
			}
			before, c := figures(n), n.Clone()
			c.AddPod(randomPod(r, 1000))
			if len(pods) > 0 {
				c.RemovePod(pods[0].UID())
			}
			if after := figures(n); after != before {
				t.Fatalf("seed %d, step %d: the clone's pods show in the original: %s, was %s",
					seed, step, after, before)
			}
		}
	}
}

func TestPortTaken(t *testing.T) {
	n := NewNodeInfo(nil)
	n.AddPod(&PodInfo{Pod: &corev1.Pod{}, HostPorts: []HostPort{
		{IP: "10.0.0.1", Protocol: corev1.ProtocolTCP, Port: 80},
		{IP: "0.0.0.0", Protocol: corev1.ProtocolUDP, Port: 53},
	}})
	for _, c := range []struct {
		want  HostPort
		taken bool
	}{
		{HostPort{"10.0.0.1", corev1.ProtocolTCP, 80}, true},
		{HostPort{"10.0.0.2", corev1.ProtocolTCP, 80}, false},
		{HostPort{"0.0.0.0", corev1.ProtocolTCP, 80}, true},
		{HostPort{"10.0.0.1", corev1.ProtocolUDP, 80}, false},
		{HostPort{"10.0.0.1", corev1.ProtocolTCP, 81}, false},
		{HostPort{"10.0.0.9", corev1.ProtocolUDP, 53}, true},
	} {
		if got := n.PortTaken(c.want); got != c.taken {
			t.Errorf("%v: %v", c.want, got)
		}
	}
}

func TestResources(t *testing.T) {
	small := &Resources{MilliCPU: 1, Memory: 2, Other: map[corev1.ResourceName]int64{"gpu": 1}}
	for name, c := range map[string]struct {
		r              Resources
		exceeds, equal bool
	}{
		"same":             {small.clone(), false, true},
		"less":             {Resources{MilliCPU: 1}, false, false},
		"more CPU":         {Resources{MilliCPU: 2}, true, false},
		"more memory":      {Resources{Memory: 3}, true, false},
		"more storage":     {Resources{EphemeralStorage: 1}, true, false},
		"more of a device": {Resources{Other: map[corev1.ResourceName]int64{"gpu": 2}}, true, false},
		"another device":   {Resources{Other: map[corev1.ResourceName]int64{"fpga": 1}}, true, false},
	} {
		if c.r.Exceeds(small) != c.exceeds || c.r.Equal(small) != c.equal {
			t.Errorf("%s: exceeds %v, equal %v", name, c.r.Exceeds(small), c.r.Equal(small))
		}
	}
}

func TestNormalizeImage(t *testing.T) {
	for in, want := range map[string]string{
		"busybox":                   "busybox:latest",
		"busybox:1":                 "busybox:1",
		"registry:5000/busybox":     "registry:5000/busybox:latest",
		"registry:5000/a/b:1":       "registry:5000/a/b:1",
		"busybox@sha256:0123456789": "busybox@sha256:0123456789",
	} {
		if got := NormalizeImage(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
