package scheduler

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// class is what is known of identical pods: what the plugins prepared for them
// and their verdicts and scores of nodes. A node is judged again only when it
// has changed.
type class struct {
	profile *Profile
	refused *framework.Status // by PreFilter or PreScore, for all nodes
	// only limits the nodes by name; onlyBy are the plugins that did.
	only   sets.Set[string]
	onlyBy sets.Set[string]

	local    []filter            // verdicts are kept
	counting []filter            // trackers: asked in each cycle
	kept     []scorer            // NodeScorers
	fleet    []scorer            // FleetScorers
	trackers []framework.Tracker // the counting filters, then the fleet

	// By lane. A lane is a slot or, in a class limited by name, an index of lanes.
	lanes []int32
	node  []nodeState
	raw   [][]int64 // of the kept scorers that normalise, by lane
	// marked counts the raw scores other than 0; a column of zeros ranks nothing.
	marked []int

	// walk is the order in which slots are judged the first time, from walk[start] on and
	// around; lanes beyond it follow. Without it lanes are judged in their own order.
	walk   []int32
	start  int
	filled int // so many lanes of the walk have been judged at least once
	good   int // lanes that pass the local filters
	dirty  []int32
	seq    uint64
	epoch  uint64
	used   uint64
}

type nodeState struct {
	verdict *framework.Status // nil passes
	by      int16             // index of the local filter that refused
	judged  bool
	dirty   bool
	base    int64 // weighted sum of the kept scores that need no normalising
}

type filter struct {
	name string
	framework.NodeFilter
}

type scorer struct {
	weight     int64
	node       framework.NodeScorer
	normalizer framework.Normalizer
	fleet      framework.FleetScorer
}

// newClass runs PreFilter and PreScore of the profile for a pod.
func newClass(p *Profile, pod *framework.PodInfo, snap *framework.Snapshot) *class {
	c := &class{profile: p, epoch: snap.Epoch(), onlyBy: sets.New[string]()}
	if c.preFilter(pod, snap); c.refused == nil {
		c.preScore(pod, snap)
	}
	if c.refused != nil {
		return c
	}
	_, _, c.seq = snap.Since(0)
	if c.only != nil {
		c.lanes = []int32{}
		for name := range c.only {
			if n := snap.Get(name); n != nil {
				c.lanes = append(c.lanes, int32(n.Slot))
			}
		}
	}
	if c.only != nil && len(c.lanes) <= 1 {
		c.fleet = nil // nothing to choose from
		c.trackers = c.trackers[:len(c.counting)]
	}
	for slot, n := range snap.Slots() {
		for _, t := range c.trackers {
			t.Track(slot, n)
		}
	}
	c.resize(snap)
	return c
}

// walkFrom has the class look at nodes in the snapshot's order, from a place in it on.
func (c *class) walkFrom(walk []int32, start int) {
	if c.lanes == nil && len(walk) == len(c.node) && len(walk) > 0 {
		c.walk, c.start = walk, start%len(walk)
	}
}

// step is the lane that is the i-th to be judged.
func (c *class) step(i int) int32 {
	if i < len(c.walk) {
		return c.walk[(c.start+i)%len(c.walk)]
	}
	return int32(i)
}

func (c *class) preFilter(pod *framework.PodInfo, snap *framework.Snapshot) {
	for _, pl := range c.profile.filters {
		f, only, st := pl.PreFilter(pod, snap)
		switch {
		case st.Is(framework.Skip):
			continue
		case st.Is(framework.Unschedulable):
			if c.refused == nil {
				c.refused = st.By(pl.Name())
			}
			continue
		case !st.OK():
			c.refused = st.By(pl.Name())
			return
		}
		if only != nil {
			c.onlyBy.Insert(pl.Name())
			if c.only == nil {
				c.only = only
			} else if c.only = c.only.Intersection(only); c.only.Len() == 0 {
				c.refused = framework.NewStatus(framework.UnschedulableAndUnresolvable,
					fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", sets.List(c.onlyBy)))
				return
			}
		}
		if f == nil {
			continue
		}
		if t, ok := f.(framework.Tracker); ok {
			c.counting = append(c.counting, filter{pl.Name(), f})
			c.trackers = append(c.trackers, t)
		} else {
			c.local = append(c.local, filter{pl.Name(), f})
		}
	}
}

// filterOf is the filter of a plugin, nil when it has none for these pods.
func (c *class) filterOf(plugin string) framework.NodeFilter {
	for _, list := range [][]filter{c.local, c.counting} {
		for _, f := range list {
			if f.name == plugin {
				return f.NodeFilter
			}
		}
	}
	return nil
}

func (c *class) preScore(pod *framework.PodInfo, snap *framework.Snapshot) {
	for _, pl := range c.profile.scores {
		s, st := pl.PreScore(pod, snap)
		if !st.OK() && !st.Is(framework.Skip) {
			c.refused = st.By(pl.Name())
			return
		}
		if j, ok := pl.ScorePlugin.(framework.JudgedScorePlugin); ok && s == nil {
			if f := c.filterOf(pl.Name()); f != nil {
				s = j.ScoreBy(f)
			}
		}
		switch s := s.(type) {
		case framework.FleetScorer:
			c.fleet = append(c.fleet, scorer{weight: pl.weight, fleet: s})
			c.trackers = append(c.trackers, s)
		case framework.NodeScorer:
			norm, _ := s.(framework.Normalizer)
			c.kept = append(c.kept, scorer{weight: pl.weight, node: s, normalizer: norm})
			if norm != nil {
				c.raw = append(c.raw, nil)
				c.marked = append(c.marked, 0)
			}
		}
	}
}

// sync takes in the nodes that changed since the last cycle.
func (c *class) sync(snap *framework.Snapshot) {
	changed, all, now := snap.Since(c.seq)
	c.seq = now
	c.resize(snap)
	nodes := snap.Slots()
	if all {
		changed = changed[:0:0]
		for slot := range nodes {
			changed = append(changed, int32(slot))
		}
	}
	for _, slot := range changed {
		for _, t := range c.trackers {
			t.Track(int(slot), nodes[slot])
		}
		lane := c.lane(slot)
		if lane < 0 {
			continue
		}
		if st := &c.node[lane]; st.judged && !st.dirty {
			st.dirty = true
			c.dirty = append(c.dirty, lane)
		}
	}
}

// resize gives new nodes a lane. Those that come after the first fill are
// judged with the next one.
func (c *class) resize(snap *framework.Snapshot) {
	n := len(snap.Slots())
	if c.lanes != nil {
		n = len(c.lanes)
	}
	for len(c.node) < n {
		if len(c.node) == 0 {
			c.node = make([]nodeState, n)
			for i := range c.raw {
				c.raw[i] = make([]int64, n)
			}
			break
		}
		c.node = append(c.node, nodeState{})
		for i := range c.raw {
			c.raw[i] = append(c.raw[i], 0)
		}
	}
}

func (c *class) lane(slot int32) int32 {
	if c.lanes == nil {
		return slot
	}
	for i, s := range c.lanes {
		if s == slot {
			return int32(i)
		}
	}
	return -1
}

func (c *class) slot(lane int32) int32 {
	if c.lanes == nil {
		return lane
	}
	return c.lanes[lane]
}

// judge brings the verdicts up to date: of all nodes that were judged before,
// and of so many more that want pass, and extra beyond.
func (c *class) judge(snap *framework.Snapshot, want, extra int) (filled int) {
	nodes := snap.Slots()
	for _, lane := range c.dirty {
		c.judgeLane(lane, nodes[c.slot(lane)])
	}
	c.dirty = c.dirty[:0]
	for c.filled < len(c.node) && (c.good < want || extra > 0) {
		if c.good >= want {
			extra--
		}
		lane := c.step(c.filled)
		c.judgeLane(lane, nodes[c.slot(lane)])
		c.filled++
	}
	return c.filled
}

func (c *class) judgeLane(lane int32, n *framework.NodeInfo) {
	st := &c.node[lane]
	if st.judged && st.verdict == nil {
		c.good--
	}
	for i := range c.raw {
		if c.raw[i][lane] != 0 {
			c.raw[i][lane] = 0
			c.marked[i]--
		}
	}
	*st = nodeState{judged: true, verdict: vacant}
	if n == nil {
		return
	}
	st.verdict = nil
	for i := range c.local {
		if v := c.local[i].Filter(n); !v.OK() {
			st.verdict, st.by = v, int16(i)
			return
		}
	}
	c.good++
	raw := 0
	for i := range c.kept {
		k := &c.kept[i]
		v := k.node.Score(n)
		if k.normalizer == nil {
			st.base += v * k.weight
			continue
		}
		if c.raw[raw][lane] = v; v != 0 {
			c.marked[raw]++
		}
		raw++
	}
}

// vacant marks the lane of a slot without a node.
var vacant = &framework.Status{Code: framework.UnschedulableAndUnresolvable}

// whatIf runs all filters on a changed copy of a node.
func (c *class) whatIf(n, original *framework.NodeInfo) *framework.Status {
	for i := range c.local {
		if st := c.local[i].Filter(n); !st.OK() {
			return st.By(c.local[i].name)
		}
	}
	if len(c.counting) == 0 {
		return nil
	}
	var found *framework.Status
	for i := range c.counting {
		t := c.counting[i].NodeFilter.(framework.Tracker)
		t.Track(n.Slot, n)
		if st := c.counting[i].Filter(n); !st.OK() && found == nil {
			found = st.By(c.counting[i].name)
		}
		t.Track(n.Slot, original)
		if found != nil {
			break
		}
	}
	return found
}

// failure is the error of a filter that could not judge a node, nil where all could: that no
// node passed is then no finding.
func (c *class) failure() error {
	for i := range c.node {
		if st := &c.node[i]; st.verdict.Is(framework.Error) {
			return fmt.Errorf("running %q filter plugin: %w", c.local[st.by].name, st.verdict.Err)
		}
	}
	return nil
}

// verdict tells why a node was refused; nil when it was not.
func (c *class) verdict(n *framework.NodeInfo) *framework.Status {
	if c.refused != nil {
		return c.refused
	}
	lane := c.lane(int32(n.Slot))
	if lane < 0 {
		return framework.NewStatus(framework.UnschedulableAndUnresolvable,
			fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(c.onlyBy)))
	}
	if st := c.node[lane]; st.verdict != nil {
		return st.verdict.By(c.local[st.by].name)
	}
	for i := range c.counting {
		if st := c.counting[i].Filter(n); !st.OK() {
			return st.By(c.counting[i].name)
		}
	}
	return nil
}
