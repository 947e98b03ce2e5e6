package announce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/segment"
)

// world is nodes on one network, in time that the test moves: what they say is heard
// soon, what they believe of each other is late by as much as the gossip may be.
type world struct {
	t     *testing.T
	now   time.Time
	claim Claim
	nodes []*simulated
	log   []string

	doubled time.Duration // how long those who ask are told of two machines, at a stretch
	longest time.Duration

	sent []message // not heard yet
}

// message is a claim or a question on its way.
type message struct {
	due      time.Time
	from, to *simulated
	asks     bool
}

// send has a message heard after up to 40 ms.
func (w *world) send(from, to *simulated, asks bool) {
	if reach(from, to) && to.agent {
		late := time.Duration(rand.IntN(40)) * time.Millisecond
		w.sent = append(w.sent, message{w.now.Add(late), from, to, asks})
	}
}

// deliver has heard what is due.
func (w *world) deliver() {
	due := slices.DeleteFunc(slices.Clone(w.sent), func(m message) bool { return m.due.After(w.now) })
	w.sent = slices.DeleteFunc(w.sent, func(m message) bool { return !m.due.After(w.now) })
	for _, m := range due {
		switch {
		case !m.to.agent || !m.to.power:
		case !m.asks:
			w.hears(m.to, m.from.mac)
		default:
			m.to.seat.deniedBy(m.from.mac, w.now)
			if m.to.seat.owner {
				w.send(m.to, m.from, false)
			}
		}
	}
}

type simulated struct {
	name    string
	mac     segment.MAC
	power   bool // the machine runs
	agent   bool // and its agent
	cut     bool // from the network
	leaving bool
	begun   time.Time
	beaten  time.Time
	contact time.Time
	seat    seat
	told    action // what those who ask are told
	claims  map[segment.MAC]time.Time
	machine map[segment.MAC]time.Time
	view    map[string]bool // who is believed to be up
	news    map[string]time.Time
}

func newWorld(t *testing.T, n int) *world {
	w := &world{t: t, now: time.Unix(1e9, 0), claim: Claim{Addr: netip.MustParseAddr("192.0.2.1")}}
	for i := range n {
		s := &simulated{name: fmt.Sprintf("n%d", i), mac: segment.MAC{2, 0, 0, 0, 0, byte(i)}}
		w.nodes = append(w.nodes, s)
	}
	for _, s := range w.nodes {
		w.boot(s)
	}
	return w
}

func (w *world) boot(s *simulated) {
	s.power, s.cut, s.leaving = true, false, false
	w.startAgent(s)
}

func (w *world) startAgent(s *simulated) {
	s.agent, s.begun, s.contact = true, w.now, w.now
	s.seat = seat{}
	s.claims, s.machine = map[segment.MAC]time.Time{}, map[segment.MAC]time.Time{}
	s.view, s.news = map[string]bool{}, map[string]time.Time{}
	for _, o := range w.nodes {
		s.view[o.name] = true
	}
}

func (w *world) node(mac segment.MAC) *simulated { return w.nodes[mac[5]] }

// reach tells whether what one says on the network is heard by another.
func reach(a, b *simulated) bool { return a != b && a.power && b.power && !a.cut && !b.cut }

// detect is how long the gossip takes until a death is known: 3 to 4.5 s, or the news of
// one that is back or leaves.
func (w *world) believe(s *simulated) {
	for _, o := range w.nodes {
		if o == s {
			continue
		}
		up := reach(s, o) && o.agent && !o.leaving
		if up == s.view[o.name] {
			delete(s.news, o.name)
			continue
		}
		due, ok := s.news[o.name]
		if !ok {
			delay := time.Duration(rand.IntN(700)) * time.Millisecond
			if !up && !o.leaving {
				delay = 3*time.Second + time.Duration(rand.IntN(1500))*time.Millisecond
			}
			due = w.now.Add(delay)
			s.news[o.name] = due
		}
		if !w.now.Before(due) {
			s.view[o.name] = up
			delete(s.news, o.name)
		}
	}
}

func (w *world) situation(s *simulated) situation {
	var all []Candidate
	up := 0
	for _, o := range w.nodes {
		if o == s && !s.leaving || o != s && s.view[o.name] {
			all = append(all, Candidate{o.name, ParseRanges("192.0.2.0/24")})
		}
		if o != s && s.view[o.name] {
			up++
		}
		if reach(s, o) {
			s.contact = w.now // the kernel of any machine answers
		}
	}
	return situation{
		now: w.now, rank: slices.Index(Ranking(w.claim, all), s.name), mine: s.mac,
		fenced:  len(w.nodes) > 2 && w.now.Sub(s.contact) > lease,
		agreed:  up > 0,
		heard:   func(m segment.MAC) time.Time { return s.claims[m] },
		machine: func(m segment.MAC) time.Time { return s.machine[m] },
	}
}

// perform does what a step wants done, and what follows from it.
func (w *world) perform(s *simulated, a action) {
	s.told = a
	if a.took {
		w.tell("%s takes it", s.name)
	}
	if a.dropped != "" {
		w.tell("%s: %s", s.name, a.dropped)
	}
	if a.machine {
		if o := w.node(s.seat.by); reach(s, o) {
			s.machine[o.mac] = w.now
		}
	}
	if a.claim {
		s.beaten = w.now
	}
	for _, o := range w.nodes {
		if a.ask {
			w.send(s, o, true)
		}
		if a.claim {
			w.send(s, o, false)
		}
	}
}

func (w *world) hears(s *simulated, mac segment.MAC) {
	a := s.seat.claimedBy(mac, w.situation(s))
	s.claims[mac] = w.now
	w.perform(s, a)
}

// step is 20 ms.
func (w *world) step() {
	w.now = w.now.Add(20 * time.Millisecond)
	w.deliver()
	for i, s := range w.nodes {
		if !s.power || !s.agent {
			continue
		}
		w.believe(s)
		if int(w.now.UnixMilli()/20)%5 != i%5 { // each has its own tick
			continue
		}
		w.perform(s, s.seat.step(w.situation(s)))
		if s.seat.owner && w.now.Sub(s.beaten) >= beat {
			w.perform(s, action{claim: true, answer: s.mac, answers: true})
		}
	}
	told := map[segment.MAC]bool{} // also of a node for another's machine
	for _, s := range w.nodes {
		switch {
		case !s.power || !s.agent || s.cut:
		case s.seat.owner:
			told[s.mac] = true
		case s.told.answers:
			told[s.told.answer] = true
		}
	}
	if len(told) > 1 {
		w.doubled += 20 * time.Millisecond
		w.longest = max(w.longest, w.doubled)
	} else {
		w.doubled = 0
	}
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.step()
	}
}

func (w *world) tell(format string, args ...any) {
	w.log = append(w.log, w.now.Format("04:05.00 ")+fmt.Sprintf(format, args...))
}

// owner is who answers on the network.
func (w *world) owner() *simulated {
	for _, s := range w.nodes {
		if s.power && s.agent && !s.cut && s.seat.owner {
			return s
		}
	}
	return nil
}

// until runs until ok, and returns how long that took.
func (w *world) until(limit time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	begin := w.now
	for !ok() {
		if w.now.Sub(begin) > limit {
			w.t.Fatalf("not within %v: %s\n%v", limit, what, w.log)
		}
		w.step()
	}
	return w.now.Sub(begin)
}

// failovers is how many there are; SHOAL_FAILOVERS=200 for the record.
func failovers() int {
	if n, err := strconv.Atoi(os.Getenv("SHOAL_FAILOVERS")); err == nil {
		return n
	}
	return 50
}

// TestPowerCuts: an owner's machine loses its power, again and again. Another takes the
// address in less than 3 s, and no two are owners for longer than a claim takes.
func TestPowerCuts(t *testing.T) {
	for _, n := range []int{2, 3, 4, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, n)
			var worst time.Duration
			for range failovers() {
				w.run(5*time.Second + time.Duration(rand.IntN(1000))*time.Millisecond)
				owner := w.owner()
				if owner == nil {
					t.Fatalf("nobody has it\n%v", w.log)
				}
				owner.power = false
				w.tell("%s loses its power", owner.name)
				worst = max(worst, w.until(5*time.Second, "another owner", func() bool { return w.owner() != nil }))
				w.run(time.Duration(rand.IntN(8000)) * time.Millisecond)
				w.boot(owner)
				w.tell("%s is back", owner.name)
				w.until(10*time.Second, "it has it again", func() bool { return w.owner() == owner })
			}
			t.Logf("the slowest of %d took %v, two owners for %v at most", failovers(), worst, w.longest)
			if worst > 3*time.Second || w.longest > tick {
				t.Errorf("the slowest took %v, two owners for %v\n%v", worst, w.longest, w.log)
			}
		})
	}
}

// TestCutOff: an owner whose network is cut stops before another begins, where more than
// two machines are there to tell who is cut off.
func TestCutOff(t *testing.T) {
	for range failovers() {
		w := newWorld(t, 3)
		w.run(5*time.Second + time.Duration(rand.IntN(1000))*time.Millisecond)
		owner := w.owner()
		owner.cut = true
		stopped := w.until(5*time.Second, "it stops", func() bool { return !owner.seat.owner })
		if w.owner() != nil {
			t.Fatalf("another began before it stopped\n%v", w.log)
		}
		if stopped > lease+2*tick {
			t.Errorf("it stopped after %v", stopped)
		}
		w.until(3*time.Second, "another begins", func() bool { return w.owner() != nil })
		owner.cut = false
		w.until(10*time.Second, "it has it again", func() bool { return w.owner() == owner })
		if w.longest > tick {
			t.Errorf("two owners for %v\n%v", w.longest, w.log)
		}
	}
}

// TestPartitionHeals: of two machines, none can tell which is cut off, and both go on. When
// they hear each other again, one is left within a beat.
func TestPartitionHeals(t *testing.T) {
	w := newWorld(t, 2)
	w.run(5 * time.Second)
	w.nodes[0].cut = true
	w.run(10 * time.Second)
	if !w.nodes[0].seat.owner || !w.nodes[1].seat.owner {
		t.Fatalf("one of two gave up\n%v", w.log)
	}
	w.nodes[0].cut = false
	w.run(10 * time.Second)
	if w.longest > beat+tick {
		t.Errorf("two owners for %v\n%v", w.longest, w.log)
	}
}

// TestRestart: an agent that is away for less than restartPatience keeps its address, and
// others answer for it meanwhile; one that does not come back loses it.
func TestRestart(t *testing.T) {
	w := newWorld(t, 3)
	w.run(5 * time.Second)
	owner := w.owner()
	owner.agent = false
	w.run(8 * time.Second)
	if o := w.owner(); o != nil {
		t.Fatalf("%s took it\n%v", o.name, w.log)
	}
	for _, s := range w.nodes {
		if s == owner {
			continue
		}
		if a := s.seat.step(w.situation(s)); !a.answers || a.answer != owner.mac {
			t.Errorf("%s does not answer for it", s.name)
		}
	}
	w.startAgent(owner)
	w.until(time.Second, "it has it again", func() bool { return w.owner() == owner })
	begin := w.now
	w.until(20*time.Second, "some time has passed", func() bool {
		if w.owner() != owner {
			t.Fatalf("it lost it again\n%v", w.log)
		}
		return w.now.Sub(begin) > 15*time.Second
	})
	owner.agent = false
	taken := w.until(restartPatience+2*time.Second, "another has it", func() bool { return w.owner() != nil })
	if taken < restartPatience-beat {
		t.Errorf("taken after %v", taken)
	}
}

// TestHandsOver: a node that leaves goes on until another has its address.
func TestHandsOver(t *testing.T) {
	for range failovers() {
		w := newWorld(t, 4)
		w.run(5*time.Second + time.Duration(rand.IntN(1000))*time.Millisecond)
		owner := w.owner()
		owner.leaving = true
		w.until(3*time.Second, "another has it", func() bool {
			if w.owner() == nil {
				t.Fatalf("nobody has it\n%v", w.log)
			}
			return !owner.seat.owner
		})
		if w.longest > tick {
			t.Errorf("two owners for %v\n%v", w.longest, w.log)
		}
	}
}

// TestAnyFaults: whatever fails in whatever order, two owners that hear each other are one
// within a beat, and in the end the first has the address.
func TestAnyFaults(t *testing.T) {
	for range 20 {
		w := newWorld(t, 2+rand.IntN(5))
		for range 40 {
			s := w.nodes[rand.IntN(len(w.nodes))]
			switch rand.IntN(6) {
			case 0:
				s.power = false
			case 1:
				w.boot(s)
			case 2:
				s.agent = false
			case 3:
				if s.power {
					w.startAgent(s)
				}
			case 4:
				s.cut = !s.cut
			case 5:
				s.leaving = !s.leaving
			}
			w.tell("fault of %s", s.name)
			w.run(time.Duration(rand.IntN(6000)) * time.Millisecond)
		}
		if w.longest > beat+2*tick {
			t.Fatalf("two owners for %v\n%v", w.longest, w.log)
		}
		for _, s := range w.nodes {
			w.boot(s)
		}
		w.run(40 * time.Second)
		if o := w.owner(); o == nil || o.name != Ranking(w.claim, w.candidates())[0] {
			t.Fatalf("the first does not have it in the end\n%v", w.log)
		}
	}
}

func (w *world) candidates() (all []Candidate) {
	for _, o := range w.nodes {
		all = append(all, Candidate{o.name, ParseRanges("192.0.2.0/24")})
	}
	return all
}

// TestConflict: of two that are first in their own eyes the one with the lower MAC stays; a
// claim that was on its way when this node took the address is none.
func TestConflict(t *testing.T) {
	begin := time.Unix(1e9, 0)
	mac := func(n byte) segment.MAC { return segment.MAC{2, 0, 0, 0, 0, n} }
	never := func(segment.MAC) time.Time { return time.Time{} }
	for _, tt := range []struct {
		name  string
		rank  int
		mine  byte
		after time.Duration
		stays bool
		claim bool
	}{
		{"lower", 0, 1, time.Minute, true, true},
		{"higher", 0, 3, time.Minute, false, false},
		{"higher_but_in_flight", 0, 3, inFlight / 2, true, false},
		{"not_the_first", 1, 1, time.Minute, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := seat{owner: true, since: begin}
			a := s.claimedBy(mac(2), situation{now: begin.Add(tt.after), rank: tt.rank, mine: mac(tt.mine), heard: never})
			if s.owner != tt.stays || a.claim != tt.claim || (a.dropped != "") == tt.stays {
				t.Errorf("stays %v, %+v", s.owner, a)
			}
		})
	}
}

// TestDenied: who had an address and asks for it has it no more, and nobody waits for its
// machine.
func TestDenied(t *testing.T) {
	now := time.Unix(1e9, 0)
	other := segment.MAC{2, 0, 0, 0, 0, 2}
	heard := now
	in := func() situation {
		at := func(segment.MAC) time.Time { return heard }
		alive := func(segment.MAC) time.Time { return now }
		return situation{now: now, mine: segment.MAC{2, 0, 0, 0, 0, 1}, agreed: true, heard: at, machine: alive}
	}
	var s seat
	s.step(in())
	s.claimedBy(other, in())
	s.deniedBy(segment.MAC{2, 0, 0, 0, 0, 3}, now)
	for range 20 { // its machine answers, as its agent may restart
		now = now.Add(tick)
		if a := s.step(in()); s.owner || a.answers && a.answer != other {
			t.Fatalf("taken from a machine that answers: %+v", a)
		}
	}
	s.deniedBy(other, now)
	for range 10 {
		now = now.Add(tick)
		s.step(in())
	}
	if !s.owner {
		t.Error("not taken from one that said that it has it not")
	}
}
