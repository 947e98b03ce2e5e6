package scheduler

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// nominator remembers the pods for which room was made on a node, until they
// are bound: nobody of lower priority may take the room meanwhile.
type nominator struct {
	mu     sync.Mutex
	byNode map[string][]*framework.PodInfo
	node   map[types.UID]string
}

func newNominator() *nominator {
	return &nominator{byNode: map[string][]*framework.PodInfo{}, node: map[types.UID]string{}}
}

// set nominates a node for a pod; an empty name withdraws.
func (n *nominator) set(p *framework.PodInfo, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop(p.UID())
	if node != "" {
		n.node[p.UID()] = node
		n.byNode[node] = append(n.byNode[node], p)
	}
}

func (n *nominator) remove(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop(uid)
}

// of returns the node that is nominated for a pod, or "".
func (n *nominator) of(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node[uid]
}

// nodes returns the nodes that are nominated for some pod.
func (n *nominator) nodes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.byNode) == 0 {
		return nil
	}
	out := make([]string, 0, len(n.byNode))
	for name := range n.byNode {
		out = append(out, name)
	}
	return out
}

// on returns the other pods of at least the pod's priority that are nominated to a node.
func (n *nominator) on(node string, pod *framework.PodInfo) []*framework.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*framework.PodInfo
	for _, p := range n.byNode[node] {
		if p.UID() != pod.UID() && p.Priority >= pod.Priority {
			out = append(out, p)
		}
	}
	return out
}

// lower returns the pods of lower priority that are nominated to a node.
func (n *nominator) lower(node string, priority int32) []*framework.PodInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*framework.PodInfo
	for _, p := range n.byNode[node] {
		if p.Priority < priority {
			out = append(out, p)
		}
	}
	return out
}

func (n *nominator) drop(uid types.UID) {
	name, ok := n.node[uid]
	if !ok {
		return
	}
	delete(n.node, uid)
	pods := n.byNode[name]
	for i, p := range pods {
		if p.UID() == uid {
			pods = append(pods[:i:i], pods[i+1:]...)
			break
		}
	}
	if len(pods) == 0 {
		delete(n.byNode, name)
	} else {
		n.byNode[name] = pods
	}
}
