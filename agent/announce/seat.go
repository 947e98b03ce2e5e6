package announce

import (
	"bytes"
	"time"

	"github.com/shoal-project/shoal/agent/segment"
)

// The times. None is taken from elsewhere; docs/network.md has what was measured with
// them.
const (
	// tick is how often each address is looked at.
	tick = 100 * time.Millisecond
	// beat is how often an owner claims one of its addresses.
	beat = 300 * time.Millisecond
	// answerFor is how long answers are given after a decision.
	answerFor = 5 * tick
	// silence is when an owner that is not heard has failed: three claims may be lost.
	silence = 1200 * time.Millisecond
	// perTurn bounds the beats until an owner has claimed all its addresses again; unclaimed
	// is when one that it has not claimed is not its any more, though others are.
	perTurn   = 16
	unclaimed = 2 * perTurn * beat
	// stagger is how much later each candidate takes over than the one before it.
	stagger = 400 * time.Millisecond
	// questions are asked, one a tick, before an address is taken.
	questions = 3
	// settle is how long a node is the first before it takes an address from another: news
	// of a member that went are at all within that mostly.
	settle = 500 * time.Millisecond
	// contest is how long another is an owner before the first takes the address from it:
	// one that is back has it before all have heard that it is back, and is to keep it.
	contest = 2 * time.Second
	// inFlight is how old a claim may be when it is heard: that of the owner before, which has
	// yielded meanwhile, is no contradiction.
	inFlight = tick
	// linger is how long an owner that may be none any more goes on until another claims
	// the address.
	linger = 3 * time.Second
	// lease is how long an owner goes on that hears nobody; shorter than silence.
	lease = time.Second
	// routedLease is lease where no other machine can be asked on the network.
	routedLease = 3 * time.Second
	// restartPatience is how long an agent may be away whose machine answers.
	restartPatience = 10 * time.Second
	// machineAnswers is how late the answer of a machine may be.
	machineAnswers = 5 * tick
	// retryFirst and retryLast bound the pause after a claim that was contradicted. The first
	// ends before silence does: if the other claims no more by then, it has yielded as well.
	retryFirst, retryLast = 2*beat + tick, 30 * time.Second
)

// seat is one address, as one node sees it.
type seat struct {
	owner bool
	since time.Time // as an owner
	// unwanted is when an owner stopped being a candidate.
	unwanted time.Time
	first    time.Time // since when it is the first; zero: it is not
	watched  time.Time // the beginning

	claimed bool        // somebody else was heard as its owner
	by      segment.MAC // who was last
	rival   time.Time   // since when by is heard without a silence
	at      time.Time   // when it claimed this address last
	asked   int         // questions since nobody is heard
	denied  time.Time   // when the one that had it last said that it has it not
	turns   int         // of answers for a machine whose agent is away
	retry   time.Time   // not to be taken from another before
	pause   time.Duration
}

// situation is what a step depends on.
type situation struct {
	now    time.Time
	rank   int  // -1: no candidate
	fenced bool // cut off
	// agreed: the others' states are known, so that to be the first means something.
	agreed bool
	mine   segment.MAC
	// heard is when a MAC claimed any address last, machine when one answered for its
	// node's own address.
	heard, machine func(segment.MAC) time.Time
}

// action is what a step wants done.
type action struct {
	claim   bool // tell all
	ask     bool // ask for the address
	machine bool // ask for the last owner's own address
	took    bool
	dropped string // why it is no owner any more
	answer  segment.MAC
	answers bool
}

// step decides what to do now.
func (s *seat) step(in situation) action {
	if s.watched.IsZero() {
		s.watched = in.now
	}
	switch {
	case in.rank != 0:
		s.first = time.Time{}
	case s.first.IsZero():
		s.first = in.now
	}
	if s.owner {
		return s.keep(in)
	}
	if in.fenced || in.rank < 0 {
		s.asked = 0
		return action{}
	}
	if !s.claimed {
		return s.silent(in, s.watched)
	}
	if in.now.Sub(s.at) > unclaimed {
		return s.silent(in, s.at)
	}
	if in.now.Sub(in.heard(s.by)) < silence {
		return s.beside(in)
	}
	return s.silent(in, in.heard(s.by))
}

// keep is an owner's step.
func (s *seat) keep(in situation) action {
	switch {
	case in.fenced:
		s.owner = false
		return action{dropped: "no other machine is heard", ask: true}
	case in.rank >= 0:
		s.unwanted = time.Time{}
	case s.unwanted.IsZero():
		s.unwanted = in.now
	case in.now.Sub(s.unwanted) > linger:
		s.owner = false
		return action{dropped: "this node is not to have it, and no other took it", ask: true}
	}
	return action{answer: in.mine, answers: true}
}

// beside is the step of a node that hears another owner: the first takes the address.
func (s *seat) beside(in situation) action {
	s.asked = 0
	early := in.now.Sub(s.first) < settle || in.now.Sub(s.rival) < contest || in.now.Before(s.retry)
	if in.rank != 0 || !in.agreed || early {
		return action{}
	}
	return s.take(in)
}

// silent is the step of a node that has heard no owner since some time.
func (s *seat) silent(in situation, since time.Time) action {
	wait := time.Duration(in.rank) * stagger
	switch {
	case in.rank > 0 || s.claimed:
		wait += silence
	case !s.denied.IsZero():
		wait += settle
	}
	if in.now.Sub(since) < wait {
		return action{}
	}
	restarting := s.claimed && in.now.Sub(since) < restartPatience
	if restarting && in.now.Sub(in.machine(s.by)) < machineAnswers {
		s.asked = 0
		s.turns++ // that this node has it not is said now and then, too
		return action{machine: true, answer: s.by, answers: true, ask: s.turns%10 == 1}
	}
	if s.asked++; s.asked <= questions {
		return action{ask: true, machine: restarting}
	}
	return s.take(in)
}

func (s *seat) take(in situation) action {
	s.owner, s.since, s.unwanted, s.asked = true, in.now, time.Time{}, 0
	return action{claim: true, took: true, answer: in.mine, answers: true}
}

// claimedBy notes that another says that the address is at it; in.heard is of before.
func (s *seat) claimedBy(mac segment.MAC, in situation) action {
	if !s.claimed || s.by != mac || in.now.Sub(in.heard(mac)) > silence {
		s.rival = in.now
	}
	s.claimed, s.by, s.at, s.asked = true, mac, in.now, 0
	if !s.owner || in.now.Sub(s.since) < inFlight {
		return action{}
	}
	if in.rank == 0 && bytes.Compare(in.mine[:], mac[:]) < 0 {
		return action{claim: true, answer: in.mine, answers: true}
	}
	s.owner = false
	if in.rank != 0 {
		s.pause = 0
		return action{dropped: "handed over"}
	}
	s.pause = min(max(2*s.pause, retryFirst), retryLast)
	s.retry = in.now.Add(s.pause)
	return action{dropped: "another node says that it is to have it"}
}

// deniedBy notes that another asks for the address: it has it not. One that restarts asks
// too, and is given the time to take it.
func (s *seat) deniedBy(mac segment.MAC, now time.Time) {
	if s.claimed && s.by == mac {
		s.claimed, s.denied, s.watched, s.asked = false, now, now, 0
	}
}
