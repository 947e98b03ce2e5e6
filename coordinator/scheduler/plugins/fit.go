package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// fit refuses nodes without room for the pod's requests (NODE-50) and scores
// the rest by its strategy, least allocated first unless configured otherwise.
type fit struct {
	ignored       sets.Set[string]
	ignoredGroups sets.Set[string]
	strategy      strategy
	devices       Devices // nil: no claim gives extended resources
}

func newFit(args []byte, d *Deps) (framework.Plugin, error) {
	var a configv1.NodeResourcesFitArgs
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	s, err := newStrategy(a.ScoringStrategy)
	if err != nil {
		return nil, err
	}
	return &fit{ignored: sets.New(a.IgnoredResources...),
		ignoredGroups: sets.New(a.IgnoredResourceGroups...), strategy: s, devices: d.Devices}, nil
}

func (*fit) Name() string { return NodeResourcesFitName }

func (f *fit) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	key = signResources(signResources(key, &pod.Requests), &pod.NonZero)
	for _, name := range byClaims(f.devices, pod) {
		key = signString(key, string(name))
	}
	return key, true
}

func (f *fit) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	r := newFitFilter(pod, f.devices)
	r.want = slices.DeleteFunc(r.want, func(w wanted) bool {
		group, _, ok := strings.Cut(string(w.name), "/")
		return ok && (f.ignored.Has(string(w.name)) || f.ignoredGroups.Has(group))
	})
	return r, nil, nil
}

func (f *fit) PreScore(pod *framework.PodInfo, _ *framework.Snapshot) (framework.Scorer, *framework.Status) {
	return &fitScore{strategy: f.strategy, pod: pod}, nil
}

func (f *fit) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Pod, Actions: framework.Delete | framework.UpdatePodScaleDown, Hint: roomFreed},
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeAllocatable, Hint: f.nodeHasRoom},
		{Resource: framework.DeviceClass, Actions: framework.Add | framework.UpdateOther, Hint: classGives},
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
func (f *fit) nodeHasRoom(pod *corev1.Pod, e framework.Event) framework.Hint {
	is, was := nodeOf(e.New), nodeOf(e.Old)
	p, err := framework.NewPodInfo(pod)
	if is == nil || err != nil {
		return framework.Queue
	}
	now := framework.NewNodeInfo(is)
	r := newFitFilter(p, f.devices)
	if r.Filter(now) != nil {
		return framework.QueueSkip
	}
	if was == nil {
		return framework.Queue
	}
	before := framework.NewNodeInfo(was)
	if now.Allocatable.Pods > before.Allocatable.Pods {
		return framework.Queue
	}
	for _, w := range r.want {
		if now.Allocatable.Get(w.name) > before.Allocatable.Get(w.name) {
			return framework.Queue
		}
	}
	return framework.QueueSkip
}

// classGives tells whether a class of devices, as it is now, stands for an extended
// resource that the pod asks for.
func classGives(pod *corev1.Pod, e framework.Event) framework.Hint {
	class, ok := e.New.(*resourcev1.DeviceClass)
	p, err := framework.NewPodInfo(pod)
	if !ok || err != nil {
		return framework.Queue
	}
	byName := p.Requests.Get(corev1.ResourceName(resourcev1.ResourceDeviceClassPrefix + class.Name))
	own := p.Requests.Get(corev1.ResourceName(ptr.Deref(class.Spec.ExtendedResourceName, "")))
	return framework.Hint(own > 0 || e.Old == nil && byName > 0)
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
	// byClaim: where the node itself has none, a claim for devices gives it.
	byClaim bool
}

func (w *wanted) lacks(n *framework.NodeInfo) bool {
	if w.byClaim && n.Allocatable.Get(w.name) == 0 {
		return false
	}
	return w.amount > n.Allocatable.Get(w.name)-n.Requested.Get(w.name)
}

func newFitFilter(pod *framework.PodInfo, devices Devices) *fitFilter {
	f := &fitFilter{seen: map[string]*framework.Status{}}
	add := func(name corev1.ResourceName, amount int64) {
		if amount > 0 {
			f.want = append(f.want, wanted{name: name, amount: amount})
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
	for i := range f.want[others:] {
		w := &f.want[others+i]
		w.byClaim = devices != nil && devices.ClassOf(w.name) != nil
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
