package framework

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// randomNode is a node of few names, zones, images and pods, so that they meet.
func randomNode(r *rand.Rand) *NodeInfo {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", r.IntN(8))}}
	if zone := r.IntN(4); zone > 0 {
		n.Labels = map[string]string{"zone": fmt.Sprint(zone)}
	}
	for i := range r.IntN(3) {
		n.Status.Images = append(n.Status.Images,
			corev1.ContainerImage{Names: []string{fmt.Sprint("i", i+r.IntN(2))}, SizeBytes: int64(i)})
	}
	info := NewNodeInfo(n)
	for range r.IntN(3) {
		p := &PodInfo{Pod: &corev1.Pod{}}
		if r.IntN(2) == 0 {
			p.PreferredAffinity = []AffinityTerm{{}}
		}
		info.AddPod(p)
	}
	return info
}

// same tells how two snapshots of the same nodes differ in what they say; their
// slots and the numbers of domains may.
func same(t *testing.T, step int, s, fresh *Snapshot) {
	t.Helper()
	if s.Len() != fresh.Len() || s.HasPodsWithAffinity() != fresh.HasPodsWithAffinity() {
		t.Fatalf("step %d: %d nodes, affinity %v; %d, %v", step,
			s.Len(), s.HasPodsWithAffinity(), fresh.Len(), fresh.HasPodsWithAffinity())
	}
	for i := range 4 {
		if image := fmt.Sprint("i", i); s.ImageNodes(image) != fresh.ImageNodes(image) {
			t.Fatalf("step %d: image %s on %d nodes, want %d",
				step, image, s.ImageNodes(image), fresh.ImageNodes(image))
		}
	}
	if got, want := domains(s), domains(fresh); got != want {
		t.Fatalf("step %d: domains %s, want %s", step, got, want)
	}
}

// domains prints which nodes share a zone.
func domains(s *Snapshot) string {
	topology := s.Topology("zone")
	groups := map[int32][]string{}
	for slot, n := range s.Slots() {
		if n == nil && topology.Of[slot] != -1 {
			return fmt.Sprintf("free slot %d in domain %d", slot, topology.Of[slot])
		}
		if n != nil {
			groups[topology.Of[slot]] = append(groups[topology.Of[slot]], n.Name())
		}
	}
	var out []string
	for domain, names := range groups {
		slices.Sort(names)
		if domain < 0 {
			names = append(names, "(none)")
		} else if int(domain) >= topology.Domains() {
			return fmt.Sprintf("domain %d of %d", domain, topology.Domains())
		}
		out = append(out, strings.Join(names, " "))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// TestSnapshotWalk: whatever nodes come, change and go, the snapshot says what one
// that is made of them anew would, each node keeps its slot, and who follows the
// changes, however seldom, knows all of them.
func TestSnapshotWalk(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		s := NewSnapshot()
		s.Topology("zone")
		nodes, slots := map[string]*NodeInfo{}, map[string]int{}
		var seq uint64
		var mirror []*NodeInfo
		for step := range 2500 { // more than the log of changes keeps
			if r.IntN(3) == 0 {
				name := fmt.Sprint("n", r.IntN(8))
				s.Remove(name)
				delete(nodes, name)
				delete(slots, name)
			} else {
				n := randomNode(r)
				s.Put(n)
				nodes[n.Name()] = n
				if slot, had := slots[n.Name()]; had && slot != n.Slot {
					t.Fatalf("step %d: %s moved from slot %d to %d", step, n.Name(), slot, n.Slot)
				}
				slots[n.Name()] = n.Slot
			}
			for name, n := range nodes {
				if s.Get(name) != n || s.Slots()[n.Slot] != n {
					t.Fatalf("step %d: %s is not the node that was put", step, name)
				}
			}
			if r.IntN(10) == 0 {
				same(t, step, s, NewSnapshot(copies(nodes)...))
			}
			if r.IntN(50) == 0 || step == 2499 {
				mirror, seq = follow(s, mirror, seq)
				if !slices.Equal(mirror, s.Slots()) {
					t.Fatalf("step %d: who follows knows other nodes", step)
				}
			}
		}
	}
}

// copies are the nodes without their slots.
func copies(nodes map[string]*NodeInfo) (out []*NodeInfo) {
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		out = append(out, nodes[name].Clone())
	}
	return out
}

// follow brings a copy of the slots up to date by the changes alone.
func follow(s *Snapshot, mirror []*NodeInfo, seq uint64) ([]*NodeInfo, uint64) {
	changed, all, now := s.Since(seq)
	if all {
		return slices.Clone(s.Slots()), now
	}
	for _, slot := range changed {
		for len(mirror) <= int(slot) {
			mirror = append(mirror, nil)
		}
		mirror[slot] = s.Slots()[slot]
	}
	return mirror, now
}

// Who has not asked for long is told that all may have changed, not a part of it.
func TestSinceForgetsTheOldest(t *testing.T) {
	s := NewSnapshot()
	_, _, begin := s.Since(0)
	for range 5000 {
		s.Put(NewNodeInfo(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}))
	}
	if changed, all, _ := s.Since(begin); !all || changed != nil {
		t.Errorf("all %v, %d changes", all, len(changed))
	}
	_, _, now := s.Since(begin)
	for seq := begin; seq <= now; seq++ {
		if changed, all, _ := s.Since(seq); !all && len(changed) != int(now-seq) {
			t.Fatalf("of %d changes after %d, %d are told", now-seq, seq, len(changed))
		}
	}
	if _, all, _ := s.Since(now); all {
		t.Error("nothing has changed since, and all is said to")
	}
}

// What was worked out for pods is void when namespaces change, and when domains
// are numbered anew: values of a label that no node has any more are forgotten.
func TestEpochs(t *testing.T) {
	s := NewSnapshot()
	before := s.Epoch()
	s.SetNamespaces(map[string]labels.Set{"a": {"b": "c"}})
	if s.Epoch() == before || s.Namespaces()["a"]["b"] != "c" {
		t.Error("new labels of namespaces void nothing")
	}
	before = s.Epoch()
	s.Topology("host")
	for i := range 3000 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"host": fmt.Sprint(i)}}}
		s.Put(NewNodeInfo(n))
	}
	if s.Epoch() == before {
		t.Error("domains were never numbered anew")
	}
	if topology := s.Topology("host"); topology.Domains() > 1100 || topology.Of[0] < 0 {
		t.Errorf("%d domains of one node, which is in %d", topology.Domains(), topology.Of[0])
	}
}

// SPT-6: nodes of different zones take turns, whatever the cluster was before.
func TestWalkTakesTurnsOfZones(t *testing.T) {
	s := NewSnapshot()
	put := func(name, region, zone string) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
		if region != "" {
			n.Labels[corev1.LabelTopologyRegion] = region
		}
		if zone != "" {
			n.Labels[corev1.LabelTopologyZone] = zone
		}
		s.Put(NewNodeInfo(n))
	}
	walks := func(want string) {
		t.Helper()
		var names []string
		seen := map[int32]bool{}
		for _, slot := range s.Walk() {
			seen[slot] = true
			if n := s.Slots()[slot]; n != nil {
				names = append(names, n.Name())
			} else {
				names = append(names, "-")
			}
		}
		if got := strings.Join(names, " "); got != want || len(seen) != len(s.Slots()) {
			t.Errorf("walks %q, want %q", got, want)
		}
	}
	walks("")
	for _, n := range []string{"1", "2", "3", "4"} {
		put(n, "", "zone1")
	}
	put("5", "", "zone2")
	put("6", "", "zone2")
	walks("1 5 2 6 3 4")
	before := s.Walk()
	put("2", "", "zone1") // nothing new of its zone
	if after := s.Walk(); &before[0] != &after[0] {
		t.Error("the order was made again for nothing")
	}
	put("2", "", "zone2")
	walks("1 2 3 5 4 6")
	put("5", "east", "zone2") // a zone of its own
	walks("1 2 5 3 6 4")
	s.Remove("2")
	walks("1 5 6 3 4 -")
	put("7", "", "")
	walks("1 7 5 6 3 4")
}
