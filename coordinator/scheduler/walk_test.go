package scheduler

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// SPT-5, SPT-6: where not all nodes are looked at, those that are come from all zones, and
// pods of another kind begin where the last look ended.
func TestWalkOfNodes(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 400 {
		z := "big"
		if i >= 300 {
			z = "small"
		}
		nodes = append(nodes, testNode(fmt.Sprint("n", i), "4", "4Gi", zone(z)))
	}
	snap, profile := snapshot(t, nodes), defaultProfile(t)
	p := newPlacer(snap, newNominator())
	order := make([]string, 0, len(nodes)) // by place in the walk
	for _, slot := range snap.Walk() {
		order = append(order, snap.Slots()[slot].Name())
	}
	looked := func(name string, opts ...podOpt) (first, last, small int, c *class) {
		t.Helper()
		info, err := framework.NewPodInfo(testPod(name, opts...))
		if err != nil {
			t.Fatal(err)
		}
		_, cyc, err := p.place(t.Context(), profile, info)
		if err != nil {
			t.Fatal(err)
		}
		c = cyc.class
		for i := range c.filled {
			n := snap.Slots()[c.slot(c.step(i))]
			if n.Node.Labels[corev1.LabelTopologyZone] == "small" {
				small++
			}
			if !c.node[c.step(i)].judged {
				t.Errorf("%s was not judged", n.Name())
			}
		}
		at := func(i int) int {
			for place, n := range order {
				if n == snap.Slots()[c.slot(c.step(i))].Name() {
					return place
				}
			}
			return -1
		}
		return at(0), at(c.filled - 1), small, c
	}
	want := p.wanted(profile)
	if want >= len(nodes)/2 {
		t.Fatalf("%d nodes are wanted", want)
	}
	first, last, small, c := looked("a", requests("100m", "50Mi"))
	if first != 0 || small < want/2-1 {
		t.Errorf("begins at %d, %d of %d are of the small zone", first, small, c.filled)
	}
	next, stopped, _, other := looked("b", requests("200m", "50Mi"))
	if next != last+1 || other.filled != c.filled {
		t.Errorf("another kind begins at %d and looks at %d; the first ended at %d", next, other.filled, last)
	}
	filled := c.filled
	if again, _, _, same := looked("c", requests("100m", "50Mi")); again != 0 || same != c || c.filled <= filled {
		t.Errorf("the first kind began at %d, and knows %d nodes after %d", again, c.filled, filled)
	}
	for range 5 { // all are known in the end
		looked("d", requests("100m", "50Mi"))
	}
	if c.filled != len(nodes) || c.good != len(nodes) {
		t.Errorf("%d of %d nodes are known, %d of them good", c.filled, len(nodes), c.good)
	}
	if stopped >= len(nodes) {
		t.Errorf("ended at %d", stopped)
	}
}
