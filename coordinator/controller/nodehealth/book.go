package nodehealth

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/gossip"
)

// book holds what was seen of all nodes, by name. All workers share it.
type book struct {
	mu    sync.Mutex
	nodes map[string]*entry
	// members is the gossip's view at its last change.
	members map[string]gossip.Member
}

type entry struct {
	renewed, last time.Time
	before        []corev1.NodeCondition
	// announced is the UID of the Node that an event told of.
	announced types.UID
}

func newBook() *book { return &book{nodes: map[string]*entry{}} }

// entry returns a node's; the caller holds b.mu.
func (b *book) entry(node string) *entry {
	e := b.nodes[node]
	if e == nil {
		e = &entry{}
		b.nodes[node] = e
	}
	return e
}

// of returns what was seen of a node. One that nothing was seen of yet is
// watched from now on.
func (b *book) of(node string, now time.Time) seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(node)
	if e.last.IsZero() {
		e.last = now
	}
	s := seen{renewed: e.renewed, last: e.last, before: e.before}
	if m, ok := b.members[node]; ok {
		s.member = &m
	}
	return s
}

// changed notes that a node's Lease or status changed, and whether that was a
// renewal of its Lease.
func (b *book) changed(node string, renewal bool, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(node)
	e.last = now
	if renewal {
		e.renewed = now
	}
}

// keep notes the conditions of before for when a node is back.
func (b *book) keep(node string, before []corev1.NodeCondition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entry(node).before = before
}

// forget drops what was seen of a node that was deleted, but not that an event
// told of it.
func (b *book) forget(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes[node] = &entry{announced: b.entry(node).announced}
}

// announce notes the UID of the Node that an event tells of, and returns the
// one from before.
func (b *book) announce(node string, uid types.UID) (before types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entry(node)
	before, e.announced = e.announced, uid
	return before
}

// drop ends what is known of a node, and returns the UID that was announced.
func (b *book) drop(node string) types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer delete(b.nodes, node)
	return b.entry(node).announced
}

// look takes the gossip's view, and returns the names whose member changed.
func (b *book) look(members map[string]gossip.Member) (changed []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, m := range members {
		if was, ok := b.members[name]; !ok || was.State != m.State || was.Role != m.Role {
			changed = append(changed, name)
		}
	}
	b.members = members
	return changed
}
