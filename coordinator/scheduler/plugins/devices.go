package plugins

import (
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// devices keeps pods with resource claims unscheduled: nobody allocates devices,
// and without them the pod must not run.
type devices struct{}

var noDevices = framework.NewStatus(framework.UnschedulableAndUnresolvable, "pod has spec.resourceClaims, and this scheduler does not allocate devices")

func (devices) Name() string { return DynamicResourcesName }

func (devices) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	if len(pod.Pod.Spec.ResourceClaims) == 0 {
		return append(key, 0), true
	}
	return append(key, 1), true
}

func (devices) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	if len(pod.Pod.Spec.ResourceClaims) == 0 {
		return nil, nil, nil
	}
	return nil, nil, noDevices
}
