package gossip

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoal-project/shoal/agent/gossip/gossiptest"
)

// fleet runs members in one bubble; m0 is the join address of all.
type fleet struct {
	t    *testing.T
	net  *gossiptest.Network
	ca   *testAuthority
	ids  map[string]*Identity // a member's key outlives it
	keys *Keyring
	wg   sync.WaitGroup
	stop map[string]context.CancelFunc
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

const testKey = "0123456789abcdef0123456789abcdef"

func newFleet(t *testing.T) *fleet {
	keys, err := NewKeyring([]byte(testKey))
	if err != nil {
		t.Fatal(err)
	}
	return &fleet{t: t, net: gossiptest.New(), ca: newAuthority(t), ids: map[string]*Identity{}, keys: keys,
		stop: map[string]context.CancelFunc{}}
}

// start starts the member with that number; change, if given, has the last word
// on its configuration.
func (f *fleet) start(i int, change ...func(*Config)) *Group {
	f.t.Helper()
	name := fmt.Sprintf("m%d", i)
	if f.ids[name] == nil {
		f.ids[name], _ = f.ca.identity(name)
	}
	cfg := Config{
		Name: name, Join: []string{"10.0.0.1"}, Keys: f.keys, Trust: f.ca.trust, Identity: f.ids[name],
		Grant: f.ca.grant(name, f.ids[name], func(g *Grant) {
			g.PodCIDRs = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i))}
		}),
		Meta: Meta{Role: RoleAgent, Zone: name}, Log: quiet,
		Transport: f.net.Transport(name, fmt.Sprintf("10.0.0.%d", i+1)),
	}
	for _, c := range change {
		c(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop[name] = cancel
	f.wg.Go(func() { _ = g.Run(ctx) })
	return g
}

func (f *fleet) close() {
	for _, s := range f.stop {
		s()
	}
	f.wg.Wait()
	time.Sleep(time.Minute) // memberlist's own goroutines end with their timers
}

func stateIn(g *Group, name string) State {
	for _, m := range g.Members() {
		if m.Name == name {
			return m.State
		}
	}
	return "unknown"
}

// Members that join at the same moment may miss each other's news; then they know
// each other by the library's exchange of all states every 30 s, so that the
// tests wait a minute for "join".

// wait returns how long it took until cond held, failing after limit.
func (f *fleet) wait(what string, limit time.Duration, cond func() bool) time.Duration {
	f.t.Helper()
	start := time.Now()
	for !cond() {
		if time.Since(start) > limit {
			f.t.Fatalf("%s: not within %v", what, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(start)
}

// Mostly it is known after three seconds. Each member probes all others in turns,
// in an order of its own, so that of many one may be left out for some rounds:
// in twelve, six seconds at most.
func TestDeathIsKnownInSeconds(t *testing.T) {
	for _, size := range []int{2, 3, 5, 12} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				defer f.close()
				var all []*Group
				for i := range size {
					all = append(all, f.start(i))
				}
				for _, g := range all {
					f.wait("join", time.Minute, func() bool { return len(g.Members()) == size })
				}
				time.Sleep(time.Minute)
				changed := all[0].Changed()
				last := fmt.Sprintf("m%d", size-1)
				f.stop[last]()
				for _, g := range all[:size-1] {
					f.wait("death noticed", 12*time.Second, func() bool { return stateIn(g, last) == StateDead })
				}
				select {
				case <-changed:
				default:
					t.Error("subscriber was not told")
				}
			})
		})
	}
}

func TestPlannedEndIsNotADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a, b := f.start(0), f.start(1)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 2 })
		if err := b.UpdateMeta(func(m *Meta) { m.Leaving = true }); err != nil {
			t.Fatal(err)
		}
		f.wait("leaving seen", 3*time.Second, func() bool { return stateIn(a, "m1") == StateLeaving })
		if err := b.Leave(); err != nil {
			t.Fatal(err)
		}
		f.wait("left seen", 3*time.Second, func() bool { return stateIn(a, "m1") == StateLeft })
		f.stop["m1"]()
		f.start(1)
		f.wait("back", 3*time.Second, func() bool { return stateIn(a, "m1") == StateAlive })
	})
}

func TestRejoinAfterLongPartitionAndRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a, b, c := f.start(0), f.start(1), f.start(2)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 3 && len(b.Members()) == 3 })
		f.net.Cut("m0", "m2", true)
		f.net.Cut("m1", "m2", true)
		f.wait("cut off", 10*time.Second,
			func() bool { return stateIn(c, "m0") == StateDead && stateIn(b, "m2") == StateDead })
		time.Sleep(time.Hour)
		f.net.Cut("m0", "m2", false)
		f.net.Cut("m1", "m2", false)
		f.wait("healed", time.Minute,
			func() bool { return stateIn(a, "m2") == StateAlive && stateIn(c, "m1") == StateAlive })

		f.stop["m0"]()
		f.stop["m1"]()
		f.wait("alone", 10*time.Second, func() bool { return stateIn(c, "m0") == StateDead })
		time.Sleep(time.Hour)
		a, b = f.start(0), f.start(1)
		f.wait("all back", time.Minute, func() bool {
			return stateIn(a, "m2") == StateAlive && stateIn(b, "m2") == StateAlive && stateIn(c, "m0") == StateAlive
		})
	})
}

func TestStarvedMemberIsNotDeclaredDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		a, b := f.start(0), f.start(1)
		f.wait("join", time.Minute, func() bool { return len(a.Members()) == 2 })
		for range 10 { // a second and a half of silence at a time
			f.net.Cut("m0", "m1", true)
			time.Sleep(1500 * time.Millisecond)
			f.net.Cut("m0", "m1", false)
			time.Sleep(2 * time.Second)
			if s, u := stateIn(a, "m1"), stateIn(b, "m0"); s != StateAlive || u != StateAlive {
				t.Fatalf("got %s and %s", s, u)
			}
		}
	})
}

func TestRealSockets(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	a, err := New(Config{Name: "a", BindAddr: "127.0.0.1", BindPort: -1, Meta: Meta{Role: RoleCoordinator}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := New(
		Config{Name: "b", BindAddr: "127.0.0.1", BindPort: -1, Meta: Meta{Role: RoleAgent}, Join: []string{a.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	changed := a.Changed()
	wg.Go(func() { _ = a.Run(ctx) })
	wg.Go(func() { _ = b.Run(ctx) })
	for deadline := time.After(time.Minute); stateIn(a, "b") != StateAlive; {
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("b was never seen")
		}
	}
}
