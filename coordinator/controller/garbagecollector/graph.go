package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// resource is one kind that the graph watches.
type resource struct {
	gvr        schema.GroupVersionResource
	gvk        schema.GroupVersionKind
	namespaced bool
}

// node is one object. Its fields are replaced, never changed in place.
type node struct {
	uid        types.UID
	res        *resource
	namespace  string
	name       string
	owners     []metav1.OwnerReference
	deleting   bool
	foreground bool // deleting, with the foregroundDeletion finalizer
	orphan     bool // deleting, with the orphan finalizer
}

func nodeOf(res *resource, m metav1.Object) *node {
	n := &node{uid: m.GetUID(), res: res, namespace: m.GetNamespace(), name: m.GetName(), owners: m.GetOwnerReferences()}
	if m.GetDeletionTimestamp() != nil {
		n.deleting = true
		n.foreground = slices.Contains(m.GetFinalizers(), metav1.FinalizerDeleteDependents)
		n.orphan = slices.Contains(m.GetFinalizers(), metav1.FinalizerOrphanDependents)
	}
	return n
}

// is tells whether ref, of an object in namespace, names n by all its
// coordinates and not by UID alone.
func (n *node) is(ref *metav1.OwnerReference, namespace string) bool {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && n.uid == ref.UID && n.name == ref.Name && n.res.gvk.Kind == ref.Kind &&
		n.res.gvk.Group == gv.Group &&
		(n.namespace == "" || n.namespace == namespace)
}

func (n *node) ref(uid types.UID) *metav1.OwnerReference {
	for i := range n.owners {
		if n.owners[i].UID == uid {
			return &n.owners[i]
		}
	}
	return nil
}

func blocks(ref *metav1.OwnerReference) bool {
	return ref != nil && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// keepGone is how many UIDs of deleted owners are remembered, to spare the
// question whether they exist once a dependent.
const keepGone = 1024

// graph is the objects and who depends on whom. It is safe for concurrent use.
type graph struct {
	mu         sync.Mutex
	nodes      map[types.UID]*node
	dependents map[types.UID]map[types.UID]struct{} // owner -> dependents
	gone       map[types.UID]struct{}
	goneRing   []types.UID
	goneNext   int
}

func newGraph() *graph {
	return &graph{
		nodes: map[types.UID]*node{}, dependents: map[types.UID]map[types.UID]struct{}{},
		gone: map[types.UID]struct{}{}, goneRing: make([]types.UID, keepGone),
	}
}

// put adds or replaces a node and returns the UIDs to look at because of it.
func (g *graph) put(n *node) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	old := g.nodes[n.uid]
	g.nodes[n.uid] = n
	var look []types.UID
	if old != nil {
		look = g.dropEdges(old, n)
	}
	unknown := false
	for i := range n.owners {
		ref := &n.owners[i]
		set := g.dependents[ref.UID]
		if set == nil {
			set = map[types.UID]struct{}{}
			g.dependents[ref.UID] = set
		}
		_, had := set[n.uid]
		set[n.uid] = struct{}{}
		if owner := g.nodes[ref.UID]; !had && (owner == nil || !owner.is(ref, n.namespace) || owner.foreground) {
			unknown = true
		}
	}
	if unknown {
		look = append(look, n.uid)
	}
	if old == nil {
		look = append(look, g.strangers(n)...)
	}
	if n.foreground && (old == nil || !old.foreground) {
		look = append(look, g.dependentsOf(n.uid)...)
	}
	if n.foreground && (old == nil || !old.foreground) || n.orphan && (old == nil || !old.orphan) {
		look = append(look, n.uid)
	}
	return look
}

// dropEdges removes the owners that n no longer has; owners in foreground
// deletion that it blocked and blocks no more are to be looked at.
func (g *graph) dropEdges(old, n *node) (look []types.UID) {
	for i := range old.owners {
		was := &old.owners[i]
		is := n.ref(was.UID)
		if is == nil {
			g.cut(was.UID, n.uid)
		}
		if blocks(was) && !blocks(is) {
			if owner := g.nodes[was.UID]; owner != nil && owner.foreground {
				look = append(look, was.UID)
			}
		}
	}
	return look
}

func (g *graph) cut(owner, dependent types.UID) {
	if set := g.dependents[owner]; set != nil {
		delete(set, dependent)
		if len(set) == 0 {
			delete(g.dependents, owner)
		}
	}
}

// strangers are the dependents that name a new node's UID with other
// coordinates: their owner does not exist.
func (g *graph) strangers(n *node) (look []types.UID) {
	for uid := range g.dependents[n.uid] {
		if d := g.nodes[uid]; d != nil && !n.is(d.ref(n.uid), d.namespace) {
			look = append(look, uid)
		}
	}
	return look
}

func (g *graph) dependentsOf(uid types.UID) []types.UID {
	out := make([]types.UID, 0, len(g.dependents[uid]))
	for d := range g.dependents[uid] {
		out = append(out, d)
	}
	return out
}

// remove takes a deleted object out and returns the UIDs to look at: its
// dependents, and owners that waited for it.
func (g *graph) remove(uid types.UID) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	delete(g.nodes, uid)
	look := g.dependentsOf(uid)
	if len(look) > 0 {
		delete(g.gone, g.goneRing[g.goneNext])
		g.goneRing[g.goneNext] = uid
		g.goneNext = (g.goneNext + 1) % keepGone
		g.gone[uid] = struct{}{}
	}
	for i := range n.owners {
		owner := n.owners[i].UID
		g.cut(owner, uid)
		if o := g.nodes[owner]; o != nil && o.foreground {
			look = append(look, owner)
		}
	}
	return look
}

// dropResource forgets the objects of a kind that is served no more.
func (g *graph) dropResource(res *resource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, n := range g.nodes {
		if n.res != res {
			continue
		}
		delete(g.nodes, uid)
		for i := range n.owners {
			g.cut(n.owners[i].UID, uid)
		}
	}
}

func (g *graph) get(uid types.UID) *node {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[uid]
}

// isGone tells whether uid's deletion was seen; a UID never comes back.
func (g *graph) isGone(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, ok := g.gone[uid]
	return ok
}

// children returns the nodes that name uid as an owner.
func (g *graph) children(uid types.UID) []*node {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]*node, 0, len(g.dependents[uid]))
	for d := range g.dependents[uid] {
		if n := g.nodes[d]; n != nil {
			out = append(out, n)
		}
	}
	return out
}
