package nodehealth

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"

	"github.com/shoal-project/shoal/agent/gossip"
	"github.com/shoal-project/shoal/coordinator/controller"
)

// Upstream v1.36's defaults.
const (
	evictionRate  = 0.1  // nodes a second, NODE-41
	secondaryRate = 0.01 // NODE-44
	unhealthyPart = 0.55 // NODE-42
	largeCluster  = 50   // NODE-43
)

// paused is how long until a zone is looked at again in which nothing may be
// evicted; a node's recovery wakes it earlier.
const paused = 5 * time.Second

// pace says how many nodes may get a NoExecute taint, from how many of each zone
// are ready. It counts along with every change of a node: looking at all nodes
// for one would cost a large cluster the square of its size when it starts.
type pace struct {
	mu    sync.Mutex
	nodes map[string]standing
	zones map[string]*zone
	ready int // in all zones
	// disrupted: no node of the cluster was ready (NODE-46); healed is when that
	// ended.
	disrupted bool
	healed    time.Time
	// cutOff: gossip lost most agents at once, so it is probably us who are cut off.
	cutOff bool
}

// standing is how one node is counted.
type standing struct {
	zone  string
	ready bool
}

type zone struct {
	ready, notReady int
	// next is when its next node may be tainted.
	next time.Time
}

func newPace() pace { return pace{nodes: map[string]standing{}, zones: map[string]*zone{}} }

// count follows a node's change, and tells whether it matters to nodes that
// wait for their taint: the rate of a zone is another, or the first node is
// ready, or none any more.
func (p *pace) count(old, node *corev1.Node) (matters bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := ""
	if old != nil {
		name = old.Name
	}
	var now *standing
	if node != nil {
		name = node.Name
		if !excluded(node) {
			now = &standing{topology.GetZoneKey(node), controller.NodeReadyStatus(node) == corev1.ConditionTrue}
		}
	}
	was, counted := p.nodes[name]
	if counted && now != nil && was == *now || !counted && now == nil {
		return false
	}
	any := p.ready > 0
	if counted {
		delete(p.nodes, name)
		matters = p.add(was, -1)
	}
	if now != nil {
		p.nodes[name] = *now
		matters = p.add(*now, 1) || matters
	}
	return matters || any != (p.ready > 0)
}

// add counts one node more or less, and tells whether its zone's rate changed.
func (p *pace) add(s standing, by int) bool {
	z := p.zones[s.zone]
	if z == nil {
		z = &zone{}
		p.zones[s.zone] = z
	}
	before := rate(z.ready, z.notReady)
	if s.ready {
		z.ready += by
		p.ready += by
	} else {
		z.notReady += by
	}
	return rate(z.ready, z.notReady) != before
}

// disruption follows the whole cluster's going and coming back, and tells when
// that turned: then all nodes that are not ready are to be looked at, to take
// their NoExecute taints off. node may be newer than what was counted.
func (p *pace) disruption(node *corev1.Node, now time.Time) (disrupted, turned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ready := p.ready
	is := controller.NodeReadyStatus(node) == corev1.ConditionTrue
	if s := p.nodes[node.Name]; s.ready && !is {
		ready--
	}
	any := ready > 0 || is
	switch {
	case !any && !p.disrupted:
		p.disrupted = true
		return true, true
	case any && p.disrupted:
		p.disrupted, p.healed = false, now
		return false, true
	}
	return p.disrupted, false
}

// heed takes the gossip's word on how many agents are dead.
func (p *pace) heed(members map[string]gossip.Member) {
	agents, dead := 0, 0
	for _, m := range members {
		if m.Role != gossip.RoleAgent {
			continue
		}
		agents++
		if m.State == gossip.StateDead {
			dead++
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutOff = agents > 1 && dead*2 > agents
}

// turn says what may be done now of what is wanted, and when to ask again.
// turned is disruption's.
func (p *pace) turn(node *corev1.Node, want execute, now time.Time) (ex execute, wait time.Duration, turned bool) {
	disrupted, turned := p.disruption(node, now)
	switch {
	case disrupted:
		return clear, 0, turned
	case want != add:
		return want, 0, turned
	}
	ex, wait = p.may(node, now)
	return ex, wait, turned
}

// may lets a node have its taint now, or says when to ask again.
func (p *pace) may(node *corev1.Node, now time.Time) (ex execute, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cutOff && controller.NodeReadyStatus(node) == corev1.ConditionUnknown {
		return follow, paused
	}
	if left := p.healed.Add(grace).Sub(now); !p.healed.IsZero() && left > 0 {
		return follow, left
	}
	key := topology.GetZoneKey(node)
	z := p.zones[key]
	if z == nil { // all its nodes are excluded
		z = &zone{}
		p.zones[key] = z
	}
	ready, notReady := z.ready, z.notReady
	if p.nodes[node.Name].ready { // it is not any more, as node says
		ready, notReady = ready-1, notReady+1
	}
	perSecond := rate(ready, notReady)
	if perSecond == 0 {
		return follow, paused
	}
	if left := z.next.Sub(now); left > 0 {
		return follow, left
	}
	z.next = now.Add(time.Duration(float64(time.Second) / perSecond))
	return add, 0
}

// rate is how many nodes a second of a zone may get a NoExecute taint.
func rate(ready, notReady int) float64 {
	switch {
	case ready == 0: // NODE-45
		return evictionRate
	case notReady > 2 && float64(notReady)/float64(ready+notReady) >= unhealthyPart:
		if ready+notReady > largeCluster {
			return secondaryRate
		}
		return 0
	}
	return evictionRate
}

// excluded nodes do not count for the state of their zone.
func excluded(node *corev1.Node) bool {
	_, ok := node.Labels["node.kubernetes.io/exclude-disruption"]
	return ok
}
