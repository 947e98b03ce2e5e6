//go:build !race

// One goroutine that looks at each state of a model: with the race detector it takes six
// times as long and finds nothing more. `make test-model` runs it.

package fence

import (
	"strings"
	"testing"
)

// The model: one node with one pod of the policy stop, the Lease, two coordinators of
// which each may believe that it leads at any time, and a second node that runs the pod's
// successor as soon as the API has the pod no more. Messages are delayed and lost, the
// agent crashes and comes back, the machine reboots, clocks drift. All states that can be
// reached are visited, in all orders of events: times are relative, so they are finitely
// many. With voters the word of any of them may prolong the hold, and a coordinator has all
// refuse that first: there are one, which stands for one that is among those of both, or two
// of a node that does not crash and is not heard of again. Then one coordinator leads, or
// another begins where it was. Docs/fencing.md says what each rule stands for.
const (
	mLength = 2                            // of a hold, in ticks of true time
	mDrift  = 1                            // ticks that the agent's clock may miss in that time
	mStop   = 1                            // how long after the deadline the keeper may take
	mWait   = mLength + mDrift + mStop + 1 // longer than what is in time

	mRound   = 1                             // ticks in which refusals are asked for and heard
	mRefusal = mRound + mLength + mDrift + 1 // how long a voter refuses, at least
)

// timer runs down by the agent's clock, which may miss lag more ticks.
type timer struct{ left, lag int8 }

type world struct {
	// The node. up: the agent runs. running: so does the pod. hold: what the agent believes
	// and has written for the keeper. bound: when the keeper kills, kill: how long that may
	// still take.
	up, running bool
	hold, bound timer
	kill        int8
	// fenced: the last answer showed a fence. stopped: by which all was stopped.
	// confirmed: the API has confirmed the pod in this term; asked: it is on its way.
	fenced, stopped, confirmed, asked bool
	req                               request
	vote                              vote
	refuses                           [2]int8 // how long each voter says no
	lease                             lease
	leaders                           [2]leader
	// pod: the API has it. successor: another runs elsewhere.
	pod, successor bool
}

// request is a renewal on its way.
type request struct {
	state   int8 // 0 none, 1 sent, 2 done
	left    timer
	stopped bool // it says so
	fence   bool // its answer shows one
}

// vote is a question to the voters on its way, or the first yes.
type vote struct {
	state int8 // 0 none, 1 sent, 2 answered
	left  timer
}

// lease phases.
const (
	free int8 = iota
	raisedPhase
	liftingPhase
	touchedPhase
)

type lease struct {
	phase   int8
	stopped bool
}

// leader phases.
const (
	idle int8 = iota
	waiting
	readPod
	checked
	// With voters, before waiting: to ask them, and asked.
	toAsk
	asked
)

// leader is what one coordinator is about to do. old: the fence that it saw is no more.
// stale: the version of the pod that it read is no more. refused are voters that refuse.
type leader struct {
	phase, left int8
	old, stale  bool
	refused     int8
}

// broken are protocols with one rule left out; each must be caught.
type broken struct {
	shortWait, countFromAnswer, noConfirm, noTouch, checkFirst, noKeeper, ignoreFence bool
	// voters is how many there are; the others leave a rule about them out.
	voters                                                                                int
	unrefused, lateRefusal, oneRefusal, forgets, shortRefusal, voteBegins, voteFromAnswer bool
}

var (
	voterNames  = [2]string{"voter 1", "voter 2"}
	leaderNames = [2]string{"coordinator 1 ", "coordinator 2 "}
	tickNames   = map[bool]string{false: "tick", true: "tick that the agent's clock misses"}
)

type move struct {
	what string
	to   world
}

func (w world) moves(b broken) (list []move) {
	add := func(what string, to world) { list = append(list, move{what, to}) }
	w.tick(b, add)
	w.agentMoves(b, add)
	w.messageMoves(b, add)
	if b.voters > 0 {
		w.voteMoves(b, add)
		w.leaderMoves(b, 0, add)
		return list
	}
	for i := range w.leaders {
		w.leaderMoves(b, i, add)
	}
	return list
}

func (w world) voteMoves(b broken, add func(string, world)) {
	n := w
	switch {
	case w.vote.state == 0 && w.up && (w.held() || b.voteBegins):
		n.vote = vote{state: 1, left: timer{mLength, mDrift}}
		add("agent asks the voters", n)
	case w.vote.state == 1:
		for i := range b.voters {
			if w.refuses[i] == 0 {
				n.vote.state = 2
				add(voterNames[i]+" says yes", n)
			}
		}
	case w.vote.state == 2 && w.up:
		n.vote = vote{}
		left := w.vote.left
		if b.voteFromAnswer {
			left = timer{mLength, mDrift}
		}
		if w.held() && left.left > w.hold.left || !w.held() && b.voteBegins {
			n.hold, n.bound, n.kill = left, left, 0
		}
		add("agent hears that", n)
	}
	if w.vote.state != 0 {
		n = w
		n.vote = vote{}
		add("question lost", n)
	}
	for i := range b.voters {
		n = w
		n.refuses[i] = mRefusal
		if b.forgets {
			n.refuses[i] = 0
		}
		add(voterNames[i]+" starts anew", n)
	}
}

// refusalMoves are those of a coordinator that asks the voters to refuse.
func (w world) refusalMoves(b broken, l leader, heard leader, set func(string, leader, world)) {
	if l.phase == toAsk {
		set("asks the voters to refuse", leader{phase: asked, left: mRound + 1, old: l.old}, w)
		return
	}
	all := int8(1<<b.voters - 1)
	for i := range b.voters {
		if l.refused&(1<<i) == 0 {
			n, to := w, l
			n.refuses[i], to.refused = mRefusal, l.refused|1<<i
			if b.shortRefusal {
				n.refuses[i] = mLength + mDrift
			}
			set("is heard by "+voterNames[i], to, n)
		}
	}
	if (l.refused == all || b.oneRefusal && l.refused != 0) && (l.left > 0 || b.lateRefusal) {
		heard.old = l.old
		set("hears that they refuse", heard, w)
	}
}

func (t timer) run(misses bool) timer {
	switch {
	case t.left == 0:
		return timer{}
	case misses && t.lag > 0:
		return timer{t.left, t.lag - 1}
	case t.left == 1:
		return timer{}
	}
	return timer{t.left - 1, t.lag}
}

// tick is a unit of true time. It cannot pass while the keeper's time is over.
func (w world) tick(b broken, add func(string, world)) {
	must := w.running && w.bound.left == 0 && !(b.noKeeper && !w.up)
	if must && w.kill == 0 {
		return
	}
	for _, misses := range []bool{false, true} {
		n := w
		if misses && w.hold.lag == 0 && w.bound.lag == 0 && w.req.left.lag == 0 && w.vote.left.lag == 0 {
			continue
		}
		if must {
			n.kill--
		}
		n.hold, n.bound = w.hold.run(misses), w.bound.run(misses)
		if n.running && w.bound.left > 0 && n.bound.left == 0 {
			n.kill = mStop
		}
		if w.hold.left > 0 && n.hold.left == 0 {
			n.confirmed, n.asked = false, false // the term is over
		}
		if w.req.state != 0 && !(b.countFromAnswer) {
			if n.req.left = w.req.left.run(misses); n.req.left.left == 0 {
				n.req = request{} // an answer to it would give nothing
			}
		}
		if w.vote.state != 0 {
			if n.vote.left = w.vote.left.run(misses); n.vote.left.left == 0 {
				n.vote = vote{}
			}
		}
		for i := range n.refuses {
			n.refuses[i] = max(n.refuses[i]-1, 0)
		}
		for i := range n.leaders {
			if n.leaders[i].left > 0 {
				n.leaders[i].left--
			}
		}
		add(tickNames[misses], n)
	}
}

func (w world) held() bool { return w.hold.left > 0 && !w.fenced }

func (w world) dies() world {
	w.running, w.bound, w.kill = false, w.hold, 0
	return w
}

func (w world) agentMoves(b broken, add func(string, world)) {
	if w.running && w.bound.left == 0 && !(b.noKeeper && !w.up) {
		add("keeper kills", w.dies())
	}
	if w.up {
		n := w
		n.up, n.fenced, n.stopped, n.confirmed, n.asked = false, false, false, false, false
		if w.req.state == 2 {
			n.req = request{}
		}
		n.vote = vote{}
		if b.voters < 2 {
			add("agent crashes", n)
		}
		n.running, n.hold, n.bound, n.kill = false, timer{}, timer{}, 0
		add("machine loses power", n)
	} else {
		n := w
		n.up = true
		if w.hold.left == 0 {
			n = n.dies() // before anything else
			n.bound = timer{}
		}
		if n.req.state == 1 {
			n.req = request{} // nobody waits for its answer; it is sent anew
		}
		add("agent starts", n)
		return
	}
	if w.req.state == 0 {
		n := w
		n.req = request{state: 1, left: timer{mLength, mDrift}, stopped: w.stopped}
		add("agent sends renewal", n)
	}
	if w.fenced && !w.stopped {
		n := w.dies()
		n.stopped, n.bound = true, timer{}
		add("agent has stopped the pod", n)
	}
	if w.held() && !w.confirmed && !w.asked && w.pod {
		n := w
		n.asked = true
		add("API confirms the pod", n)
	}
	if w.asked && w.held() {
		n := w
		n.asked, n.confirmed = false, true
		add("agent hears that", n)
	}
	if !w.running && w.held() && (w.confirmed || b.noConfirm) {
		n := w
		n.running, n.bound = true, w.hold
		add("pod starts", n)
	}
}

func (w world) messageMoves(b broken, add func(string, world)) {
	switch w.req.state {
	case 1:
		n := w
		n.req.state, n.req.fence = 2, w.lease.phase != free && !b.ignoreFence
		n.lease.stopped = w.req.stopped && w.lease.phase != free
		add("renewal is written", n)
		n.req = request{}
		add("renewal is written, its answer lost", n)
	case 2:
		if w.up {
			add("answer arrives", w.answered())
		}
	}
	if w.req.state != 0 {
		n := w
		n.req = request{}
		add("message lost", n)
	}
}

// answered is Guard.Answered.
func (w world) answered() world {
	if w.req.fence {
		if !w.fenced {
			w.stopped = false
		}
		w.fenced, w.hold, w.confirmed, w.asked = true, timer{}, false, false
		w.req = request{}
		return w
	}
	if !w.held() { // a new term: what ran in the last one ends first
		w = w.dies()
		w.confirmed, w.asked = false, false
	}
	if w.hold.left < w.req.left.left {
		w.hold = w.req.left
	}
	w.fenced, w.stopped = false, false
	w.bound, w.kill = w.hold, 0
	w.req = request{}
	return w
}

func (w world) leaderMoves(b broken, i int, add func(string, world)) {
	l := w.leaders[i]
	name := func(what string) string { return leaderNames[i] + what }
	set := func(what string, l leader, n world) {
		n.leaders[i] = l
		add(name(what), n)
	}
	wait := leader{phase: waiting, left: mWait}
	if b.shortWait {
		wait.left--
	}
	heard := wait
	if b.voters > 0 && !b.unrefused {
		wait = leader{phase: toAsk}
	}
	if l.phase != idle {
		set("gives up", leader{}, w)
	}
	switch {
	case l.phase == idle && w.lease.phase == free && !w.successor:
		n := w
		n.lease = lease{phase: raisedPhase}
		n.stopped, n.req.stopped = false, false // these were of another fence
		set("raises a fence", wait, n)
	case l.phase == idle && w.lease.phase == raisedPhase:
		set("sees a fence", wait, w)
	case l.phase == toAsk || l.phase == asked:
		w.refusalMoves(b, l, heard, set)
	}
	allowed := w.lease.phase == raisedPhase && !l.old
	if b.checkFirst {
		w.deleteUnordered(l, allowed, set)
	} else {
		w.delete(l, allowed, set)
	}
	if b.voters < 2 {
		w.liftMoves(b, name, add)
	}
}

// delete is act: the pod's version, the fence, the deletion.
func (w world) delete(l leader, allowed bool, set func(string, leader, world)) {
	switch {
	case l.phase == waiting && l.left == 0 && w.pod:
		set("reads the pod", leader{phase: readPod, old: l.old}, w)
	case l.phase == readPod && allowed:
		set("sees the fence still", leader{phase: checked, old: l.old, stale: l.stale}, w)
	case l.phase == checked && w.pod && !l.stale:
		w.pod, w.successor = false, true
		set("deletes the pod", leader{}, w)
	}
}

// deleteUnordered looks for the fence before it reads the pod.
func (w world) deleteUnordered(l leader, allowed bool, set func(string, leader, world)) {
	switch {
	case l.phase == waiting && l.left == 0 && allowed:
		set("sees the fence still", leader{phase: readPod, old: l.old}, w)
	case l.phase == readPod && w.pod:
		set("reads the pod", leader{phase: checked, old: l.old}, w)
	case l.phase == checked && w.pod && !l.stale:
		w.pod, w.successor = false, true
		set("deletes the pod", leader{}, w)
	}
}

func (w world) liftMoves(b broken, name func(string) string, add func(string, world)) {
	switch {
	case w.lease.phase == raisedPhase && w.lease.stopped:
		n := w
		n.lease.phase = liftingPhase
		add(name("begins to lift the fence"), n)
	case w.lease.phase == liftingPhase:
		n := w
		n.lease.phase = touchedPhase
		for i := range n.leaders {
			if p := n.leaders[i].phase; (p == readPod || p == checked) && !b.noTouch {
				n.leaders[i].stale = true
			}
		}
		add(name("writes the pod"), n)
	case w.lease.phase == touchedPhase && w.lease.stopped:
		n := w
		n.lease, n.stopped, n.req.stopped = lease{}, false, false
		for i := range n.leaders {
			if n.leaders[i].phase != idle {
				n.leaders[i].old = true
			}
		}
		add(name("lifts the fence"), n)
	}
}

// space is all states that were visited, by number, each with how it was reached first, and
// those that follow it.
type space struct {
	states []world
	from   []int32
	what   []string
	next   [][]int32
}

// explore visits every state and returns a way to two writers, nil when there is none.
func explore(b broken) (way []string, all space) {
	number := map[world]int32{}
	visit := func(w world, from int32, what string) int32 {
		n, ok := number[w]
		if !ok {
			n = int32(len(all.states))
			number[w] = n
			all.states, all.from = append(all.states, w), append(all.from, from)
			all.what = append(all.what, what)
		}
		return n
	}
	visit(world{up: true, pod: true}, 0, "")
	for i := int32(0); int(i) < len(all.states); i++ {
		w := all.states[i]
		if w.running && w.successor {
			for ; i != 0; i = all.from[i] {
				way = append([]string{all.what[i]}, way...)
			}
			return way, all
		}
		var next []int32
		for _, m := range w.moves(b) {
			next = append(next, visit(m.to, i, m.what))
		}
		all.next = append(all.next, next)
	}
	return nil, all
}

func TestNeverTwoWriters(t *testing.T) {
	for name, b := range map[string]broken{"coordinators": {}, "a-voter": {voters: 1}, "two-voters": {voters: 2}} {
		t.Run(name, func(t *testing.T) {
			way, all := explore(b)
			if way != nil {
				t.Fatalf("two writers:\n%s", strings.Join(way, "\n"))
			}
			t.Logf("%d states", len(all.states))
			stuck := all.unreachable(func(w world) bool { return w.successor || w.running && w.held() })
			if len(stuck) > 0 {
				t.Errorf("%d states, the first %+v, from which nobody writes ever again", len(stuck), stuck[0])
			}
			replaced := all.unreachable(func(w world) bool { return w.successor })
			if len(replaced) > 0 {
				t.Errorf("%d states, the first %+v, from which a pod is not replaced", len(replaced), replaced[0])
			}
		})
	}
}

// unreachable are the states from which no state with the goal can be reached.
func (all space) unreachable(goal func(world) bool) (list []world) {
	before := make([][]int32, len(all.states))
	reaches := make([]bool, len(all.states))
	var queue []int32
	for i, next := range all.next {
		for _, n := range next {
			before[n] = append(before[n], int32(i))
		}
		if goal(all.states[i]) {
			reaches[i] = true
			queue = append(queue, int32(i))
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, b := range before[queue[0]] {
			if !reaches[b] {
				reaches[b] = true
				queue = append(queue, b)
			}
		}
	}
	for i, w := range all.states {
		if !reaches[i] {
			list = append(list, w)
		}
	}
	return list
}

// Each rule is there for a reason: without it the model finds two writers.
func TestEachRuleIsNeeded(t *testing.T) {
	for name, b := range map[string]broken{
		"the wait is a tick short":              {shortWait: true},
		"a hold counts from the answer on":      {countFromAnswer: true},
		"pods start in a new term unconfirmed":  {noConfirm: true},
		"pods are not written at the lifting":   {noTouch: true},
		"the fence is seen before the pod":      {checkFirst: true},
		"nobody kills when the agent is dead":   {noKeeper: true},
		"a fence in an answer is not looked at": {ignoreFence: true},
		"nobody has the voter refuse":           {voters: 1, unrefused: true},
		"a voter forgets by starting anew":      {voters: 1, forgets: true},
		"a voter's word begins a hold":          {voters: 1, voteBegins: true},
		"a voter's word counts from its answer": {voters: 1, voteFromAnswer: true},
		"a voter refuses for too short":         {voters: 2, shortRefusal: true},
		"a refusal counts however late":         {voters: 2, lateRefusal: true},
		"one of two voters refuses":             {voters: 2, oneRefusal: true},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			way, all := explore(b)
			if way == nil {
				t.Fatalf("not caught in %d states", len(all.states))
			}
			t.Logf("caught after %d moves: %s", len(way), strings.Join(way, "; "))
		})
	}
}
