package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// fit refuses nodes without room for the pod's requests (NODE-50) and scores
// the rest by its strategy, least allocated first unless configured otherwise.
type fit struct {
	ignored       sets.Set[string]
	ignoredGroups sets.Set[string]
	strategy      strategy
}

func newFit(args []byte, _ *Deps) (framework.Plugin, error) {
	var a configv1.NodeResourcesFitArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	s, err := newStrategy(a.ScoringStrategy)
	if err != nil {
		return nil, err
	}
	return &fit{ignored: sets.New(a.IgnoredResources...),
		ignoredGroups: sets.New(a.IgnoredResourceGroups...), strategy: s}, nil
}

func (*fit) Name() string { return NodeResourcesFitName }

func (*fit) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return signResources(signResources(key, &pod.Requests), &pod.NonZero), true
}

func (f *fit) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	r := newFitFilter(pod)
	r.want = slices.DeleteFunc(r.want, func(w wanted) bool {
		group, _, ok := strings.Cut(string(w.name), "/")
		return ok && (f.ignored.Has(string(w.name)) || f.ignoredGroups.Has(group))
	})
	return r, nil, nil
}

func (f *fit) PreScore(pod *framework.PodInfo, _ *framework.Snapshot) (framework.Scorer, *framework.Status) {
	return &fitScore{strategy: f.strategy, pod: pod}, nil
}

func (*fit) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Pod, Actions: framework.Delete | framework.UpdatePodScaleDown, Hint: roomFreed},
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeAllocatable, Hint: nodeHasRoom},
	}
}

// roomFreed says yes to each pod that left a node, for even a pod without
// requests counts against the node's number of pods, and to one that asks for less now.
func roomFreed(pod *corev1.Pod, e framework.Event) framework.Hint {
	if e.Action == framework.Delete {
		gone := podOf(e.Old)
		return framework.Hint(gone != nil && gone.Spec.NodeName != "")
	}
	changed := podOf(e.New)
	return framework.Hint(changed != nil && (changed.UID == pod.UID || changed.Spec.NodeName != ""))
}

// nodeHasRoom asks whether the node could hold the pod if it were empty, and,
// when it has changed, whether it offers more of anything that the pod wants.
func nodeHasRoom(pod *corev1.Pod, e framework.Event) framework.Hint {
	is, was := nodeOf(e.New), nodeOf(e.Old)
	p, err := framework.NewPodInfo(pod)
	if is == nil || err != nil {
		return framework.Queue
	}
	now := framework.NewNodeInfo(is)
	f := newFitFilter(p)
	if f.Filter(now) != nil {
		return framework.QueueSkip
	}
	if was == nil {
		return framework.Queue
	}
	before := framework.NewNodeInfo(was)
	if now.Allocatable.Pods > before.Allocatable.Pods {
		return framework.Queue
	}
	for _, w := range f.want {
		if now.Allocatable.Get(w.name) > before.Allocatable.Get(w.name) {
			return framework.Queue
		}
	}
	return framework.QueueSkip
}

// fitFilter holds what the pod wants, zeros left out.
type fitFilter struct {
	want []wanted // in the order in which a lack is told
	// seen keeps one verdict for each combination of lacking resources.
	seen map[string]*framework.Status
}

type wanted struct {
	name   corev1.ResourceName
	amount int64
}

func (w *wanted) lacks(n *framework.NodeInfo) bool {
	return w.amount > n.Allocatable.Get(w.name)-n.Requested.Get(w.name)
}

func newFitFilter(pod *framework.PodInfo) *fitFilter {
	f := &fitFilter{seen: map[string]*framework.Status{}}
	add := func(name corev1.ResourceName, amount int64) {
		if amount > 0 {
			f.want = append(f.want, wanted{name, amount})
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory,
		corev1.ResourceEphemeralStorage} {
		add(name, pod.Requests.Get(name))
	}
	others := len(f.want)
	for name, amount := range pod.Requests.Other {
		add(name, amount)
	}
	slices.SortFunc(f.want[others:], func(a, b wanted) int { return cmp.Compare(a.name, b.name) })
	return f
}

func (f *fitFilter) Filter(n *framework.NodeInfo) *framework.Status {
	if int64(len(n.Pods)+1) > n.Allocatable.Pods {
		return f.explain(n)
	}
	for i := range f.want {
		if f.want[i].lacks(n) {
			return f.explain(n)
		}
	}
	return nil
}

// explain tells all that lacks. A request beyond what the empty node offers
// cannot be met by removing pods.
func (f *fitFilter) explain(n *framework.NodeInfo) *framework.Status {
	code := framework.Unschedulable
	var reasons []string
	if int64(len(n.Pods)+1) > n.Allocatable.Pods {
		reasons = append(reasons, "Too many pods")
	}
	for i := range f.want {
		w := &f.want[i]
		if !w.lacks(n) {
			continue
		}
		reasons = append(reasons, "Insufficient "+string(w.name))
		if w.amount > n.Allocatable.Get(w.name) {
			code = framework.UnschedulableAndUnresolvable
		}
	}
	key := fmt.Sprint(code, reasons)
	if f.seen[key] == nil {
		f.seen[key] = framework.NewStatus(code, reasons...)
	}
	return f.seen[key]
}

func signResources(key []byte, r *framework.Resources) []byte {
	key = signInt(signInt(signInt(key, r.MilliCPU), r.Memory), r.EphemeralStorage)
	names := make([]string, 0, len(r.Other))
	for n := range r.Other {
		names = append(names, string(n))
	}
	slices.Sort(names)
	key = signInt(key, int64(len(names)))
	for _, n := range names {
		key = signInt(signString(key, n), r.Other[corev1.ResourceName(n)])
	}
	return key
}
