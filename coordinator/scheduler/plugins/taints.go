package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// taintToleration refuses nodes with a NoSchedule or NoExecute taint that the
// pod does not tolerate, and prefers those with few PreferNoSchedule ones.
type taintToleration struct{}

var untolerated = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) had untolerated taint(s)")

func (taintToleration) Name() string { return TaintTolerationName }

func (taintToleration) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	key = signInt(key, int64(len(pod.Pod.Spec.Tolerations)))
	for i := range pod.Pod.Spec.Tolerations {
		t := &pod.Pod.Spec.Tolerations[i]
		key = signString(key, t.Key)
		key = signString(key, string(t.Operator))
		key = signString(key, t.Value)
		key = signString(key, string(t.Effect))
	}
	return key, true
}

func (taintToleration) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	return taintFilter(pod.Pod.Spec.Tolerations), nil, nil
}

func (taintToleration) PreScore(pod *framework.PodInfo, _ *framework.Snapshot) (framework.Scorer, *framework.Status) {
	var soft taintScore
	for _, t := range pod.Pod.Spec.Tolerations {
		if t.Effect == "" || t.Effect == corev1.TaintEffectPreferNoSchedule {
			soft = append(soft, t)
		}
	}
	return soft, nil
}

func (taintToleration) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeTaint,
			Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint {
				was, is := nodeOf(e.Old), nodeOf(e.New)
				if is == nil {
					return framework.Queue
				}
				return framework.Hint(!repels(is, pod.Spec.Tolerations) &&
					(was == nil || repels(was, pod.Spec.Tolerations)))
			}},
		{Resource: framework.Pod, Actions: framework.UpdatePodToleration,
			Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint { return framework.Hint(samePod(pod, e)) }},
	}
}

type taintFilter []corev1.Toleration

func (f taintFilter) Filter(n *framework.NodeInfo) *framework.Status {
	if repels(n.Node, f) {
		return untolerated
	}
	return nil
}

// taintScore holds the tolerations that can cover PreferNoSchedule taints.
type taintScore []corev1.Toleration

func (s taintScore) Score(n *framework.NodeInfo) int64 {
	var count int64
	for i := range n.Node.Spec.Taints {
		if t := &n.Node.Spec.Taints[i]; t.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(s, t) {
			count++
		}
	}
	return count
}

func (s taintScore) Normalize(scores []int64) { normalize(scores, true) }

func repels(n *corev1.Node, ts []corev1.Toleration) bool {
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute) && !tolerates(ts, t) {
			return true
		}
	}
	return false
}

func tolerates(ts []corev1.Toleration, taint *corev1.Taint) bool {
	return schedulinghelper.TolerationsTolerateTaint(klog.Background(), ts, taint, false)
}
