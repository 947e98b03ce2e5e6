package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/extender"
	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// extenderName stands for all extenders where plugins are named. It is upstream's.
const extenderName = "Extender"

// extenderHints bring back what an extender refused with every event: nothing says
// what it waits for.
var extenderHints = []framework.EventHint{
	{Resource: framework.Pod, Actions: framework.All}, {Resource: framework.Node, Actions: framework.All},
	{Resource: framework.Namespace, Actions: framework.All},
	{Resource: framework.PersistentVolumeClaim, Actions: framework.All},
	{Resource: framework.PersistentVolume, Actions: framework.All},
	{Resource: framework.StorageClass, Actions: framework.All}, {Resource: framework.CSIDriver, Actions: framework.All},
	{Resource: framework.CSIStorageCapacity, Actions: framework.All},
	{Resource: framework.CSINode, Actions: framework.All},
	{Resource: framework.VolumeAttachment, Actions: framework.All},
}

// extenders are asked in order.
type extenders struct {
	list []*extender.Extender
	log  *slog.Logger
}

// for a pod: those of the list that are asked about it and do something.
func (x *extenders) interested(pod *corev1.Pod, do func(*extender.Extender) bool) []*extender.Extender {
	if x == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(x.list), func(e *extender.Extender) bool {
		return !do(e) || !e.Interested(pod)
	})
}

// forgiven tells whether an error of an extender is passed over.
func (x *extenders) forgiven(e *extender.Extender, err error) bool {
	if e.Ignorable() {
		x.log.Warn("extender failed, scheduling without it", "extender", e.Name(), "err", err)
	}
	return e.Ignorable()
}

// extend leaves those of the feasible nodes that all extenders take.
func (p *placer) extend(ctx context.Context, c *cycle) error {
	for _, e := range p.extenders.interested(c.pod.Pod, (*extender.Extender).Filters) {
		if len(p.slots) == 0 {
			return nil
		}
		verdict, err := e.Filter(ctx, c.pod.Pod, p.nodes())
		if err != nil {
			if p.extenders.forgiven(e, err) {
				continue
			}
			return err
		}
		slots, lanes := p.slots[:0], p.lanes[:0]
		for i, slot := range p.slots {
			name := p.snap.Slots()[slot].Name()
			if verdict.Passed.Has(name) {
				slots, lanes = append(slots, slot), append(lanes, p.lanes[i])
				continue
			}
			st := framework.NewStatus(framework.UnschedulableAndUnresolvable)
			if why, ok := verdict.Unresolvable[name]; ok {
				st = framework.NewStatus(framework.UnschedulableAndUnresolvable, why)
			} else if why, ok := verdict.Failed[name]; ok {
				st = framework.NewStatus(framework.Unschedulable, why)
			}
			if c.extended == nil {
				c.extended = map[int32]*framework.Status{}
			}
			c.extended[slot] = st.By(extenderName)
		}
		p.slots, p.lanes = slots, lanes
	}
	return nil
}

// nodes are those of the feasible slots.
func (p *placer) nodes() []*corev1.Node {
	out := make([]*corev1.Node, 0, len(p.slots))
	for _, slot := range p.slots {
		out = append(out, p.snap.Slots()[slot].Node)
	}
	return out
}

// extendScores adds what extenders say to the totals of the feasible nodes. One that
// fails says nothing.
func (p *placer) extendScores(ctx context.Context, pod *corev1.Pod) {
	asked := p.extenders.interested(pod, (*extender.Extender).Prioritizes)
	if len(asked) == 0 {
		return
	}
	nodes := p.nodes()
	answers := make([]map[string]int64, len(asked))
	var wg sync.WaitGroup
	for i, e := range asked {
		wg.Go(func() {
			defer works("prioritizing_extender")()
			var err error
			if answers[i], err = e.Prioritize(ctx, pod, nodes); err != nil {
				p.extenders.log.Debug("extender did not score", "extender", e.Name(), "err", err)
			}
		})
	}
	wg.Wait()
	for i, n := range nodes {
		for _, scores := range answers {
			p.totals[i] += scores[n.Name]
		}
	}
}

// bind has an extender bind the pod, if there is one that does; taken tells so.
func (x *extenders) bind(ctx context.Context, pod *corev1.Pod, node string) (taken bool, err error) {
	for _, e := range x.interested(pod, (*extender.Extender).Binds) {
		if err := e.Bind(ctx, pod, node); err == nil || !x.forgiven(e, err) {
			return true, err
		}
	}
	return false, nil
}

// review shows extenders the victims of preemption by node, and returns those that
// they leave.
func (x *extenders) review(ctx context.Context, pod *corev1.Pod, victims map[string]*extender.Victims,
	podsOf func(node string) []*corev1.Pod) (map[string]*extender.Victims, error) {
	for _, e := range x.interested(pod, (*extender.Extender).Preempts) {
		if len(victims) == 0 {
			break
		}
		left, err := e.Preempt(ctx, pod, victims, podsOf)
		if err != nil {
			if x.forgiven(e, err) {
				continue
			}
			return nil, err
		}
		for node, v := range left {
			if len(v.Pods) > 0 {
				continue
			}
			if err := fmt.Errorf("expected at least one victim pod on node %q", node); !x.forgiven(e, err) {
				return nil, err
			}
			delete(left, node)
		}
		victims = left
	}
	return victims, nil
}

// refusal is why extenders refused a node; nil when they did not.
func (c *cycle) refusal(n *framework.NodeInfo) *framework.Status {
	return cmp.Or(c.extended[int32(n.Slot)], c.blocked[int32(n.Slot)])
}
