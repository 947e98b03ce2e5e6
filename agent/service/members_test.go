package service

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
)

// group is a gossip that says what it is told to.
type group struct {
	members []gossip.Member
	changed chan struct{}
}

func (g *group) Members() []gossip.Member { return g.members }
func (g *group) Changed() <-chan struct{} { return g.changed }

// TestFollowMembers: nodes that are dead or leave get no traffic, those of the last run
// keep it while they may yet be heard, coordinators do not count, and the addresses of nodes that left are free again.
func TestFollowMembers(t *testing.T) {
	ip := netip.MustParseAddr
	member := func(name string, role gossip.Role, state gossip.State, addr string) gossip.Member {
		return gossip.Member{Name: name, Meta: gossip.Meta{Role: role}, State: state, NodeIPs: []netip.Addr{ip(addr)}}
	}
	synctest.Test(t, func(t *testing.T) {
		g := &group{changed: make(chan struct{}, 1), members: []gossip.Member{
			member("a", gossip.RoleAgent, gossip.StateAlive, "192.0.2.1"),
			member("b", gossip.RoleAgent, gossip.StateDead, "192.0.2.2"),
			member("c", gossip.RoleAgent, gossip.StateLeaving, "192.0.2.3"),
			member("d", gossip.RoleAgent, gossip.StateLeft, "192.0.2.4"),
			member("e", gossip.RoleCoordinator, gossip.StateDead, "192.0.2.5"),
			member("f", gossip.RoleAgent, gossip.StateUnheard, "192.0.2.6"),
		}}
		s := NewSource(Config{Node: "a"})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.FollowMembers(ctx, g, []netip.Addr{ip("192.0.2.9")}) }()
		synctest.Wait()
		if d := s.view.Down; len(d) != 3 || !d["b"] || !d["c"] || !d["d"] {
			t.Errorf("down: %v", d)
		}
		if n := s.view.Nodes; len(n) != 6 || !n[ip("192.0.2.9")] || n[ip("192.0.2.4")] {
			t.Errorf("nodes: %v", n)
		}
		g.members = g.members[:1]
		g.changed <- struct{}{}
		synctest.Wait()
		if len(s.view.Down) != 0 || len(s.view.Nodes) != 2 {
			t.Errorf("afterwards: %v, %v", s.view.Down, s.view.Nodes)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestObjectsWait: containers wait a moment for services, and start without any
// only where nobody could tell.
func TestObjectsWait(t *testing.T) {
	for _, cutOff := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := NewSource(Config{Node: "a"})
			began := time.Now()
			list, known := s.Objects(t.Context(), func() bool { return cutOff })
			if list != nil || known != cutOff || time.Since(began) != objectsWait {
				t.Errorf("cut off %v: %v, %v after %v", cutOff, list, known, time.Since(began))
			}
		})
	}
}
