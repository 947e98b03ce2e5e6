package scheduler

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

const (
	// maxClasses bounds the memory of remembered classes: 5,000 nodes cost one
	// about 250 kB.
	maxClasses = 64
	// minFeasible nodes are always looked for, as upstream does.
	minFeasible = 100
	// fillStep is how many more nodes a class learns in each cycle after the
	// first one, which stops at the sampled number.
	fillStep = 128
)

// placer finds nodes. It remembers classes of pods and is used by one goroutine.
type placer struct {
	snap      *framework.Snapshot
	nominated *nominator
	extenders *extenders // nil: none
	classes   map[string]*class
	tick      uint64
	// next is where in the snapshot's order of nodes the next class begins to look: where
	// the last look at new nodes ended.
	next int
	rng  *rand.Rand

	// reused from cycle to cycle
	key    []byte
	slots  []int32
	lanes  []int32
	totals []int64
	column []int64
}

func newPlacer(snap *framework.Snapshot, n *nominator) *placer {
	return &placer{snap: snap, nominated: n, classes: map[string]*class{}, rng: rand.New(rand.NewPCG(1, 2))}
}

// cycle is one pod's search; it implements framework.PostFilterCycle.
type cycle struct {
	pod   *framework.PodInfo
	p     *placer
	class *class
	// blocked are nodes that nominated pods of at least the same priority claim.
	blocked map[int32]*framework.Status
	// extended are nodes that extenders refused.
	extended map[int32]*framework.Status
}

// Place finds the best node for a pod, ties broken by chance with a fixed seed.
// It changes nothing, and with equal arguments gives equal answers. The error
// is a *framework.FitError, or says that an extension point failed.
func Place(p *Profile, snap *framework.Snapshot, pod *corev1.Pod) (string, error) {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		return "", err
	}
	node, _, err := newPlacer(snap, newNominator()).place(context.Background(), p, info)
	return node, err
}

// noNodePassed is the verdict of filters that no node passed.
var noNodePassed = framework.NewStatus(framework.Unschedulable)

// place finds a node for the pod. On a *framework.FitError the cycle can be examined further.
func (p *placer) place(ctx context.Context, profile *Profile, pod *framework.PodInfo) (string, *cycle, error) {
	c := &cycle{pod: pod, p: p}
	if p.snap.Len() == 0 {
		return "", c, errNoNodes
	}
	begin := time.Now()
	c.class = p.classOf(profile, pod)
	timed("PreFilter", profile, begin, c.class.refused)
	if st := c.class.refused; st != nil {
		if st.Is(framework.Error) {
			return "", c, st.Err
		}
		return "", c, c.fitError()
	}
	if n := p.snap.Get(p.nominated.of(pod.UID())); n != nil && c.inScope(n) && c.WhatIf(n).OK() {
		p.slots, p.lanes = append(p.slots[:0], int32(n.Slot)), append(p.lanes[:0], c.class.lane(int32(n.Slot)))
		if err := p.extend(ctx, c); err == nil && len(p.slots) == 1 {
			return n.Name(), c, nil
		}
		c.extended = nil
	}
	c.block()
	begin = time.Now()
	p.collect(c, p.wanted(profile))
	if err := p.extend(ctx, c); err != nil {
		timed("Filter", profile, begin, framework.AsStatus(err))
		return "", c, err
	}
	if len(p.slots) == 0 {
		if err := c.class.failure(); err != nil {
			timed("Filter", profile, begin, framework.AsStatus(err))
			return "", c, err
		}
		timed("Filter", profile, begin, noNodePassed)
		return "", c, c.fitError()
	}
	timed("Filter", profile, begin, nil)
	begin = time.Now()
	best := p.best(ctx, c)
	timed("Score", profile, begin, nil)
	return p.snap.Slots()[best].Name(), c, nil
}

// classOf returns the pod's class, up to date with the snapshot.
func (p *placer) classOf(profile *Profile, pod *framework.PodInfo) *class {
	p.tick++
	key, ok := profile.sign(append(p.key[:0], profile.Name...), pod, p.snap)
	p.key = key
	if !ok {
		c := newClass(profile, pod, p.snap)
		c.walkFrom(p.snap.Walk(), p.next)
		return c
	}
	c := p.classes[string(key)]
	if c == nil || c.epoch != p.snap.Epoch() {
		c = newClass(profile, pod, p.snap)
		c.walkFrom(p.snap.Walk(), p.next)
		if c.refused != nil || c.only != nil {
			return c // not worth keeping: cheap, or good for one node only
		}
		p.evict()
		p.classes[string(key)] = c
	}
	c.sync(p.snap)
	c.used = p.tick
	return c
}

func (p *placer) evict() {
	if len(p.classes) < maxClasses {
		return
	}
	oldest, at := "", uint64(math.MaxUint64)
	for key, c := range p.classes {
		if c.used < at {
			oldest, at = key, c.used
		}
	}
	delete(p.classes, oldest)
}

// wanted is how many feasible nodes are looked for before they are scored. The
// default share falls from 50 % to 5 % as the cluster grows.
func (p *placer) wanted(profile *Profile) int {
	all, share := p.snap.Len(), int(profile.percentage)
	if share == 0 {
		share = max(50-all/125, 5)
	}
	if all < minFeasible || share >= 100 {
		return all
	}
	return max(all*share/100, minFeasible)
}

// collect leaves the feasible nodes in p.slots and p.lanes.
func (p *placer) collect(c *cycle, want int) {
	step := fillStep
	for {
		if before := c.class.filled; c.class.judge(p.snap, want, step) > before {
			p.next = c.class.start + c.class.filled
		}
		p.feasible(c)
		if len(p.slots) > 0 || c.class.filled >= len(c.class.node) {
			return
		}
		want = len(c.class.node) + 1 // all that passed so far failed by counting: look at the rest
	}
}

func (p *placer) feasible(c *cycle) {
	p.slots, p.lanes = p.slots[:0], p.lanes[:0]
	nodes := p.snap.Slots()
next:
	for lane := range c.class.node {
		if st := &c.class.node[lane]; !st.judged || st.verdict != nil {
			continue
		}
		slot := c.class.slot(int32(lane))
		for i := range c.class.counting {
			if !c.class.counting[i].Filter(nodes[slot]).OK() {
				continue next
			}
		}
		if c.blocked != nil && c.blocked[slot] != nil {
			continue
		}
		p.slots = append(p.slots, slot)
		p.lanes = append(p.lanes, int32(lane))
	}
}

// best returns the slot with the highest score among the feasible ones.
func (p *placer) best(ctx context.Context, c *cycle) int32 {
	if len(p.slots) == 1 {
		return p.slots[0]
	}
	p.score(c.class)
	p.extendScores(ctx, c.pod.Pod)
	top, ties := p.totals[0], 0
	for _, v := range p.totals {
		switch {
		case v > top:
			top, ties = v, 1
		case v == top:
			ties++
		}
	}
	nth := p.rng.IntN(ties)
	for i, v := range p.totals {
		if v == top {
			if nth == 0 {
				return p.slots[i]
			}
			nth--
		}
	}
	return p.slots[0]
}

func (p *placer) score(c *class) {
	n := len(p.slots)
	p.totals = slices.Grow(p.totals[:0], n)[:n]
	p.column = slices.Grow(p.column[:0], n)[:n]
	for i, lane := range p.lanes {
		p.totals[i] = c.node[lane].base
	}
	raw := 0
	for i := range c.kept {
		k := &c.kept[i]
		if k.normalizer == nil {
			continue
		}
		if c.marked[raw] > 0 {
			for j, lane := range p.lanes {
				p.column[j] = c.raw[raw][lane]
			}
			k.normalizer.Normalize(p.column)
			p.addColumn(k.weight)
		}
		raw++
	}
	for i := range c.fleet {
		c.fleet[i].fleet.Scores(p.slots, p.column)
		p.addColumn(c.fleet[i].weight)
	}
}

func (p *placer) addColumn(weight int64) {
	for i, v := range p.column {
		p.totals[i] += weight * v
	}
}

// Pod implements framework.PostFilterCycle.
func (c *cycle) Pod() *framework.PodInfo { return c.pod }

// Snapshot implements framework.PostFilterCycle.
func (c *cycle) Snapshot() *framework.Snapshot { return c.p.snap }

// Verdict implements framework.PostFilterCycle.
func (c *cycle) Verdict(n *framework.NodeInfo) *framework.Status {
	if st := c.refusal(n); st != nil {
		return st
	}
	return c.class.verdict(n)
}

// WhatIf implements framework.PostFilterCycle. The pod must fit together with
// nominated pods of at least its priority, and without them, too: they may
// never come.
func (c *cycle) WhatIf(n *framework.NodeInfo) *framework.Status {
	original := c.p.snap.Slots()[n.Slot]
	if guests := c.p.nominated.on(n.Name(), c.pod); len(guests) > 0 {
		full := n.Clone()
		for _, g := range guests {
			full.AddPod(g)
		}
		if st := c.class.whatIf(full, original); !st.OK() {
			return st
		}
	}
	return c.class.whatIf(n, original)
}

// block finds the nodes that are taken up by nominated pods.
func (c *cycle) block() {
	for _, name := range c.p.nominated.nodes() {
		n := c.p.snap.Get(name)
		if n == nil || !c.inScope(n) || len(c.p.nominated.on(name, c.pod)) == 0 {
			continue
		}
		if st := c.WhatIf(n); !st.OK() {
			if c.blocked == nil {
				c.blocked = map[int32]*framework.Status{}
			}
			c.blocked[int32(n.Slot)] = st
		}
	}
}

func (c *cycle) inScope(n *framework.NodeInfo) bool { return c.class.lane(int32(n.Slot)) >= 0 }
