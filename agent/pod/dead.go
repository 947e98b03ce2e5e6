package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/record"
)

// This file says which containers that have ended are removed while their pod is still
// there. Those of a pod that is deleted go with it, whatever the limits are.

// DeadLimits are how many containers that have ended stay on the node, with their logs.
type DeadLimits struct {
	// MinAge is how old a container is at least, from when it was made, before it is
	// counted and can be removed.
	MinAge time.Duration
	// PerContainer is how many runs of one container of a pod stay, Node how many of all
	// containers; negative: any number.
	PerContainer, Node int
}

// deadRun is a run of a container that has ended.
type deadRun struct {
	container, id string
	created       time.Time
	// needed: its pod goes on from it, so it is counted but not removed.
	needed bool
}

// deadRuns are those of a pod, newest first, that are old enough to be counted; next is
// when another one will be.
func deadRuns(in Input, minAge time.Duration) (runs []deadRun, next time.Time) {
	if in.Removed || in.Pod.DeletionTimestamp != nil || in.Record.RestartingAll {
		return nil, time.Time{}
	}
	d := &decision{Input: in}
	for i := range in.Observed.Containers {
		o := &in.Observed.Containers[i]
		if o.State != record.Exited || in.Busy[o.ID] {
			continue
		}
		if old := o.Created.Add(minAge); in.Now.Before(old) {
			if next.IsZero() || old.Before(next) {
				next = old
			}
			continue
		}
		runs = append(runs, deadRun{container: o.Name, id: o.ID, created: o.Created, needed: d.needed(o)})
	}
	return runs, next
}

// needed tells whether the pod goes on from a run that has ended: it runs again when its
// pause is over, or what comes after it has not begun.
func (d *decision) needed(o *record.Observation) bool {
	if d.Record.Stopping != nil || d.Record.Released || d.Observed.Latest(o.Name).ID != o.ID {
		return false
	}
	c := record.FindContainer(d.Pod, o.Name)
	if c == nil {
		return false
	}
	if d.restarts(c, o.ExitCode) {
		return true
	}
	for i := range d.Pod.Spec.InitContainers {
		if d.Pod.Spec.InitContainers[i].Name == o.Name {
			sb := d.Observed.Sandbox()
			return sb == nil || !d.begun(sb)
		}
	}
	return false
}

// newest parts runs of one pod, newest first, into the n newest of each container and
// the rest.
func newest(runs []deadRun, n int) (kept, rest []deadRun) {
	if n < 0 {
		return runs, nil
	}
	count := map[string]int{}
	for _, r := range runs {
		if count[r.container]++; count[r.container] <= n || r.needed {
			kept = append(kept, r)
		} else {
			rest = append(rest, r)
		}
	}
	return kept, rest
}

// beyond are the IDs of runs that have to go for no more than limit to stay of all pods:
// first each container keeps the same number of them, at least one, then the oldest go.
func beyond(pods map[types.UID][]deadRun, limit int) map[string]bool {
	var all []deadRun
	containers := 0
	for _, runs := range pods {
		seen := map[string]bool{}
		for _, r := range runs {
			seen[r.container] = true
		}
		containers += len(seen)
		all = append(all, runs...)
	}
	if limit < 0 || len(all) <= limit {
		return nil
	}
	gone := map[string]bool{}
	all = nil
	for _, runs := range pods {
		kept, rest := newest(runs, max(1, limit/containers))
		for _, r := range rest {
			gone[r.id] = true
		}
		all = append(all, kept...)
	}
	slices.SortFunc(all, func(a, b deadRun) int { return a.created.Compare(b.created) })
	left := len(all)
	for _, r := range all {
		if left <= limit {
			break
		}
		if !r.needed {
			gone[r.id] = true
			left--
		}
	}
	return gone
}

// deadOfNode is what all pods have, for the limit of the node.
type deadOfNode struct {
	mu   sync.Mutex
	pods map[types.UID][]deadRun
	// gone are those that have to go, which their pods have been told.
	gone map[string]bool
}

// set takes the runs of a pod. It returns which of all have to go, and the other pods that
// have such and do not know.
func (d *deadOfNode) set(uid types.UID, runs []deadRun, limit int) (gone map[string]bool, others []types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pods == nil {
		d.pods = map[types.UID][]deadRun{}
	}
	if len(runs) == 0 {
		delete(d.pods, uid)
	} else {
		d.pods[uid] = runs
	}
	gone = beyond(d.pods, limit)
	for other, has := range d.pods {
		if other != uid && slices.ContainsFunc(has, func(r deadRun) bool { return gone[r.id] && !d.gone[r.id] }) {
			others = append(others, other)
		}
	}
	d.gone = gone
	return gone, others
}

// forget takes that nothing is left of a pod.
func (d *deadOfNode) forget(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.pods, uid)
}

// evicted tells whether a pod ended for want of something on the node. What its containers
// wrote is what there is too much of, and goes with them before the pod does.
func evicted(r *record.Pod) bool { return r.Ended != nil && r.Ended.Reason == reasonEvicted }

// unneeded are the IDs of all runs that have ended and that the pod does not go on from.
func unneeded(in Input) map[string]bool {
	ids := map[string]bool{}
	runs, _ := deadRuns(in, 0)
	for _, r := range runs {
		if !r.needed {
			ids[r.id] = true
		}
	}
	return ids
}

// shed has pods remove what ended containers have left, while the disk is short.
type shed struct {
	mu sync.Mutex
	// left are pods that have such containers; done is closed when there are none, nil while
	// nobody waits.
	left map[types.UID]bool
	done chan struct{}
}

func (s *shed) under() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done != nil
}

// begin returns a channel that is closed when none of the pods has any left.
func (s *shed) begin(pods map[types.UID]bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.done = pods, make(chan struct{})
	if len(pods) == 0 {
		close(s.done)
	}
	return s.done
}

// seen takes how many of a pod are to go.
func (s *shed) seen(uid types.UID, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 || s.done == nil || !s.left[uid] {
		return
	}
	if delete(s.left, uid); len(s.left) == 0 {
		close(s.done)
	}
}

func (s *shed) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left, s.done = nil, nil
}

// shedTime bounds how long RemoveDead waits: a worker may wait for its runtime.
const shedTime = 30 * time.Second

// RemoveDead removes the containers that have ended and that no pod goes on from, with what
// they wrote and their logs, whatever the limits are. One at a time calls it.
func (m *Manager) RemoveDead(ctx context.Context) error {
	pods := map[types.UID]bool{}
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	for _, w := range workers {
		if o := w.view().Observed; slices.ContainsFunc(o.Containers, exited) {
			pods[w.uid] = true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, shedTime)
	defer cancel()
	done := m.shed.begin(maps.Clone(pods))
	defer m.shed.end()
	for uid := range pods {
		m.Poke(uid)
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("containers that have ended: %w", ctx.Err())
	}
}

func exited(o record.Observation) bool { return o.State == record.Exited }

// surplus are the IDs of a pod's dead containers that have to go now; next is when there
// may be others.
func (m *Manager) surplus(uid types.UID, in Input) (ids map[string]bool, next time.Time) {
	if shedding := m.shed.under(); shedding || evicted(in.Record) {
		ids = unneeded(in)
		m.dead.forget(uid)
		m.shed.seen(uid, len(ids))
		return ids, time.Time{}
	}
	runs, next := deadRuns(in, m.Dead.MinAge)
	kept, rest := newest(runs, m.Dead.PerContainer)
	ids = map[string]bool{}
	for _, r := range rest {
		ids[r.id] = true
	}
	if m.Dead.Node < 0 {
		return ids, next
	}
	gone, others := m.dead.set(uid, kept, m.Dead.Node)
	for _, r := range kept {
		if gone[r.id] {
			ids[r.id] = true
		}
	}
	for _, other := range others {
		m.Poke(other)
	}
	return ids, next
}

// removeSurplus removes dead containers that are too many, the oldest first.
func (d *decision) removeSurplus() {
	for i := len(d.Observed.Containers) - 1; i >= 0; i-- {
		o := &d.Observed.Containers[i]
		if d.Surplus[o.ID] {
			d.plan.add(Action{Kind: Remove, Name: o.Name, ID: o.ID, Attempt: o.Attempt})
		}
	}
}
