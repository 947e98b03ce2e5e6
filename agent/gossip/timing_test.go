package gossip

import (
	"math"
	"testing"
	"time"
)

// Whatever the size, a suspicion outlasts what a pause of 3 s leaves of it, and
// does not grow beyond what a death may take.
func TestSuspicionFitsTheSize(t *testing.T) {
	for members := range 1001 {
		mult := suspicionMultFor(members)
		// As memberlist computes it.
		lasts := time.Duration(float64(mult) * max(1, math.Log10(float64(max(1, members)))) * float64(probeInterval))
		if lasts < suspicionMin || lasts > 6500*time.Millisecond || members <= 5 && lasts > suspicionMin {
			t.Errorf("%d members: multiplier %d, %v", members, mult, lasts)
		}
	}
}

// The suspicion is that of the members that live.
func TestSuspicionFollowsTheGroup(t *testing.T) {
	g, err := New(Config{Name: "a", BindAddr: "127.0.0.1", BindPort: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if g.conf.SuspicionMult != suspicionMultFor(1) {
		t.Errorf("alone: %d", g.conf.SuspicionMult)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range 400 {
		state := StateAlive
		if i >= 100 {
			state = StateDead
		}
		g.members[string(rune('一'+i))] = Member{State: state}
	}
	g.fitSuspicion(g.up())
	if want := suspicionMultFor(101); g.conf.SuspicionMult != want || want == suspicionMultFor(1) {
		t.Errorf("101 members: %d, want %d", g.conf.SuspicionMult, want)
	}
}
