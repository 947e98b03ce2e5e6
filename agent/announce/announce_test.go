package announce

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/agent/segment"
	"github.com/shoal-project/shoal/cni/nstest"
)

// cluster is nodes in namespaces on one bridge, whose gossip is this value.
type cluster struct {
	t     *testing.T
	hub   string
	nodes []*node

	mu      sync.Mutex
	members map[string]gossip.Member
}

type node struct {
	*cluster
	name, ns string
	mac      segment.MAC
	changed  chan struct{}
	claims   chan struct{}
	list     []Claim
	a        *Announcer
	leaves   bool
	deaf     bool // it hears nothing by gossip
	stop     func()
	counts   map[string]int
}

func (n *node) Members() (out []gossip.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range n.members {
		m.Local = m.Name == n.name
		out = append(out, m)
	}
	return out
}

func (n *node) Changed() <-chan struct{} { return n.changed }

func (n *node) Heard() time.Time {
	if n.deaf {
		return time.Time{}
	}
	return time.Now()
}

func (n *node) UpdateMeta(change func(*gossip.Meta)) error {
	n.tell(n.name, func(m *gossip.Member) { change(&m.Meta) })
	return nil
}

// tell changes what all know of a member.
func (c *cluster) tell(name string, change func(*gossip.Member)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.members[name]
	change(&m)
	c.members[name] = m
	for _, n := range c.nodes {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}
}

func ip(t *testing.T, ns string, commands ...string) {
	t.Helper()
	for _, c := range commands {
		err := nstest.In(ns, func() error {
			out, err := exec.Command("ip", strings.Fields(c)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("ip %s: %w: %s", c, err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func newCluster(t *testing.T, size int, deaf bool) *cluster {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	c := &cluster{t: t, hub: nstest.New(t), members: map[string]gossip.Member{}}
	ip(t, c.hub, "link add br0 type bridge", "link set br0 up")
	for i := range size {
		n := &node{cluster: c, name: fmt.Sprintf("n%d", i), ns: nstest.New(t), deaf: deaf,
			changed: make(chan struct{}, 1),
			claims:  make(chan struct{}, 1), counts: map[string]int{}}
		port, addr := fmt.Sprintf("p%d", i), fmt.Sprintf("192.0.2.%d", i+1)
		ip(t, c.hub, "link add "+port+" type veth peer name eth0 netns "+n.ns, "link set "+port+" master br0 up")
		ip(t, n.ns, "addr add "+addr+"/24 dev eth0", "link set eth0 up")
		err := nstest.In(n.ns, func() error {
			ifi, err := net.InterfaceByName("eth0")
			if err == nil {
				n.mac = segment.MAC(ifi.HardwareAddr)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		c.members[n.name] = gossip.Member{Name: n.name, State: gossip.StateAlive, Since: time.Now(),
			Addr: netip.AddrPortFrom(netip.MustParseAddr(addr), 7946), Meta: gossip.Meta{Role: gossip.RoleAgent}}
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		n.start()
	}
	return c
}

func (n *node) start() {
	n.a = New(Config{
		Group: n,
		Claims: func() ([]Claim, bool) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.list, true
		},
		ClaimsChanged: n.claims,
		Skip:          func(string) bool { return false },
		Leaves:        func() bool { return n.leaves },
		Count: func(event string) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.counts[event]++
		},
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- nstest.In(n.ns, func() error { return n.a.Run(ctx) }) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(func() { n.stop() })
	n.claims <- struct{}{}
}

func (c *cluster) claim(list ...Claim) {
	for _, n := range c.nodes {
		c.mu.Lock()
		n.list = list
		c.mu.Unlock()
		select {
		case n.claims <- struct{}{}:
		default:
		}
	}
}

// owners are the nodes that have an address.
func (c *cluster) owners() (names []string) {
	for _, n := range c.nodes {
		if n.a.Owned() > 0 {
			names = append(names, n.name)
		}
	}
	return names
}

func (c *cluster) until(what string, limit time.Duration, ok func(owners []string) bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for !ok(c.owners()) {
		if time.Since(begin) > limit {
			c.t.Fatalf("not within %v: %s; owners %v", limit, what, c.owners())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begin)
}

// TestAnnouncers: an address has one owner, which its failure, its leave, its exclusion and
// a change of its backends move; without addresses nobody has a socket or says anything.
func TestAnnouncers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, false)
	addr := netip.MustParseAddr("192.0.2.99")
	any := Claim{Addr: addr}
	order := Ranking(any, nodesOn(3))
	named := func(name string) *node {
		return c.nodes[slices.IndexFunc(c.nodes, func(n *node) bool { return n.name == name })]
	}
	only := func(name string) func([]string) bool {
		return func(owners []string) bool { return slices.Equal(owners, []string{name}) }
	}
	c.claim(any, Claim{Addr: netip.MustParseAddr("198.51.100.1")}) // no node is on that network
	c.until("the first has it", 30*time.Second, only(order[0]))

	first, second := named(order[0]), named(order[1])
	first.a.Exclude(true)
	c.until("the second has it, as the first is excluded", 30*time.Second, only(second.name))
	first.a.Exclude(false)
	c.until("the first has it again", 30*time.Second, only(first.name))

	c.claim(Claim{Addr: addr, Local: true, Nodes: []string{order[2]}})
	c.until("the one with a backend has it", 30*time.Second, only(order[2]))
	c.claim(any)
	c.until("the first has it again", 30*time.Second, only(first.name))

	ip(t, c.hub, "link set p"+first.name[1:]+" down")
	first.stop()
	// The second, or the third where this machine stood still at the second's turn: nobody
	// tells them here that the first is gone, after which the second would have it.
	took := c.until("another has it after the first failed", 30*time.Second, func(owners []string) bool {
		return len(owners) == 1 && owners[0] != first.name
	})
	t.Logf("a failure moved it in %v", took)
	ip(t, c.hub, "link set p"+first.name[1:]+" up")
	first.start()
	c.until("the first is back", 30*time.Second, only(first.name))

	first.leaves = true
	go c.tell(first.name, func(m *gossip.Member) { m.State, m.Leaving = gossip.StateLeaving, true })
	first.stop() // it goes on until it is relieved
	if owners := c.owners(); !only(second.name)(owners) {
		t.Errorf("after the first left: %v", owners)
	}

	c.claim()
	c.until("nobody has it", 2*time.Second, func(owners []string) bool { return owners == nil })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if said := c.members[n.name].Announces; said != "" && n != first {
			t.Errorf("%s still says that it announces in %s", n.name, said)
		}
		n.a.mu.Lock()
		if links := len(n.a.links); links > 0 {
			t.Errorf("%s has %d sockets", n.name, links)
		}
		n.a.mu.Unlock()
		if n.counts[CutOff] > 0 {
			t.Errorf("%s was cut off: %v", n.name, n.counts)
		}
	}
}

// TestCutOffStops: a node whose network is cut stops, where there are three.
func TestCutOffStops(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, true)
	any := Claim{Addr: netip.MustParseAddr("192.0.2.99")}
	c.claim(any)
	first := Ranking(any, nodesOn(3))[0]
	c.until("the first has it", 30*time.Second, func(o []string) bool { return slices.Equal(o, []string{first}) })
	time.Sleep(2 * lease) // what it hears on the network alone keeps it
	if o := c.owners(); !slices.Equal(o, []string{first}) {
		t.Fatalf("owners %v", o)
	}
	ip(t, c.hub, "link set p"+first[1:]+" down")
	stopped := c.until("it stops", 3*time.Second, func(o []string) bool { return !slices.Contains(o, first) })
	t.Logf("it stopped after %v", stopped)
	c.until("another has it", 3*time.Second, func(o []string) bool { return len(o) == 1 })
}

func nodesOn(n int) (out []Candidate) {
	for i := range n {
		out = append(out, Candidate{fmt.Sprintf("n%d", i), ParseRanges("192.0.2.0/24")})
	}
	return out
}
