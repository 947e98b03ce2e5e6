package plugins

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// nodePorts refuses nodes where a host port of the pod is taken.
type nodePorts struct{}

var portTaken = framework.NewStatus(framework.Unschedulable, "node(s) didn't have free ports for the requested pod ports")

func (nodePorts) Name() string { return NodePortsName }

func (nodePorts) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	key = signInt(key, int64(len(pod.HostPorts)))
	for _, h := range pod.HostPorts {
		key = signInt(signString(signString(key, h.IP), string(h.Protocol)), int64(h.Port))
	}
	return key, true
}

func (nodePorts) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if len(pod.HostPorts) == 0 {
		return nil, nil, nil
	}
	return portFilter(pod.HostPorts), nil, nil
}

func (nodePorts) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Node, Actions: framework.Add},
		{Resource: framework.Pod, Actions: framework.Delete, Hint: portFreed},
	}
}

type portFilter []framework.HostPort

func (f portFilter) Filter(n *framework.NodeInfo) *framework.Status {
	for _, want := range f {
		if n.PortTaken(want) {
			return portTaken
		}
	}
	return nil
}

func portFreed(pod *corev1.Pod, e framework.Event) framework.Hint {
	gone := podOf(e.Old)
	if gone == nil || gone.Spec.NodeName == "" {
		return framework.QueueSkip
	}
	n := framework.NewNodeInfo(nil)
	if p, err := framework.NewPodInfo(gone); err == nil {
		n.AddPod(p)
	}
	want, err := framework.NewPodInfo(pod)
	if err != nil {
		return framework.Queue
	}
	return framework.Hint(portFilter(want.HostPorts).Filter(n) != nil)
}
