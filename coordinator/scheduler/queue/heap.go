package queue

import (
	"container/heap"

	"k8s.io/apimachinery/pkg/types"
)

// pods is a heap of entries with access by UID.
type pods struct {
	items []*entry
	index map[types.UID]int
	less  func(a, b *entry) bool
}

func newPods(less func(a, b *entry) bool) *pods {
	return &pods{index: map[types.UID]int{}, less: less}
}

func (p *pods) Len() int           { return len(p.items) }
func (p *pods) Less(i, j int) bool { return p.less(p.items[i], p.items[j]) }
func (p *pods) Swap(i, j int) {
	p.items[i], p.items[j] = p.items[j], p.items[i]
	p.index[p.items[i].UID()], p.index[p.items[j].UID()] = i, j
}

// Push implements heap.Interface.
func (p *pods) Push(x any) {
	e := x.(*entry)
	p.index[e.UID()] = len(p.items)
	p.items = append(p.items, e)
}

// Pop implements heap.Interface.
func (p *pods) Pop() any {
	last := len(p.items) - 1
	e := p.items[last]
	p.items[last] = nil
	p.items = p.items[:last]
	delete(p.index, e.UID())
	return e
}

func (p *pods) put(e *entry) {
	if i, ok := p.index[e.UID()]; ok {
		p.items[i] = e
		heap.Fix(p, i)
		return
	}
	heap.Push(p, e)
}

func (p *pods) get(uid types.UID) *entry {
	if i, ok := p.index[uid]; ok {
		return p.items[i]
	}
	return nil
}

func (p *pods) remove(uid types.UID) bool {
	i, ok := p.index[uid]
	if ok {
		heap.Remove(p, i)
	}
	return ok
}

func (p *pods) peek() *entry {
	if len(p.items) == 0 {
		return nil
	}
	return p.items[0]
}

func (p *pods) pop() *entry { return heap.Pop(p).(*entry) }
