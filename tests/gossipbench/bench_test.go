package main

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
)

// TestShortForm: a small group finds itself, one death and one return are
// measured, and lost packets end.
func TestShortForm(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out, 4, 1, 0.01, []string{"deaths", "loss"}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"4 members know each other", "dead: last member knows", "back: last member knows",
		"20 % of packets lost: settled"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
	for _, bad := range [][]string{{"sleep"}, {""}} {
		if err := run(t.Context(), &out, 4, 1, 0, bad); err == nil {
			t.Errorf("scenario %q is taken", bad)
		}
	}
	if err := run(t.Context(), &out, coordinators, 1, 0, []string{"deaths"}); err == nil {
		t.Error("a group without agents is taken")
	}
}

// Calls about who lives are alarms, also those that were taken back between two
// looks; about who is dead, and about who was never up, they are none.
func TestWatcherJudges(t *testing.T) {
	w := newWatcher(2)
	start := time.Now()
	says := func(name string, state gossip.State, after time.Duration) {
		w.read("a", []gossip.Member{{Name: name, State: state, Since: start.Add(after), Addr: netip.AddrPort{}}})
	}
	w.begin("a")
	says("b", gossip.StateAlive, 0)
	says("b", gossip.StateAlive, 0)
	if got := w.take(); len(got) != 0 {
		t.Errorf("at peace: %v", got)
	}
	w.kill("b", start)
	says("b", gossip.StateDead, time.Second)
	if after, missing := w.times("b", false, start); after["a"] != time.Second || missing != 0 || len(w.take()) != 0 {
		t.Errorf("a death: %v, %d", after, missing)
	}
	says("b", gossip.StateAlive, 2*time.Second)
	w.revive("b")
	says("b", gossip.StateAlive, 3*time.Second) // dead in between
	says("b", gossip.StateDead, 4*time.Second)
	if got := w.take(); len(got) != 2 || got[0].at != start.Add(3*time.Second) || got[1].about != "b" {
		t.Errorf("%v", got)
	}
	if w.complete(1) {
		t.Error("all well, with a dead one")
	}
}

func TestQuantiles(t *testing.T) {
	var s []time.Duration
	for i := range 100 {
		s = append(s, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0.5: 50, 0.9: 90, 0.99: 99, 1: 100, 0: 1} {
		if got := quantile(s, q); got != want {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
	if got := quantile(s[:3], 0.5); got != 2 {
		t.Errorf("of three: %v", got)
	}
}
