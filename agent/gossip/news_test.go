package gossip

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

func aliveMessage(name string, incarnation uint32) []byte {
	b := []byte{}
	a := aliveBody{Incarnation: incarnation, Node: name, Addr: []byte{192, 0, 2, 7}, Port: 7946, Vsn: versions}
	if err := codec.NewEncoderBytes(&b, &handle).Encode(&a); err != nil {
		panic(err)
	}
	return append([]byte{msgAlive}, b...)
}

// What a newcomer learned at once is not passed on; what came later is, and whatever
// else is in a packet.
func TestStripsOldNews(t *testing.T) {
	now := time.Now()
	old, risen, other := aliveMessage("a", 3), aliveMessage("a", 4), aliveMessage("b", 1)
	ping := []byte{msgPing, 1, 2}
	var o oldNews
	if got := o.strip(old, now); !slices.Equal(got, old) {
		t.Error("stripped before anything was learned")
	}
	o.learn([]stateBody{{Name: "a", Incarnation: 3}, {Name: "b", Incarnation: 1, State: 2}}, now)
	for _, c := range []struct {
		what       string
		give, want []byte
	}{
		{"old alone", old, nil},
		{"newer", risen, risen},
		{"called dead then", other, other},
		{"a ping", ping, ping},
		{"ping and old", compound([][]byte{ping, old}), ping},
		{"old and newer", compound([][]byte{old, risen, other}), compound([][]byte{risen, other})},
		{"with a sum before", append([]byte{msgCRC, 0, 0, 0, 0}, compound([][]byte{old, old})...), nil},
		{"nothing to strip", compound([][]byte{risen, ping}), compound([][]byte{risen, ping})},
		{"malformed", []byte{msgCompound, 9}, []byte{msgCompound, 9}},
	} {
		if got := o.strip(c.give, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %x, want %x", c.what, got, c.want)
		}
	}
	if got := o.strip(old, now.Add(oldNewsFor+1)); !slices.Equal(got, old) {
		t.Error("stripped for ever")
	}
}

// Of two exchanges at once only that is old which both tell.
func TestOldNewsOfTwoGroups(t *testing.T) {
	now := time.Now()
	var o oldNews
	o.learn([]stateBody{{Name: "a", Incarnation: 3}, {Name: "b", Incarnation: 5}}, now)
	o.learn([]stateBody{{Name: "b", Incarnation: 4}, {Name: "c", Incarnation: 1}}, now)
	for _, c := range []struct {
		message []byte
		old     bool
	}{
		{aliveMessage("a", 3), false},
		{aliveMessage("b", 4), true},
		{aliveMessage("b", 5), false},
		{aliveMessage("c", 1), false},
	} {
		if got := o.strip(c.message, now) == nil; got != c.old {
			t.Errorf("%q: old %v", c.message, got)
		}
	}
	later := now.Add(oldNewsFor + 1)
	o.learn([]stateBody{{Name: "c", Incarnation: 1}}, later)
	if o.strip(aliveMessage("c", 1), later) != nil {
		t.Error("what was learned long ago counts")
	}
}

// A newcomer passes nothing on that all know; and two groups that a newcomer brings
// together learn all of each other.
func TestNewcomerJoinsTwoGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		defer f.close()
		own := func(at ...string) func(*Config) { return func(c *Config) { c.Join = at } }
		all := []*Group{f.start(0, own()), f.start(1, own("10.0.0.1")), f.start(2, own()), f.start(3, own("10.0.0.3"))}
		time.Sleep(10 * time.Second)
		if n := len(all[0].Members()); n != 2 {
			t.Fatalf("%d members before", n)
		}
		all = append(all, f.start(4, own("10.0.0.1", "10.0.0.3")))
		for i, g := range all {
			f.wait(fmt.Sprintf("m%d knows all", i), 5*time.Second, func() bool { return len(g.Members()) == 5 })
		}
	})
}

// The same message counts once in a while, and whenever the member is not up.
func TestRepeatsAreNotLookedAtAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t)
		g, words := alone(t, a)
		m := aliveBody{Incarnation: 1, Node: "m", Addr: []byte{192, 0, 2, 7}, Port: 7946, Meta: words, Vsn: versions}
		var body []byte
		if err := codec.NewEncoderBytes(&body, &handle).Encode(&m); err != nil {
			t.Fatal(err)
		}
		packet := append([]byte{msgAlive}, body...)
		passed := func() (n int) {
			g.filterPacket(packet, "", func([]byte) { n++ })
			return n
		}
		if first, again := passed(), passed(); first != 1 || again != 1 {
			t.Error("a member that is not up is not heard again")
		}
		g.mu.Lock()
		g.members["m"] = Member{Name: "m", State: StateAlive}
		g.mu.Unlock()
		if passed() != 0 {
			t.Error("a repeated message is passed on")
		}
		time.Sleep(repeatFor)
		if first, again := passed(), passed(); first != 1 || again != 0 {
			t.Error("after a while it passes, once")
		}
		g.mu.Lock()
		g.members["m"] = Member{Name: "m", State: StateDead}
		g.mu.Unlock()
		if passed() != 1 {
			t.Error("a member that is called dead is not heard")
		}
	})
	var r repeats
	for i := range 2 * maxRepeats {
		r.note([]byte(fmt.Sprint(i)), "m", time.Now())
	}
	if len(r.seen) > maxRepeats {
		t.Errorf("%d kept", len(r.seen))
	}
}

// Of a large group few call a lost member; of a small one all.
func TestFewCallTheLost(t *testing.T) {
	calls := func(size int) (called int) {
		g := &Group{members: map[string]Member{}}
		for i := range size {
			state := StateAlive
			if i == 0 {
				state = StateDead
			}
			ip := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			g.members[fmt.Sprint(i)] = Member{State: state, Addr: netip.AddrPortFrom(ip, 1)}
		}
		for range 1000 {
			j := joiner{reach: map[string]bool{}}
			if list, others := j.targets(g); len(list) > 0 {
				called++
			} else if !others {
				t.Fatal("forgot the lost one")
			}
		}
		return called
	}
	if n := calls(6); n != 1000 {
		t.Errorf("five call %d times of 1000", n)
	}
	if n := calls(481); n == 0 || n > 100 {
		t.Errorf("each of 480 calls %d times of 1000, want some 25", n)
	}
}
