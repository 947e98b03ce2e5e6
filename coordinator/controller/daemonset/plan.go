package daemonset

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// burst bounds how many pods one reconcile creates or deletes.
const burst = 250

// view is what one reconcile sees.
type view struct {
	ds    *appsv1.DaemonSet
	nodes []*corev1.Node
	pods  map[string][]*corev1.Pod // by target node
	// leaving are pods that are over and deleted: a finalizer may hold them for long, and
	// their nodes need others.
	leaving []*corev1.Pod
	place   placement
	// hash names the current revision.
	hash string
	now  time.Time
}

// todo is what to do.
type todo struct {
	create []string // nodes
	del    []*corev1.Pod
	// failed are pods to delete with back-off, by node.
	failed map[string]*corev1.Pod
	// succeeded are pods to delete, which a daemon pod should never be.
	succeeded []*corev1.Pod
}

// take sorts the set's pods.
func (v *view) take(pods []*corev1.Pod) {
	v.pods = map[string][]*corev1.Pod{}
	for _, p := range pods {
		if controller.PodTerminal(p) && p.DeletionTimestamp != nil {
			v.leaving = append(v.leaving, p)
		} else if node := target(p); node != "" {
			v.pods[node] = append(v.pods[node], p)
		}
	}
}

func (v *view) updated(p *corev1.Pod) bool {
	if v.hash != "" && p.Labels[appsv1.ControllerRevisionHashLabelKey] == v.hash {
		return true
	}
	g := templateGeneration(v.ds)
	return g != nil && p.Labels[generationLabel] == strconv.FormatInt(*g, 10)
}

func (v *view) available(p *corev1.Pod) bool {
	ok, _ := controller.PodAvailable(p, v.ds.Spec.MinReadySeconds, v.now)
	return ok
}

// manage brings one pod to each node that should run one and takes pods off the
// others.
func (v *view) manage() todo {
	do := todo{failed: map[string]*corev1.Pod{}}
	known := make(map[string]bool, len(v.nodes))
	for _, n := range v.nodes {
		known[n.Name] = true
		run, stay := v.place.on(n)
		pods, exist := v.pods[n.Name]
		switch {
		case run && !exist:
			do.create = append(do.create, n.Name)
		case stay:
			v.manageNode(n.Name, pods, run, &do)
		case exist:
			do.del = append(do.del, alive(pods)...)
		}
	}
	// Pods pinned to nodes that are gone and that were never scheduled.
	for node, pods := range v.pods {
		if known[node] {
			continue
		}
		for _, p := range alive(pods) {
			if p.Spec.NodeName == "" {
				do.del = append(do.del, p)
			}
		}
	}
	return do
}

func alive(pods []*corev1.Pod) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

func (v *view) manageNode(node string, pods []*corev1.Pod, run bool, do *todo) {
	var running []*corev1.Pod
	for _, p := range alive(pods) {
		switch p.Status.Phase {
		case corev1.PodFailed:
			do.failed[node] = p
		case corev1.PodSucceeded:
			do.succeeded = append(do.succeeded, p)
		default:
			running = append(running, p)
		}
	}
	surge, _ := v.limits(1)
	if surge == 0 {
		slices.SortFunc(running, bestFirst)
		if len(running) > 1 {
			do.del = append(do.del, running[1:]...)
		}
	} else if len(running) > 1 {
		do.del = append(do.del, v.surplus(running)...)
	}
	// Without surge, a pod that is being deleted still holds its node's place.
	if surge > 0 && len(running) == 0 && do.failed[node] == nil && run {
		do.create = append(do.create, node)
	}
}

// surplus lets one old and one new pod share a node while the new one becomes
// available.
func (v *view) surplus(running []*corev1.Pod) (del []*corev1.Pod) {
	slices.SortFunc(running, bestFirst)
	var fresh, old *corev1.Pod
	for _, p := range running {
		switch is := p.Labels[appsv1.ControllerRevisionHashLabelKey] == v.hash; {
		case is && fresh == nil:
			fresh = p
		case !is && old == nil:
			old = p
		default:
			del = append(del, p)
		}
	}
	if fresh != nil && old != nil && (!controller.PodReady(old) || v.available(fresh)) {
		del = append(del, old)
	}
	return del
}

// bestFirst puts scheduled pods first, then the oldest.
func bestFirst(a, b *corev1.Pod) int {
	if sa, sb := a.Spec.NodeName != "", b.Spec.NodeName != ""; sa != sb {
		if sa {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// limits are maxSurge and maxUnavailable, both rounded up; with pods wanted
// they are never both 0.
func (v *view) limits(desired int) (surge, unavailable int) {
	ru := v.ds.Spec.UpdateStrategy.RollingUpdate
	if v.ds.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return 0, 0
	}
	if ru != nil {
		surge, _ = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(ru.MaxSurge, intstr.FromInt32(0)),
			desired, true)
		unavailable, _ = intstr.GetScaledValueFromIntOrPercent(
			intstr.ValueOrDefault(ru.MaxUnavailable, intstr.FromInt32(0)), desired, true)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// pair is a node's pods by revision.
type pair struct {
	node       string
	fresh, old *corev1.Pod
	excess     bool // more than one of a kind: left to manage
}

func (v *view) pairs() (list []pair, desired int, runs map[string]bool) {
	runs = map[string]bool{}
	names := map[string]bool{}
	for _, n := range v.nodes {
		if run, _ := v.place.on(n); run {
			runs[n.Name], names[n.Name] = true, true
			desired++
		}
	}
	for node := range v.pods {
		names[node] = true
	}
	for node := range names {
		p := pair{node: node}
		for _, pod := range alive(v.pods[node]) {
			slot := &p.old
			if v.updated(pod) {
				slot = &p.fresh
			}
			p.excess = p.excess || *slot != nil
			*slot = pod
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b pair) int { return cmp.Compare(a.node, b.node) })
	return list, desired, runs
}

// roll is the next step of a rolling update.
func (v *view) roll() todo {
	list, desired, runs := v.pairs()
	surge, unavailable := v.limits(desired)
	if surge == 0 {
		return v.rollUnavailable(list, unavailable)
	}
	return v.rollSurge(list, surge, desired, runs)
}

// rollUnavailable deletes old pods: those not available at once, others while
// no more than the limit are unavailable.
func (v *view) rollUnavailable(list []pair, limit int) (do todo) {
	down := 0
	var candidates []*corev1.Pod
	for _, p := range list {
		switch {
		case p.excess, p.old == nil && p.fresh == nil, p.old != nil && p.fresh != nil:
			down++
		case p.fresh != nil:
			if !v.available(p.fresh) {
				down++
			}
		case !v.available(p.old):
			do.del = append(do.del, p.old)
			down++
		default:
			candidates = append(candidates, p.old)
		}
	}
	do.del = append(do.del, candidates[:min(max(limit-down, 0), len(candidates))]...)
	return do
}

// rollSurge starts new pods beside old ones, and deletes an old pod when its
// successor is available.
func (v *view) rollSurge(list []pair, limit, desired int, runs map[string]bool) (do todo) {
	surging, availableNow := 0, 0
	var candidates []string
	var misplaced []*corev1.Pod
	for _, p := range list {
		if p.excess {
			surging++
			continue
		}
		if one := cmp.Or(p.old, p.fresh); one != nil && v.available(one) {
			availableNow++
		}
		switch {
		case p.old == nil:
		case p.fresh != nil && !v.available(p.fresh):
			surging++
		case p.fresh != nil:
			do.del = append(do.del, p.old)
		case !runs[p.node] && !v.available(p.old):
			do.del = append(do.del, p.old)
		case !runs[p.node]:
			misplaced = append(misplaced, p.old)
		case !v.available(p.old):
			do.create = append(do.create, p.node)
		default:
			candidates = append(candidates, p.node)
		}
	}
	do.create = append(do.create, candidates[:min(max(limit-surging, 0), len(candidates))]...)
	do.del = append(do.del, misplaced[:min(max(availableNow-desired, 0), len(misplaced))]...)
	return do
}

// status counts; wait is the time until a ready pod becomes available.
func (v *view) status() (status appsv1.DaemonSetStatus, wait time.Duration) {
	status = appsv1.DaemonSetStatus{
		ObservedGeneration: v.ds.Generation, CollisionCount: v.ds.Status.CollisionCount,
		Conditions: v.ds.Status.Conditions,
	}
	for _, n := range v.nodes {
		run, _ := v.place.on(n)
		pods := slices.Clone(v.pods[n.Name])
		if !run {
			if len(pods) > 0 {
				status.NumberMisscheduled++
			}
			continue
		}
		status.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		status.CurrentNumberScheduled++
		slices.SortFunc(pods, bestFirst)
		if controller.PodReady(pods[0]) {
			status.NumberReady++
			ok, left := controller.PodAvailable(pods[0], v.ds.Spec.MinReadySeconds, v.now)
			if ok {
				status.NumberAvailable++
			} else if left > 0 && (wait == 0 || left < wait) {
				wait = left
			}
		}
		if v.updated(pods[0]) {
			status.UpdatedNumberScheduled++
		}
	}
	status.NumberUnavailable = status.DesiredNumberScheduled - status.NumberAvailable
	return status, wait
}
