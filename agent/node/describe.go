package node

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what the node asks its container runtime.
type Runtime interface {
	Status(ctx context.Context, verbose bool) (*criv1.StatusResponse, error)
}

// ImageStore lists the images of the node.
type ImageStore interface {
	ListImages(ctx context.Context, filter *criv1.ImageFilter) ([]*criv1.Image, error)
}

// Describer gathers what the Node says.
type Describer struct {
	// Static is what does not change while the agent runs.
	Static  Input
	Runtime Runtime
	Images  ImageStore
	// MaxImages is how many images are listed; -1: all.
	MaxImages int
	// Pressure is what is short now, Annotations what is shown beside what others
	// wrote, Leaving whether the machine shuts down.
	Pressure    func() map[corev1.NodeConditionType]bool
	Problems    func() []corev1.NodeCondition // nil: nobody looks for them
	Annotations func() map[string]string
	Leaving     func() bool
	// Devices are how many there are of the resources of device plugins, and how many of
	// them are healthy; nil: nobody looks after any.
	Devices func() (capacity, allocatable corev1.ResourceList)
	// OwnNetwork tells whether the agent's own network connects pods now; nil: it never
	// does.
	OwnNetwork func() bool
	// InUse names the volumes that must not be detached; nil: there are none.
	InUse func() []corev1.UniqueVolumeName
}

// Describe returns what the Node says now.
func (d *Describer) Describe(ctx context.Context) Input {
	in := d.Static
	in.Now, in.Pressure, in.Annotations = metav1.Now().Rfc3339Copy(), d.Pressure(), d.Annotations()
	if d.Problems != nil {
		in.Problems = d.Problems()
	}
	if d.Devices != nil {
		in.Devices, in.HealthyDevices = d.Devices()
	}
	if d.InUse != nil {
		in.InUse = d.InUse()
	}
	in.OwnNetwork = d.OwnNetwork != nil && d.OwnNetwork()
	if d.Leaving() {
		in.NotReady = "node is shutting down"
		return in
	}
	st, err := d.Runtime.Status(ctx, false)
	if err != nil {
		in.NotReady = "container runtime is down: " + err.Error()
		return in
	}
	in.NotReady = notReady(st.GetStatus().GetConditions())
	if in.OwnNetwork {
		in.Network = networkUnavailable(st.GetStatus().GetConditions())
	}
	in.Handlers = Handlers(st.GetRuntimeHandlers())
	strict := st.GetFeatures().GetSupplementalGroupsPolicy()
	in.StrictGroups = &strict
	if list, err := d.Images.ListImages(ctx, nil); err == nil {
		in.Images = Images(list, d.MaxImages)
	}
	return in
}

// notReady is why the runtime starts no pods, in the kubelet's words; "" when it
// does.
func notReady(conditions []*criv1.RuntimeCondition) (why string) {
	for _, c := range conditions {
		what := "container runtime not ready"
		switch {
		case c.Status:
			continue
		case c.Type == criv1.NetworkReady:
			what = "container runtime network not ready"
		case c.Type != criv1.RuntimeReady:
			continue
		}
		why = fmt.Sprintf("%s: %s=false reason:%s message:%s", what, c.Type, c.Reason, c.Message)
	}
	return why
}

// Reasons of the condition NetworkUnavailable where the network is the agent's own.
const (
	networkUp   = "ShoalNetworkIsUp"
	networkDown = "ShoalNetworkIsDown"
)

// networkUnavailable is what a Node says of the agent's own network; of another one its
// owner says it.
func networkUnavailable(conditions []*criv1.RuntimeCondition) *corev1.NodeCondition {
	for _, c := range conditions {
		if c.Type == criv1.NetworkReady && !c.Status {
			return &corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue,
				Reason: networkDown, Message: c.Message}
		}
	}
	return &corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse,
		Reason: networkUp, Message: "the agent's own pod network is set up on this node"}
}

// Reserved adds up what the configuration keeps for the system and its daemons;
// the quantities have been validated.
func Reserved(lists ...map[string]string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, m := range lists {
		for k, v := range m {
			q, err := resource.ParseQuantity(v)
			if err != nil {
				continue
			}
			sum := out[corev1.ResourceName(k)]
			sum.Add(q)
			out[corev1.ResourceName(k)] = sum
		}
	}
	return out
}

// Taints reads KEY=VALUE:EFFECT.
func Taints(list []string) []corev1.Taint {
	var out []corev1.Taint
	for _, s := range list {
		kv, effect, ok := strings.Cut(s, ":")
		if !ok {
			continue
		}
		key, value, _ := strings.Cut(kv, "=")
		out = append(out, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return out
}
