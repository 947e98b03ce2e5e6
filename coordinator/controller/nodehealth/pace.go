package nodehealth

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"

	"github.com/shoal-project/shoal/coordinator/controller"
)

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

// may lets a node have its taint now, or says when to ask again.
func (p *pace) may(node *corev1.Node, now time.Time) (ex execute, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
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
