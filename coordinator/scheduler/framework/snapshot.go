package framework

import (
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/node/topology"
)

// Snapshot is the scheduling loop's picture of the cluster. Each node has a
// slot that it keeps for its life, so that plugins can hold plain arrays. It is
// used by one goroutine; the NodeInfos in it are never changed.
type Snapshot struct {
	nodes []*NodeInfo // by slot; nil is a free slot
	slots map[string]int
	free  []int

	images       map[string]int // nodes that have the image
	withAffinity int            // pods with any inter-pod term
	topologies   map[string]*Topology
	namespaces   map[string]labels.Set

	walk []int32 // all slots in the order in which nodes are looked at; nil: to be made

	log   []int32 // slots in the order of their changes
	first uint64  // sequence number of log[0]
	epoch uint64
}

// Topology is the division of the nodes into domains by one label.
type Topology struct {
	Key string
	// Of is the domain of a slot, -1 for a node without the label.
	Of  []int32
	ids map[string]int32
}

// Domains is the number of domains ever seen; those of Of are below it.
func (t *Topology) Domains() int { return len(t.ids) }

// NewSnapshot returns a snapshot of these nodes.
func NewSnapshot(nodes ...*NodeInfo) *Snapshot {
	s := &Snapshot{slots: map[string]int{}, images: map[string]int{}, topologies: map[string]*Topology{}}
	for _, n := range nodes {
		s.Put(n)
	}
	return s
}

// Len is the number of nodes.
func (s *Snapshot) Len() int { return len(s.slots) }

// Slots returns the nodes by slot; free slots are nil.
func (s *Snapshot) Slots() []*NodeInfo { return s.nodes }

// Get returns a node by name, or nil.
func (s *Snapshot) Get(name string) *NodeInfo {
	if i, ok := s.slots[name]; ok {
		return s.nodes[i]
	}
	return nil
}

// ImageNodes returns on how many nodes an image is.
func (s *Snapshot) ImageNodes(image string) int { return s.images[image] }

// HasPodsWithAffinity reports whether any pod on a node has an inter-pod term.
func (s *Snapshot) HasPodsWithAffinity() bool { return s.withAffinity > 0 }

// Namespaces returns the labels of namespaces by name.
func (s *Snapshot) Namespaces() map[string]labels.Set { return s.namespaces }

// SetNamespaces replaces the namespaces' labels.
func (s *Snapshot) SetNamespaces(ns map[string]labels.Set) {
	s.namespaces = ns
	s.epoch++
}

// Epoch changes when something other than nodes and their pods does: whatever
// was worked out for a class of pods before is void then.
func (s *Snapshot) Epoch() uint64 { return s.epoch }

// NewEpoch voids what was worked out for classes.
func (s *Snapshot) NewEpoch() { s.epoch++ }

// Put adds or replaces a node; n belongs to the snapshot from now on.
func (s *Snapshot) Put(n *NodeInfo) {
	slot, ok := s.slots[n.Name()]
	if !ok {
		slot = s.take()
		s.slots[n.Name()] = slot
	}
	old := s.nodes[slot]
	if old == nil || old.Node != n.Node && topology.GetZoneKey(old.Node) != topology.GetZoneKey(n.Node) {
		s.walk = nil
	}
	n.Slot = slot
	s.nodes[slot] = n
	s.recount(old, n)
	if old == nil || !maps.Equal(old.Node.Labels, n.Node.Labels) {
		for _, t := range s.topologies {
			t.put(slot, n)
		}
	}
	s.note(slot)
	s.tidy()
}

// Remove drops a node.
func (s *Snapshot) Remove(name string) {
	slot, ok := s.slots[name]
	if !ok {
		return
	}
	s.recount(s.nodes[slot], nil)
	delete(s.slots, name)
	s.nodes[slot] = nil
	s.walk = nil
	s.free = append(s.free, slot)
	for _, t := range s.topologies {
		t.Of[slot] = -1
	}
	s.note(slot)
}

// Walk returns all slots in the order in which nodes are looked at: one of each zone after
// the other, zones without any left out, so that what is looked at first is of all zones.
// Free slots come last. The slice is never changed; another one takes its place.
func (s *Snapshot) Walk() []int32 {
	if s.walk != nil || len(s.nodes) == 0 {
		return s.walk
	}
	var zones [][]int32
	index := map[string]int{}
	var free []int32
	for slot, n := range s.nodes {
		if n == nil {
			free = append(free, int32(slot))
			continue
		}
		key := topology.GetZoneKey(n.Node)
		i, ok := index[key]
		if !ok {
			i = len(zones)
			index[key] = i
			zones = append(zones, nil)
		}
		zones[i] = append(zones[i], int32(slot))
	}
	walk := make([]int32, 0, len(s.nodes))
	for round := 0; len(walk) < s.Len(); round++ {
		for _, zone := range zones {
			if round < len(zone) {
				walk = append(walk, zone[round])
			}
		}
	}
	s.walk = append(walk, free...)
	return s.walk
}

// Topology returns the nodes' domains by a label; it is kept up to date from now on.
func (s *Snapshot) Topology(key string) *Topology {
	t, ok := s.topologies[key]
	if !ok {
		t = &Topology{Key: key, ids: map[string]int32{}, Of: make([]int32, len(s.nodes))}
		s.topologies[key] = t
		for slot, n := range s.nodes {
			t.put(slot, n)
		}
	}
	return t
}

// Since returns the slots that changed after a sequence number, oldest first
// and possibly repeated, and the number to ask with next. all is set when the
// changes are no longer known one by one.
func (s *Snapshot) Since(seq uint64) (changed []int32, all bool, now uint64) {
	now = s.first + uint64(len(s.log))
	if seq < s.first {
		return nil, true, now
	}
	return s.log[seq-s.first:], false, now
}

func (s *Snapshot) take() int {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return slot
	}
	s.nodes = append(s.nodes, nil)
	for _, t := range s.topologies {
		t.Of = append(t.Of, -1)
	}
	return len(s.nodes) - 1
}

func (s *Snapshot) recount(old, now *NodeInfo) {
	if old != nil {
		s.withAffinity -= len(old.WithAffinity)
	}
	if now != nil {
		s.withAffinity += len(now.WithAffinity)
	}
	if old != nil && now != nil && old.Node == now.Node {
		return
	}
	if old != nil {
		for name := range old.Images {
			if s.images[name]--; s.images[name] == 0 {
				delete(s.images, name)
			}
		}
	}
	if now != nil {
		for name := range now.Images {
			s.images[name]++
		}
	}
}

// note appends to the log of changes. The older half of a long log is dropped;
// who needs it must look at all nodes, which is not more work.
func (s *Snapshot) note(slot int) {
	if limit := 2*len(s.nodes) + 1024; len(s.log) >= limit {
		half := len(s.log) / 2
		s.first += uint64(half)
		s.log = append(s.log[:0:0], s.log[half:]...)
	}
	s.log = append(s.log, int32(slot))
}

// tidy forgets domains that no node has any more once they outnumber the nodes.
func (s *Snapshot) tidy() {
	for _, t := range s.topologies {
		if len(t.ids) > 4*len(s.nodes)+1024 {
			s.topologies = map[string]*Topology{}
			s.epoch++
			return
		}
	}
}

func (t *Topology) put(slot int, n *NodeInfo) {
	t.Of[slot] = -1
	if n == nil {
		return
	}
	value, ok := n.Node.Labels[t.Key]
	if !ok {
		return
	}
	id, ok := t.ids[value]
	if !ok {
		id = int32(len(t.ids))
		t.ids[value] = id
	}
	t.Of[slot] = id
}
