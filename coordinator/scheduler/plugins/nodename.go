package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// nodeName refuses all nodes but the one of spec.nodeName. Pods that come
// through the queue have none; the plugin serves placements asked for directly.
type nodeName struct{ name string }

var wrongName = framework.NewStatus(framework.UnschedulableAndUnresolvable, "node(s) didn't match the requested node name")

func (nodeName) Name() string { return NodeNameName }

func (nodeName) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return signString(key, pod.Pod.Spec.NodeName), true
}

func (nodeName) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if pod.Pod.Spec.NodeName == "" {
		return nil, nil, nil
	}
	return nodeName{pod.Pod.Spec.NodeName}, nil, nil
}

func (p nodeName) Filter(n *framework.NodeInfo) *framework.Status {
	if n.Name() != p.name {
		return wrongName
	}
	return nil
}

func (nodeName) Events() []framework.EventHint {
	return []framework.EventHint{{Resource: framework.Node, Actions: framework.Add,
		Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint {
			n := nodeOf(e.New)
			return framework.Hint(n == nil || n.Name == pod.Spec.NodeName)
		}}}
}
