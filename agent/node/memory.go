package node

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/cni/cidr"
)

// Store keeps the Node over restarts.
type Store interface {
	Get(name string) (*corev1.Node, error)
	Put(name string, n *corev1.Node) error
}

// Memory is the Node as the API has it or, before that is heard, as an earlier
// agent did.
type Memory struct {
	store Store
	log   *slog.Logger
	node  atomic.Pointer[corev1.Node]
	kept  atomic.Bool // the last version was written
}

// Remember reads what an earlier agent kept.
func Remember(store Store, name string, log *slog.Logger) *Memory {
	m := &Memory{store: store, log: log}
	if n, err := store.Get(name); err == nil && n != nil {
		m.node.Store(n)
	}
	return m
}

// Node is nil as long as nothing is known.
func (m *Memory) Node() *corev1.Node { return m.node.Load() }

// Keep takes the Node's newest version; its status is not kept over restarts.
func (m *Memory) Keep(n *corev1.Node) {
	m.node.Store(n)
	kept := &corev1.Node{ObjectMeta: n.ObjectMeta, Spec: n.Spec}
	err := m.store.Put(n.Name, kept)
	if err != nil {
		m.log.Warn("the node is not kept for when the API is away", "err", err)
	}
	m.kept.Store(err == nil)
}

// Kept tells whether the newest version is there after a restart.
func (m *Memory) Kept() bool { return m.kept.Load() }

// PodCIDRs follows the ranges of this node's pods.
type PodCIDRs struct {
	// Configured counts in the place of the Node's.
	Configured cidr.Prefixes
	// Set takes the ranges into use; it may be repeated.
	Set func(cidr.Prefixes) error
	// Changed is told when the Node has other ranges than before, and of a Node that
	// was not known before.
	Changed func(cidr.Prefixes)
	Log     *slog.Logger

	// Versions come from the watch and from the manager's own writes, which do not
	// wait for each other.
	mu    sync.Mutex
	known bool // a version of the Node, in this run of the agent or an earlier one
	last  []string
}

// Of are the ranges by a version of the Node, nil for none.
func (c *PodCIDRs) Of(n *corev1.Node) cidr.Prefixes {
	if len(c.Configured) > 0 || n == nil {
		return c.Configured
	}
	return cidr.Parse(n.Spec.PodCIDRs...) // the API has validated them
}

// Restore takes the ranges of before into use.
func (c *PodCIDRs) Restore(n *corev1.Node) error {
	if n != nil {
		c.differs(n)
	}
	if list := c.Of(n); len(list) > 0 {
		return c.Set(list)
	}
	return nil // the Node object will tell
}

// Heed takes those of the Node's newest version.
func (c *PodCIDRs) Heed(n *corev1.Node) {
	changed := c.differs(n)
	list := c.Of(n)
	if len(list) == 0 {
		return
	}
	if err := c.Set(list); err != nil {
		c.Log.Warn("the pod network cannot be made", "cidrs", list, "err", err)
	}
	if changed {
		c.Changed(list)
	}
}

// differs tells whether a version of the Node has other ranges than the one before,
// or is the first.
func (c *PodCIDRs) differs(n *corev1.Node) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	differs := !c.known || !slices.Equal(c.last, n.Spec.PodCIDRs)
	c.known, c.last = true, n.Spec.PodCIDRs
	return differs
}
