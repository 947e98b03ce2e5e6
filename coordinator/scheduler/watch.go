package scheduler

import (
	"context"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// watch asks for the informers, so that whoever starts the factory starts them.
func (s *Scheduler) watch() []cache.SharedIndexInformer {
	core := s.c.Informers.Core().V1()
	list := []cache.SharedIndexInformer{
		core.Nodes().Informer(), core.Namespaces().Informer(), core.Services().Informer(),
		s.c.Informers.Apps().V1().ReplicaSets().Informer(),
		s.c.Informers.Policy().V1().PodDisruptionBudgets().Informer(),
		core.Pods().Informer(),
	}
	for _, inf := range s.claimInformers() {
		list = append(list, inf)
	}
	return list
}

// startWatch feeds cache and queue from the informers, and returns how to stop.
func (s *Scheduler) startWatch(ctx context.Context) (stop func(), err error) {
	core := s.c.Informers.Core().V1()
	var synced []cache.InformerSynced
	var undo []func()
	stop = func() {
		for _, f := range undo {
			f()
		}
	}
	on := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandler) {
		reg, e := inf.AddEventHandler(h)
		if e != nil {
			err = e
			return
		}
		undo = append(undo, func() { _ = inf.RemoveEventHandler(reg) })
		synced = append(synced, reg.HasSynced)
	}
	on(core.Nodes().Informer(), handler(s.nodeChanged))
	on(core.Namespaces().Informer(), handler(s.namespaceChanged))
	on(core.Services().Informer(), handler(s.serviceChanged))
	for kind, inf := range s.claimInformers() {
		on(inf, s.claimHandler(kind))
	}
	for _, inf := range s.watch() {
		synced = append(synced, inf.HasSynced)
	}
	if err == nil {
		// Nodes first: a pod must not be refused for nodes that are only not read yet.
		err = waitSync(ctx, synced)
	}
	if err == nil {
		on(core.Pods().Informer(), handler(s.podChanged))
	}
	if err == nil {
		err = waitSync(ctx, synced)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// handler makes one function of the three; old is nil for additions, now for deletions.
func handler[T any](f func(old, now *T)) cache.ResourceEventHandler {
	cast := func(obj any) *T {
		if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = t.Obj
		}
		o, _ := obj.(*T)
		return o
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { f(nil, cast(obj)) },
		UpdateFunc: func(old, now any) { f(cast(old), cast(now)) },
		DeleteFunc: func(obj any) { f(cast(obj), nil) },
	}
}

func (s *Scheduler) nodeChanged(old, now *corev1.Node) {
	switch {
	case now == nil && old == nil:
	case now == nil:
		s.cache.removeNode(old.Name)
		s.queue.Move(framework.Event{Resource: framework.Node, Action: framework.Delete, Old: old})
	case old == nil:
		s.cache.setNode(now)
		s.queue.Move(framework.Event{Resource: framework.Node, Action: framework.Add, New: now})
	default:
		actions := nodeActions(old, now)
		if actions == 0 {
			return // a heartbeat
		}
		s.cache.setNode(now)
		s.queue.Move(framework.Event{Resource: framework.Node, Action: actions, Old: old, New: now})
	}
}

func nodeActions(old, now *corev1.Node) (a framework.Action) {
	if !equality.Semantic.DeepEqual(old.Status.Allocatable, now.Status.Allocatable) {
		a |= framework.UpdateNodeAllocatable
	}
	if !maps.Equal(old.Labels, now.Labels) {
		a |= framework.UpdateNodeLabel
	}
	if old.Spec.Unschedulable != now.Spec.Unschedulable || !equality.Semantic.DeepEqual(old.Spec.Taints, now.Spec.Taints) {
		a |= framework.UpdateNodeTaint
	}
	if !reflect.DeepEqual(old.Status.Images, now.Status.Images) {
		a |= framework.UpdateNodeImages
	}
	if !slices.Equal(old.Status.DeclaredFeatures, now.Status.DeclaredFeatures) {
		a |= framework.UpdateNodeDeclaredFeature
	}
	if conditionsChanged(old, now) {
		a |= framework.UpdateNodeCondition
	}
	return a
}

func conditionsChanged(old, now *corev1.Node) bool {
	status := func(n *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
		m := make(map[corev1.NodeConditionType]corev1.ConditionStatus, len(n.Status.Conditions))
		for i := range n.Status.Conditions {
			m[n.Status.Conditions[i].Type] = n.Status.Conditions[i].Status
		}
		return m
	}
	return !maps.Equal(status(old), status(now))
}

func (s *Scheduler) namespaceChanged(old, now *corev1.Namespace) {
	switch {
	case now != nil:
		s.cache.setNamespace(now.Name, labels.Set(now.Labels))
		if old == nil || !maps.Equal(old.Labels, now.Labels) {
			s.queue.Move(
				framework.Event{Resource: framework.Namespace, Action: framework.UpdateOther,
					Old: anyOrNil(old), New: now})
		}
	case old != nil:
		s.cache.removeNamespace(old.Name)
	}
}

func anyOrNil[T any](p *T) any {
	if p == nil {
		return nil
	}
	return p
}

// serviceChanged voids classes: a Service's selector takes part in the default spread.
func (s *Scheduler) serviceChanged(old, now *corev1.Service) {
	if old != nil && now != nil && maps.Equal(old.Spec.Selector, now.Spec.Selector) {
		return
	}
	s.cache.newEpoch()
}

// place of a pod in the scheduler's world.
type podPlace int

const (
	nowhere  podPlace = iota // ended, or another scheduler's
	toPlace                  // waits for a node
	assigned                 // counts on its node
)

func (s *Scheduler) placeOf(p *corev1.Pod) podPlace {
	switch {
	case p == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return nowhere
	case p.Spec.NodeName != "":
		return assigned
	case s.profiles[schedulerName(p)] != nil:
		return toPlace
	}
	return nowhere
}

func (s *Scheduler) podChanged(old, now *corev1.Pod) {
	if old != nil && now != nil && old.UID != now.UID {
		s.podChanged(old, nil)
		old = nil
	}
	was, is := s.placeOf(old), s.placeOf(now)
	switch {
	case is == assigned:
		s.podAssigned(old, now, was)
	case is == toPlace:
		s.podWaits(old, now)
	case old == nil:
	default:
		s.podGone(old, was)
	}
}

func (s *Scheduler) podAssigned(old, now *corev1.Pod, was podPlace) {
	if was != assigned {
		s.queue.Delete(now.UID)
		s.nominated.remove(now.UID)
	}
	info, err := framework.NewPodInfo(now)
	if err != nil {
		s.log.Warn("pod affinity ignored", "pod", now.Namespace+"/"+now.Name, "err", err)
	}
	freed := s.cache.setPod(info)
	if was != assigned {
		s.queue.Move(framework.Event{Resource: framework.Pod, Action: framework.Add, New: now})
		return
	}
	a := podActions(old, now)
	if freed { // told by its spec, or by its status when a resize is done
		a |= framework.UpdatePodScaleDown
	}
	if a != 0 {
		s.queue.Move(framework.Event{Resource: framework.Pod, Action: a, Old: old, New: now})
	}
}

func (s *Scheduler) podWaits(old, now *corev1.Pod) {
	if s.cache.has(now.UID) {
		return // assumed: its binding is under way
	}
	info, err := framework.NewPodInfo(now)
	if err != nil {
		s.log.Warn("pod affinity ignored", "pod", now.Namespace+"/"+now.Name, "err", err)
	}
	if old == nil {
		s.nominated.set(info, now.Status.NominatedNodeName)
		s.queue.Add(info)
		return
	}
	if was := old.Status.NominatedNodeName; was != now.Status.NominatedNodeName {
		s.nominated.set(info, now.Status.NominatedNodeName)
		if was != "" { // for others this is as if the pod were gone from there
			gone := *old
			gone.Spec.NodeName = was
			defer s.queue.Move(framework.Event{Resource: framework.Pod, Action: framework.Delete, Old: &gone})
		}
	}
	a := podActions(old, now)
	if asksLess(old, info) {
		a |= framework.UpdatePodScaleDown
	}
	if a != 0 || !equality.Semantic.DeepEqual(old.Spec, now.Spec) ||
		(old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) {
		s.queue.Update(old, info, a|framework.UpdateOther)
	}
}

func (s *Scheduler) podGone(old *corev1.Pod, was podPlace) {
	s.queue.Delete(old.UID)
	s.nominated.remove(old.UID)
	s.waiting.reject(old.UID)
	if was == assigned || s.cache.has(old.UID) {
		s.cache.removePod(old.UID)
		s.queue.Move(framework.Event{Resource: framework.Pod, Action: framework.Delete, Old: old})
	} else if was == toPlace && old.Status.NominatedNodeName != "" {
		s.queue.Move(framework.Event{Resource: framework.AnyResource, Action: framework.Delete, Old: old})
	}
}

func podActions(old, now *corev1.Pod) (a framework.Action) {
	if old == nil {
		return 0
	}
	if !maps.Equal(old.Labels, now.Labels) {
		a |= framework.UpdatePodLabel
	}
	if len(old.Spec.SchedulingGates) > 0 && len(now.Spec.SchedulingGates) == 0 {
		a |= framework.UpdatePodSchedulingGatesEliminated
	}
	if len(now.Spec.ResourceClaims) > 0 &&
		!equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, now.Status.ResourceClaimStatuses) {
		a |= framework.UpdatePodGeneratedResourceClaim
	}
	if !equality.Semantic.DeepEqual(old.Spec.Tolerations, now.Spec.Tolerations) {
		a |= framework.UpdatePodToleration
	}
	return a
}

// asksLess tells whether a pod without a node asks for less than before.
func asksLess(old *corev1.Pod, now *framework.PodInfo) bool {
	if old.Generation == now.Pod.Generation && old.Generation != 0 {
		return false
	}
	was, err := framework.NewPodInfo(old)
	return err == nil && was.Requests.Exceeds(&now.Requests)
}
