package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// nodeUnschedulable refuses cordoned nodes, unless the pod tolerates the taint
// node.kubernetes.io/unschedulable (NODE-17, DS-13).
type nodeUnschedulable struct{}

var cordoned = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) were unschedulable")

func (nodeUnschedulable) Name() string { return NodeUnschedulableName }

func (nodeUnschedulable) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return signBool(key, toleratesCordon(pod.Pod)), true
}

func (nodeUnschedulable) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if toleratesCordon(pod.Pod) {
		return nil, nil, nil
	}
	return nodeUnschedulable{}, nil, nil
}

func (nodeUnschedulable) Filter(n *framework.NodeInfo) *framework.Status {
	if n.Node.Spec.Unschedulable {
		return cordoned
	}
	return nil
}

func (nodeUnschedulable) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Node, Actions: framework.Add | framework.UpdateNodeTaint,
			Hint: func(_ *corev1.Pod, e framework.Event) framework.Hint {
				n := nodeOf(e.New)
				return framework.Hint(n == nil || !n.Spec.Unschedulable)
			}},
		{Resource: framework.Pod, Actions: framework.UpdatePodToleration,
			Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint {
				return framework.Hint(samePod(pod, e) && toleratesCordon(podOf(e.New)))
			}},
	}
}

func toleratesCordon(pod *corev1.Pod) bool {
	return tolerates(pod.Spec.Tolerations,
		&corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

func signBool(key []byte, b bool) []byte {
	if b {
		return append(key, 1)
	}
	return append(key, 0)
}
