package gossip

import (
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestPowerCut: all members end at once; three of four nodes come back, without the
// coordinator that the configuration of all names. They find each other, and do not
// think that the fourth lives; when it comes it is alive everywhere.
func TestPowerCut(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		keeps := func(c *Config) { c.File = filepath.Join(dir, c.Name) }
		all := make([]*Group, 5)
		for i := range all {
			all[i] = f.start(i, keeps)
		}
		for _, g := range all {
			f.wait("join", time.Minute, func() bool { return len(g.Members()) == len(all) })
		}
		time.Sleep(2 * rememberAfter)
		for _, stop := range f.stop {
			stop()
		}
		time.Sleep(time.Hour)
		back := []int{1, 2, 3}
		for _, i := range back {
			all[i] = f.start(i, keeps)
			for _, m := range all[i].Members() {
				// One that runs already may have been heard by now.
				heard := m.State == StateAlive && (m.Name == "m1" || m.Name == "m2")
				if !m.Local && (m.State != StateUnheard && !heard || len(m.PodCIDRs) != 1) {
					t.Errorf("m%d begins with %+v", i, m)
				}
			}
		}
		for _, i := range back {
			f.wait("the living are found, and the others dead", 10*time.Second, func() bool {
				return stateIn(all[i], "m1") == StateAlive && stateIn(all[i], "m2") == StateAlive &&
					stateIn(all[i], "m3") == StateAlive && stateIn(all[i], "m0") == StateDead &&
					stateIn(all[i], "m4") == StateDead
			})
		}
		f.start(4, keeps)
		for _, i := range back {
			f.wait("the last one is back", time.Minute, func() bool { return stateIn(all[i], "m4") == StateAlive })
		}
	})
}

// TestNodesThatTheAPIKnowsAreFound: who asks the API finds the nodes that it knows and has
// never heard of, where no address of anybody's configuration leads to the group any more, as
// after a power cut when the first coordinator is gone for good; and one that comes later.
func TestNodesThatTheAPIKnowsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		to := func(addresses ...string) func(*Config) {
			return func(c *Config) { c.Join = addresses }
		}
		nodes := map[string]netip.AddrPort{}
		var mu sync.Mutex
		knows := func(name, address string) {
			mu.Lock()
			defer mu.Unlock()
			nodes[name] = netip.MustParseAddrPort(address)
		}
		coordinator := f.start(5, to("10.0.0.1"), func(c *Config) {
			c.Nodes = func() map[string]netip.AddrPort {
				mu.Lock()
				defer mu.Unlock()
				return maps.Clone(nodes)
			}
		})
		a, b := f.start(1, to("10.0.0.1", "10.0.0.3")), f.start(2, to("10.0.0.1"))
		f.wait("the nodes meet", time.Minute, func() bool { return stateIn(a, "m2") == StateAlive })
		time.Sleep(time.Minute)
		if s := stateIn(coordinator, "m1"); s != "unknown" {
			t.Fatalf("nobody could tell of m1, which is %s", s)
		}
		knows("m1", "10.0.0.2:7946")
		knows("m9", "10.0.0.10:7946") // is off
		f.wait("all know each other", time.Minute, func() bool {
			return stateIn(coordinator, "m1") == StateAlive && stateIn(coordinator, "m2") == StateAlive &&
				stateIn(a, "m5") == StateAlive && stateIn(b, "m5") == StateAlive
		})
		alone := f.start(3, to("10.0.0.1"))
		knows("m3", "10.0.0.4:7946")
		f.wait("one that came later is found", 2*time.Minute, func() bool {
			return stateIn(alone, "m1") == StateAlive && stateIn(b, "m3") == StateAlive
		})
	})
}

// TestRestartForgetsNobody: an agent that starts anew thinks no worse of the others than
// before, neither of those that live nor of those that do not.
func TestRestartForgetsNobody(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		keeps := func(c *Config) { c.File = filepath.Join(dir, c.Name) }
		a, b, c := f.start(0), f.start(1, keeps), f.start(2)
		f.wait("join", time.Minute, func() bool { return len(b.Members()) == 3 && len(c.Members()) == 3 })
		f.start(3)
		f.wait("join", time.Minute, func() bool {
			return stateIn(b, "m3") == StateAlive && stateIn(a, "m3") == StateAlive
		})
		f.stop["m3"]()
		f.wait("death", 12*time.Second, func() bool { return stateIn(b, "m3") == StateDead })
		f.stop["m1"]()
		time.Sleep(time.Second)
		b = f.start(1, keeps)
		bad := func(m Member) bool {
			return !m.Local && (m.State == StateDead) != (m.Name == "m3")
		}
		for range 100 {
			if i := slices.IndexFunc(b.Members(), bad); i >= 0 {
				t.Fatalf("%+v", b.Members()[i])
			}
			time.Sleep(100 * time.Millisecond)
		}
		if s := stateIn(b, "m0"); s != StateAlive {
			t.Errorf("m0 is %s", s)
		}
	})
}

// TestKeptMembersAreChecked: who could write the file makes nobody a member that the
// cluster's authority did not grant that.
func TestKeptMembersAreChecked(t *testing.T) {
	f, other := newAuthority(t), newAuthority(t)
	self, grant := f.identity("self")
	_, good := f.identity("good")
	_, forged := other.identity("forged")
	_, coordinator := f.identity("coordinator", func(g *Grant) { g.Role = RoleCoordinator })
	_, old := f.identity("old", func(g *Grant) { g.Expires = time.Now().Add(-expiredGrace - time.Hour) })
	at := netip.MustParseAddrPort("192.0.2.7:7946")
	long := time.Now().Add(-time.Hour)
	list := []kept{{Name: "good", Addr: at, Grant: good}, {Name: "forged", Addr: at, Grant: forged},
		{Name: "coordinator", Addr: at, Grant: coordinator}, {Name: "old", Addr: at, Grant: old},
		{Name: "other", Addr: at, Grant: good}, {Name: "self", Addr: at, Grant: grant, Gone: &long},
		{Name: "good", Grant: good}, {Addr: at, Grant: good}}
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"whole":    {data, "good self"},
		"cut_off":  {data[:len(data)-1], "self"},
		"no_list":  {[]byte(`{"name": "good"}`), "self"},
		"too_long": {append([]byte(strings.Repeat(" ", maxKeptFile)), data...), "self"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "members.json")
			if err := os.WriteFile(file, tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			g, err := New(Config{Name: "self", BindAddr: "127.0.0.1", BindPort: -1, Trust: f.trust, Identity: self,
				Grant: grant, Meta: Meta{Role: RoleAgent}, File: file, Log: quiet})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			var names []string
			for _, m := range g.Members() {
				names = append(names, m.Name)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("members: %s, want %s", got, tt.want)
			}
		})
	}
}

func FuzzKept(f *testing.F) {
	f.Add([]byte(`[{"name":"a","addr":"192.0.2.1:7946","grant":"AAAA","gone":"2026-01-02T03:04:05Z","left":true}]`))
	f.Add([]byte(`[{"name":"a","addr":"x"}]`))
	g, _ := alone(f, newAuthority(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, k := range decodeKept(b) {
			if k.Name == "" || !k.Addr.IsValid() {
				t.Errorf("%+v", k)
			}
		}
		g.recallAll(b, time.Now())
		if n := len(g.Members()); n > 2 {
			t.Errorf("%d members of nobody's grant", n)
		}
	})
}
