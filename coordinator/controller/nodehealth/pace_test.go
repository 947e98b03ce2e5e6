package nodehealth

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

func zoned(i int, zone string, ready corev1.ConditionStatus) *corev1.Node {
	n := node(ready)
	n.Name = fmt.Sprintf("%s-%d", zone, i)
	n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	return n
}

func TestPace(t *testing.T) { // NODE-41..46
	p := newPace()
	for _, z := range []string{"a", "b"} {
		for i := range 5 {
			p.count(nil, zoned(i, z, "True"))
		}
	}
	// Two of zone a go: each is tainted at the full rate.
	for i := range 2 {
		if p.count(zoned(i, "a", "True"), zoned(i, "a", "Unknown")) {
			t.Errorf("node %d going changes no rate", i)
		}
	}
	if ex, _ := p.may(zoned(0, "a", "Unknown"), now); ex != add {
		t.Errorf("the first is tainted: %v", ex)
	}
	if ex, wait := p.may(zoned(1, "a", "Unknown"), now); ex != follow || wait != 10*time.Second {
		t.Errorf("the second waits: %v, %s", ex, wait)
	}
	if ex, _ := p.may(zoned(0, "b", "Unknown"), now); ex != add {
		t.Errorf("another zone has a pace of its own, though the count lags: %v", ex)
	}
	// A third: too many of a small zone.
	if !p.count(zoned(2, "a", "True"), zoned(2, "a", "Unknown")) {
		t.Error("the zone's rate changed")
	}
	if ex, wait := p.may(zoned(1, "a", "Unknown"), now.Add(time.Minute)); ex != follow || wait != paused {
		t.Errorf("the zone is paused: %v, %s", ex, wait)
	}
	if !p.count(zoned(2, "a", "Unknown"), nil) {
		t.Error("a node's deletion lets the zone go on")
	}
	if a := p.zones[topology.GetZoneKey(zoned(0, "a", "True"))]; a == nil || a.ready != 2 ||
		a.notReady != 2 || p.ready != 7 {
		t.Errorf("counts: %+v, %d ready", a, p.ready)
	}
}

func TestDisruption(t *testing.T) { // NODE-46
	p := newPace()
	p.count(nil, zoned(0, "a", "True"))
	if disrupted, turned := p.disruption(zoned(0, "a", "True"), now); disrupted || turned {
		t.Error("all is well")
	}
	// The informer lags behind the controller's own write.
	if disrupted, turned := p.disruption(zoned(0, "a", "Unknown"), now); !disrupted || !turned {
		t.Error("the last node went")
	}
	if !p.count(zoned(0, "a", "True"), zoned(0, "a", "Unknown")) {
		t.Error("no node is ready any more")
	}
	if _, turned := p.disruption(zoned(0, "a", "Unknown"), now); turned {
		t.Error("turned twice")
	}
	p.count(zoned(0, "a", "Unknown"), zoned(0, "a", "True"))
	if disrupted, turned := p.disruption(zoned(0, "a", "True"), now); disrupted || !turned {
		t.Error("it came back")
	}
	p.count(nil, zoned(1, "a", "Unknown"))
	if ex, wait := p.may(zoned(1, "a", "Unknown"), now.Add(time.Second)); ex != follow || wait != grace-time.Second {
		t.Errorf("nothing is evicted right after: %v, %s", ex, wait)
	}
}

func TestRate(t *testing.T) { // NODE-41..45
	for _, tt := range []struct {
		ready, not int
		want       float64
	}{
		{10, 1, 0.1}, {1, 2, 0.1}, {2, 3, 0}, {40, 60, 0.01}, {0, 5, 0.1},
	} {
		if got := rate(tt.ready, tt.not); got != tt.want {
			t.Errorf("%d ready, %d not: %v", tt.ready, tt.not, got)
		}
	}
}
