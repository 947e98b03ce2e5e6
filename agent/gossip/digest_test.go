package gossip

import (
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDigestRoundTrip(t *testing.T) {
	for _, c := range []struct{ give, want Digest }{
		{Digest{}, Digest{}},
		{Digest{Version: "v1", Pods: 110, Pressure: []Pressure{PIDPressure, MemoryPressure}},
			Digest{Version: "v1", Pods: 110, Pressure: []Pressure{MemoryPressure, PIDPressure}}},
		{Digest{Version: strings.Repeat("v", 1000), Pods: -1}, Digest{Version: strings.Repeat("v", maxVersion)}},
	} {
		b := c.give.encode()
		got, ok := decodeDigest(b)
		if !ok || !reflect.DeepEqual(got, c.want) || len(b) > maxDigest {
			t.Errorf("%+v became %+v, %v", c.give, got, ok)
		}
	}
	for _, bad := range [][]byte{nil, {2}, {digestVersion, 1, 5, 'x'}, make([]byte, maxDigest+1),
		{digestVersion, tagPods, 2, 0xff, 0xff}, {digestVersion, tagPods, 4, 0xff, 0xff, 0xff, 0x7f}} {
		if d, ok := decodeDigest(bad); ok {
			t.Errorf("%x is %+v", bad, d)
		}
	}
}

func FuzzDigest(f *testing.F) {
	f.Add(Digest{Version: "v1.36.3+shoal", Pods: 7, Pressure: []Pressure{DiskPressure}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		d, ok := decodeDigest(b)
		if !ok {
			return
		}
		if again, ok := decodeDigest(d.encode()); !ok || !reflect.DeepEqual(again, d) {
			t.Errorf("%+v became %+v, %v", d, again, ok)
		}
	})
}

// A view tells what the others answer to probes, and whose word their state is.
func TestViewTellsWhatOthersAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a, b, c := f.start(0), f.start(1), f.start(2)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 3 && len(c.Members()) == 3 })
		b.SetDigest(Digest{Version: "v7", Pods: 12, Pressure: []Pressure{DiskPressure}})
		a.SetDigest(Digest{Version: "v8"})
		of := func(g *Group, name string) (found View) {
			for _, v := range g.View() {
				if v.Name == name {
					found = v
				}
			}
			return found
		}
		f.wait("the answer to a probe", time.Minute, func() bool { return of(a, "m1").Version != "" })
		if v := of(a, "m1"); v.Version != "v7" || *v.Pods != 12 || len(v.Pressure) != 1 || v.SaidBy != "m1" {
			t.Errorf("%+v", v)
		}
		if v := of(a, "m0"); v.Version != "v8" || *v.Pods != 0 || !v.Local || v.SaidBy != "m0" {
			t.Errorf("itself: %+v", v)
		}
		if v := of(a, "m2"); v.Pods != nil || v.Version != "" {
			t.Errorf("one that says nothing: %+v", v)
		}
		f.stop["m1"]()
		for _, g := range []*Group{a, c} {
			f.wait("death", time.Minute, func() bool { return of(g, "m1").State == StateDead })
			if v := of(g, "m1"); v.Version != "" || v.SaidBy != "m0" && v.SaidBy != "m2" {
				t.Errorf("the dead: %+v", v)
			}
		}
	})
}

// Who accuses is one that is known, of one that is.
func TestAccusers(t *testing.T) {
	g := &Group{cfg: Config{Name: "a"}, accusers: map[string]string{},
		members: map[string]Member{"b": {Name: "b", State: StateDead}, "c": {Name: "c"}}}
	dead := Member{Name: "b", State: StateDead}
	g.noteAccuser(accusation{Node: "b", From: "nobody"})
	if who := g.saidBy(dead); who != "a" {
		t.Errorf("%q", who)
	}
	g.noteAccuser(accusation{Node: "b", From: "c"})
	g.noteAccuser(accusation{Node: "x", From: "c"})
	if who := g.saidBy(dead); who != "c" || len(g.accusers) != 1 {
		t.Errorf("%q, %v", who, g.accusers)
	}
}
