package stats

import (
	"testing"
	"time"
)

func TestRates(t *testing.T) {
	t0 := time.Unix(1000, 0)
	var r rates
	for _, c := range []struct {
		name    string
		began   time.Time
		seconds int
		nanos   uint64
		want    uint64
		known   bool
	}{
		{"since_the_beginning", t0.Add(-10 * time.Second), 0, 100, 10, true},
		{"still", t0.Add(-10 * time.Second), 5, 400, 26, true}, // 400 of 15 s
		{"since_the_first", t0.Add(-10 * time.Second), 20, 2100, 100, true},
		{"since_the_first_still", t0.Add(-10 * time.Second), 25, 5100, 200, true},
		{"since_the_one_before", t0.Add(-10 * time.Second), 40, 6100, 200, true}, // 4000 of 20 s
	} {
		got, ok := r.of("a", c.began, reading{t0.Add(time.Duration(c.seconds) * time.Second), c.nanos})
		if got != c.want || ok != c.known {
			t.Errorf("%s: %d, %t, want %d, %t", c.name, got, ok, c.want, c.known)
		}
	}
	if got, ok := r.of("a", t0.Add(40*time.Second), reading{t0.Add(50 * time.Second), 70}); got != 7 || !ok {
		t.Errorf("began anew: %d, %t", got, ok)
	}
	if _, ok := r.of("b", time.Time{}, reading{t0, 5}); ok {
		t.Error("the rate of one reading is known")
	}
	r.keep(map[string]bool{"b": true})
	if _, ok := r.last["a"]; ok || len(r.last) != 1 {
		t.Errorf("remembered: %v", r.last)
	}
}
