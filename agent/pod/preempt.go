package pod

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/pod/launch"
	"github.com/shoal-project/shoal/agent/record"
)

// A critical pod for which the node has no room ends others, and starts when they are gone:
// as few of them as it takes, those of the best class of service last (the kubelet's
// pkg/kubelet/preemption; PodPriority in the documentation of guaranteed scheduling for
// critical add-on pods).

const (
	reasonPreempting  = "Preempting"
	messagePreempting = "Preempted in order to admit critical pod"
	messageDisrupted  = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// critical pods, which end for no less critical one, are those of manifests and of system-cluster-critical or above.
func critical(p *corev1.Pod) bool {
	source := p.Annotations["kubernetes.io/config.source"]
	return source == SourceFile || source == "http" ||
		p.Spec.Priority != nil && *p.Spec.Priority >= launch.CriticalPriority
}

// yields tells whether a pod ends for a critical one.
func yields(p, to *corev1.Pod) bool {
	if !critical(p) {
		return true
	}
	return p.Spec.Priority != nil && to.Spec.Priority != nil && *p.Spec.Priority < *to.Spec.Priority
}

// victims are the pods that end so that p fits beside the others; none where that does not
// help, or is not p's to ask. It is pure.
func victims(p *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) []*corev1.Pod {
	need := map[corev1.ResourceName]int64{}
	for _, l := range lacks(p, others, allocatable) {
		need[l.name] = l.want + l.used - l.have
	}
	if !critical(p) || len(need) == 0 {
		return nil
	}
	var classes [3][]*corev1.Pod
	rank := map[corev1.PodQOSClass]int{corev1.PodQOSBestEffort: 0, corev1.PodQOSBurstable: 1, corev1.PodQOSGuaranteed: 2}
	for _, o := range others {
		if yields(o, p) {
			i := rank[launch.QoS(o)]
			classes[i] = append(classes[i], o)
		}
	}
	// Of a better class only what all of the worse ones do not free.
	var out []*corev1.Pod
	for i := len(classes) - 1; i >= 0; i-- {
		rest := less(need, out)
		for _, worse := range classes[:i] {
			rest = less(rest, worse)
		}
		chosen, ok := fewest(classes[i], rest)
		if !ok {
			return nil
		}
		out = append(out, chosen...)
	}
	return out
}

// less is what is needed still when pods end.
func less(need map[corev1.ResourceName]int64, pods []*corev1.Pod) map[corev1.ResourceName]int64 {
	out := map[corev1.ResourceName]int64{}
	for name, n := range need {
		for _, p := range pods {
			n -= takes(p, name)
		}
		if n > 0 {
			out[name] = n
		}
	}
	return out
}

// takes is how much of a resource a pod has: milli-CPUs, or the resource's own unit.
func takes(p *corev1.Pod, name corev1.ResourceName) int64 {
	q := requests(p)[name]
	switch name {
	case corev1.ResourcePods:
		return 1
	case corev1.ResourceCPU:
		return q.MilliValue()
	}
	return q.Value()
}

// fewest chooses pods until nothing is needed: each time the one that comes nearest to it,
// and of several the one that has least beyond it; false where all are not enough.
func fewest(pods []*corev1.Pod, need map[corev1.ResourceName]int64) (out []*corev1.Pod, ok bool) {
	left := slices.Clone(pods)
	for len(need) > 0 {
		if len(left) == 0 {
			return nil, false
		}
		best := slices.MinFunc(left, func(a, b *corev1.Pod) int {
			missesA, beyondA := distance(a, need)
			missesB, beyondB := distance(b, need)
			return cmp.Or(cmp.Compare(missesA, missesB), cmp.Compare(beyondA, beyondB),
				b.CreationTimestamp.Compare(a.CreationTimestamp.Time))
		})
		out = append(out, best)
		left = slices.DeleteFunc(left, func(p *corev1.Pod) bool { return p == best })
		need = less(need, []*corev1.Pod{best})
	}
	return out, true
}

// distance is how far a pod is from what is needed, and how much more it has, as shares of
// the need.
func distance(p *corev1.Pod, need map[corev1.ResourceName]int64) (misses, beyond float64) {
	for name, n := range need {
		if share := 1 - float64(takes(p, name))/float64(n); share > 0 {
			misses += share * share
		} else {
			beyond -= share
		}
	}
	return misses, beyond
}

// makeRoom ends pods for p, which the node has no room for beside the others, unless enough
// of these end anyway. It tells whether p is to wait for their end.
func (w *worker) makeRoom(p *corev1.Pod, others []*corev1.Pod, allocatable corev1.ResourceList) bool {
	lacking := lacks(p, others, allocatable)
	if !critical(p) || len(lacking) == 0 {
		return false
	}
	ending := w.m.ending()
	staying := slices.DeleteFunc(slices.Clone(others), func(o *corev1.Pod) bool {
		return ending[o.UID] || o.DeletionTimestamp != nil
	})
	if len(lacks(p, staying, allocatable)) == 0 {
		return true
	}
	list := victims(p, staying, allocatable)
	if len(list) == 0 {
		return false
	}
	var names []string
	for _, v := range list {
		names = append(names, v.Namespace+"/"+v.Name)
		w.m.Events.Event(v, "", corev1.EventTypeWarning, reasonPreempting, messagePreempting)
		// The kubelet makes a pod's last phase of how its containers ended.
		if w.m.Preempted != nil {
			w.m.Preempted(lacking[0].name)
		}
		verdict := record.Verdict{
			Phase: corev1.PodFailed, Reason: reasonPreempting, Message: messagePreempting, ByExit: true,
		}
		w.m.Evict(v.UID, verdict,
			&record.Verdict{Reason: corev1.PodReasonTerminationByKubelet, Message: messageDisrupted}, -1)
	}
	w.m.Log.Warn("pods end to make room for a critical one", "pods", names, "critical", p.Namespace+"/"+p.Name)
	w.m.Events.Event(p, "", corev1.EventTypeNormal, reasonPreempting,
		"The node has no room for this pod: it starts when these have ended: "+strings.Join(names, ", "))
	return true
}

// ending are the pods that are over, or will be soon, and have not left the node yet.
func (m *Manager) ending() map[types.UID]bool {
	m.mu.Lock()
	workers := m.list()
	m.mu.Unlock()
	out := map[types.UID]bool{}
	for _, w := range workers {
		w.mu.Lock()
		if w.shown.ended {
			out[w.uid] = true
		}
		w.mu.Unlock()
	}
	return out
}
