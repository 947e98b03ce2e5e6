package framework

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// Action is a bit set of what happened to an object.
type Action int32

// Actions that plugins can wait for. The finer update bits keep pods from
// being retried for changes that cannot matter to them.
const (
	Add Action = 1 << iota
	Delete
	UpdateNodeAllocatable
	UpdateNodeLabel
	UpdateNodeTaint // taints or spec.unschedulable
	UpdateNodeCondition
	UpdateNodeImages
	UpdateNodeDeclaredFeature
	UpdatePodLabel
	UpdatePodScaleDown
	UpdatePodToleration
	UpdatePodSchedulingGatesEliminated
	UpdatePodGeneratedResourceClaim
	UpdateOther

	All = 1<<iota - 1
)

// Resource is a kind whose changes can make a refused pod schedulable.
type EventResource string

// Resources that the scheduler watches on behalf of plugins.
const (
	Pod                   EventResource = "Pod"
	Node                  EventResource = "Node"
	Namespace             EventResource = "Namespace"
	PersistentVolumeClaim EventResource = "PersistentVolumeClaim"
	PersistentVolume      EventResource = "PersistentVolume"
	StorageClass          EventResource = "storage.k8s.io/StorageClass"
	CSIDriver             EventResource = "storage.k8s.io/CSIDriver"
	CSINode               EventResource = "storage.k8s.io/CSINode"
	VolumeAttachment      EventResource = "storage.k8s.io/VolumeAttachment"
	CSIStorageCapacity    EventResource = "storage.k8s.io/CSIStorageCapacity"
	ResourceClaim         EventResource = "resource.k8s.io/ResourceClaim"
	DeviceClass           EventResource = "resource.k8s.io/DeviceClass"
	ResourceSlice         EventResource = "resource.k8s.io/ResourceSlice"
	// AnyResource is the event of forced retries.
	AnyResource EventResource = "*"
)

// Event is one change of the cluster. Old is nil for additions, New for deletions.
type Event struct {
	Resource EventResource
	Action   Action
	Old, New any
}

// actionNames are upstream's, for metrics.
var actionNames = map[Action]string{
	Add: "Add", Delete: "Delete", UpdateNodeAllocatable: "UpdateNodeAllocatable", UpdateNodeLabel: "UpdateNodeLabel",
	UpdateNodeTaint: "UpdateNodeTaint", UpdateNodeCondition: "UpdateNodeCondition",
	UpdateNodeDeclaredFeature: "UpdateNodeDeclaredFeature", UpdatePodLabel: "UpdatePodLabel",
	UpdatePodScaleDown: "UpdatePodScaleDown", UpdatePodToleration: "UpdatePodToleration",
	UpdatePodSchedulingGatesEliminated: "UpdatePodSchedulingGatesEliminated",
	UpdatePodGeneratedResourceClaim:    "UpdatePodGeneratedResourceClaim",
}

// Label names the event in metrics; of several actions the first that is told apart.
func (e Event) Label() string {
	resource := e.Resource
	if resource == Pod {
		resource = "UnschedulablePod"
		if pod, ok := cmp.Or(e.New, e.Old).(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			resource = "AssignedPod"
		}
	}
	for bit := Add; bit <= e.Action; bit <<= 1 {
		if name := actionNames[e.Action&bit]; name != "" {
			return string(resource) + name
		}
	}
	return string(resource) + "Update"
}

// Hint is a plugin's opinion of whether an event is worth a retry.
type Hint bool

// Answers of a HintFunc.
const (
	QueueSkip Hint = false
	Queue     Hint = true
)

// HintFunc judges an event for a pod that the plugin has refused.
type HintFunc func(pod *corev1.Pod, e Event) Hint

// EventHint declares an interest in events. Without Hint each of them is worth
// a retry.
type EventHint struct {
	Resource EventResource
	Actions  Action
	Hint     HintFunc
}

// Matches reports whether the declaration covers the event.
func (h *EventHint) Matches(e Event) bool {
	return e.Resource == AnyResource || h.Resource == e.Resource && h.Actions&e.Action != 0
}
