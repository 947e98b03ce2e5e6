package scheduler

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// podCache holds nodes and their pods as the informers tell them, and the pods
// that are assumed to be bound while their binding is under way. refresh copies
// what changed into the scheduling loop's snapshot.
type podCache struct {
	mu         sync.Mutex
	nodes      map[string]*cachedNode
	pods       map[types.UID]*cachedPod
	namespaces map[string]labels.Set
	dirty      []*cachedNode
	nsDirty    bool
	epoch      bool
}

type cachedNode struct {
	name    string
	info    *framework.NodeInfo // its Node is nil until the node is known
	inDirty bool
}

type cachedPod struct {
	info    *framework.PodInfo
	node    string
	assumed bool
}

func newCache() *podCache {
	return &podCache{nodes: map[string]*cachedNode{}, pods: map[types.UID]*cachedPod{},
		namespaces: map[string]labels.Set{}}
}

// refresh brings a snapshot up to date.
func (c *podCache) refresh(s *framework.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.dirty {
		n.inDirty = false
		if n.info.Node != nil {
			s.Put(n.info.Clone())
			continue
		}
		s.Remove(n.name)
		if len(n.info.Pods) == 0 {
			delete(c.nodes, n.name)
		}
	}
	c.dirty = c.dirty[:0]
	if c.nsDirty {
		s.SetNamespaces(maps.Clone(c.namespaces))
		c.nsDirty = false
	}
	if c.epoch {
		s.NewEpoch()
		c.epoch = false
	}
}

func (c *podCache) setNode(n *corev1.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.node(n.Name)
	e.info.SetNode(n)
	c.touch(e)
}

// removeNode forgets the node, but not its pods: they are counted again if it comes back.
func (c *podCache) removeNode(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.node(name)
	e.info.Node = nil
	c.touch(e)
}

func (c *podCache) setNamespace(name string, l labels.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.namespaces[name]; ok && maps.Equal(old, l) {
		return
	}
	c.namespaces[name] = l
	c.nsDirty = true
}

func (c *podCache) removeNamespace(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.namespaces, name)
	c.nsDirty = true
}

// newEpoch voids what is known of classes of pods.
func (c *podCache) newEpoch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch = true
}

// assume counts a pod on a node before it is bound. It reports false for a pod
// that is on a node already.
func (c *podCache) assume(p *framework.PodInfo, node string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods[p.UID()] != nil {
		return false
	}
	c.put(&cachedPod{info: p, node: node, assumed: true})
	return true
}

// forget takes an assumed pod back; a pod that has been seen bound stays.
func (c *podCache) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil && p.assumed {
		c.drop(p)
	}
}

// setPod takes in a pod that the API says is on a node. A pod that was assumed
// there costs nothing: what counts of it has not changed. It tells whether the
// pod takes less than before.
func (c *podCache) setPod(p *framework.PodInfo) (freed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pods[p.UID()]
	if old != nil && old.node == p.Pod.Spec.NodeName && sameForOthers(old.info, p) {
		old.assumed = false
		return false
	}
	if old != nil {
		c.drop(old)
	}
	c.put(&cachedPod{info: p, node: p.Pod.Spec.NodeName})
	return old != nil && old.info.Requests.Exceeds(&p.Requests)
}

func (c *podCache) removePod(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pods[uid]; p != nil {
		c.drop(p)
	}
}

// size counts nodes, pods and, of these, the assumed ones.
func (c *podCache) size() (nodes, pods, assumed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.info.Node != nil {
			nodes++
		}
	}
	for _, p := range c.pods {
		if p.assumed {
			assumed++
		}
	}
	return nodes, len(c.pods), assumed
}

func (c *podCache) has(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[uid] != nil
}

func (c *podCache) put(p *cachedPod) {
	c.pods[p.info.UID()] = p
	e := c.node(p.node)
	e.info.AddPod(p.info)
	c.touch(e)
}

func (c *podCache) drop(p *cachedPod) {
	delete(c.pods, p.info.UID())
	e := c.node(p.node)
	e.info.RemovePod(p.info.UID())
	c.touch(e)
}

func (c *podCache) node(name string) *cachedNode {
	e := c.nodes[name]
	if e == nil {
		e = &cachedNode{name: name, info: framework.NewNodeInfo(nil)}
		c.nodes[name] = e
	}
	return e
}

func (c *podCache) touch(e *cachedNode) {
	if !e.inDirty {
		e.inDirty = true
		c.dirty = append(c.dirty, e)
	}
}

// sameForOthers reports whether two states of a pod on a node mean the same to
// the placement of other pods. Preemption looks at more (start time, priority,
// disruption), but reads those from the informer.
func sameForOthers(a, b *framework.PodInfo) bool {
	return a.Requests.Equal(&b.Requests) && a.NonZero.Equal(&b.NonZero) && a.Priority == b.Priority &&
		maps.Equal(a.Pod.Labels, b.Pod.Labels) && (a.Pod.DeletionTimestamp == nil) == (b.Pod.DeletionTimestamp == nil)
}
