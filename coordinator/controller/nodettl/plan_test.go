package nodettl

import "testing"

// A cluster grows and shrinks again: each step is taken later on the way down.
func TestSize(t *testing.T) {
	s := &size{}
	type change struct{ nodes, seconds int }
	var got []change
	count := func(n int) {
		if s.add(n) {
			got = append(got, change{s.nodes, s.seconds()})
		}
	}
	for range 2500 {
		count(1)
	}
	for range 2500 {
		count(-1)
	}
	want := []change{{101, 15}, {501, 30}, {1001, 60}, {2001, 300}, {1799, 60}, {899, 30}, {449, 15}, {89, 0}}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("change %d: got %v, want %v", i, got[i], want[i])
		}
	}
}
