package gossip

import (
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
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
	for i := range 400 {
		n := &memberlist.Node{Name: fmt.Sprint("m", i), Addr: net.IPv4(10, 0, byte(i>>8), byte(i)), Port: 1}
		g.observe(n, true)
		g.observe(n, true) // an update
		if i >= 100 {
			g.observe(n, false)
			g.observe(n, false)
		}
	}
	if want := suspicionMultFor(101); g.conf.SuspicionMult != want || want == suspicionMultFor(1) {
		t.Errorf("101 members: %d, want %d", g.conf.SuspicionMult, want)
	}
}
