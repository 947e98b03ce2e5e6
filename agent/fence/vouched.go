package fence

import (
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/shoal-project/shoal/agent/fence/keeper"
)

const (
	// askBefore is how long before the end of the hold others are asked: two renewals were
	// not answered in time.
	askBefore = Length * 55 / 100
	// askPause is the time between two rounds of questions.
	askPause = time.Second
)

// choose returns the voters that a Lease is to name; the caller holds g.mu. A list counts
// from when it may be on the Lease, so it is kept before; a further one only comes when
// that one was answered.
func (g *Guard) choose() []string {
	if g.Voters == nil {
		return nil
	}
	var now []string // what the Lease names
	switch len(g.lists) {
	case 0:
	case 1:
		now = g.lists[0]
	default:
		return g.lists[1]
	}
	names, known := g.Voters()
	if !known || slices.Equal(names, now) {
		return now
	}
	lists := [][]string{now, names}
	if err := g.Directory.SetVoters(lists); err != nil {
		g.Log.Warn("who may vouch for this node cannot be written, so it stays", "err", err)
		return now
	}
	g.lists = lists
	return names
}

// confirm notes what an answered Lease names.
func (g *Guard) confirm(l *coordinationv1.Lease) {
	var lists [][]string
	if voters := VotersOf(l); len(voters) > 0 {
		lists = [][]string{voters}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if slices.EqualFunc(lists, g.lists, slices.Equal) {
		return
	}
	if err := g.Directory.SetVoters(lists); err != nil {
		g.Log.Warn("who may vouch for this node cannot be written, so it stays", "err", err)
		return
	}
	g.lists = lists
	poke(g.moved)
}

// mayAsk tells whether others could prolong the hold; the caller holds g.mu.
func (g *Guard) mayAsk() bool {
	return len(g.lists) > 0 && !g.asking && g.held() &&
		!slices.ContainsFunc(g.lists, func(l []string) bool { return len(l) == 0 })
}

// askAt is when to ask; the caller holds g.mu.
func (g *Guard) askAt() time.Duration {
	return max(g.deadline-askBefore, g.asked+askPause)
}

// askOthers asks the voters if it is time to.
func (g *Guard) askOthers(ctx context.Context, running *sync.WaitGroup) {
	g.mu.Lock()
	defer g.mu.Unlock()
	started := keeper.Clock()
	if len(g.pods) == 0 || !g.mayAsk() || started < g.askAt() {
		return
	}
	g.asking, g.asked = true, started
	lists := slices.Clone(g.lists)
	running.Go(func() {
		yes := poll(ctx, g.Ask, union(lists), question{Node: g.Node}, func(yes map[string]bool) bool {
			return !slices.ContainsFunc(lists, func(l []string) bool { return count(l, yes) < vouches(len(l)) })
		})
		if yes {
			if err := g.keep(ctx); err != nil {
				g.Log.Warn("the node's hold on its pods is not prolonged", "err", err)
				yes = false
			}
		}
		g.heard(yes, started+Length)
	})
}

func union(lists [][]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// heard takes the voters' answer. It prolongs a hold, and never begins one: what has ended
// is confirmed by the API first.
func (g *Guard) heard(yes bool, until time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asking = false
	defer poke(g.moved)
	if !yes || !g.held() || until <= g.deadline {
		return
	}
	if err := g.Directory.SetDeadline(until); err != nil {
		g.Log.Warn("the deadline of the node's pods cannot be written, so it stays", "err", err)
		return
	}
	g.deadline = until
	if !g.vouched {
		g.vouched = true
		g.Log.Info("no coordinator answers; other nodes vouch for this one, so its pods go on")
	}
}
