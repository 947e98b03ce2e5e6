package framework

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Resources is a resource list in plain numbers. Values are never negative.
type Resources struct {
	MilliCPU, Memory, EphemeralStorage int64
	Pods                               int64 // meaningful for allocatable only
	// Other holds extended resources and huge pages; nil when there is none.
	Other map[corev1.ResourceName]int64
}

// Add adds a list.
func (r *Resources) Add(list corev1.ResourceList) {
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU += q.MilliValue()
		case corev1.ResourceMemory:
			r.Memory += q.Value()
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage += q.Value()
		case corev1.ResourcePods:
			r.Pods += q.Value()
		default:
			if r.Other == nil {
				r.Other = map[corev1.ResourceName]int64{}
			}
			r.Other[name] += q.Value()
		}
	}
}

// Get returns the amount of one resource, milli-units for the CPU.
func (r *Resources) Get(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	case corev1.ResourcePods:
		return r.Pods
	}
	return r.Other[name]
}

// Equal compares two lists.
func (r *Resources) Equal(o *Resources) bool {
	return r.MilliCPU == o.MilliCPU && r.Memory == o.Memory && r.EphemeralStorage == o.EphemeralStorage &&
		r.Pods == o.Pods && maps.Equal(r.Other, o.Other)
}

func (r *Resources) plus(o *Resources, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	for name, v := range o.Other {
		if r.Other == nil {
			r.Other = map[corev1.ResourceName]int64{}
		}
		r.Other[name] += sign * v
	}
}

func (r *Resources) clone() Resources {
	c := *r
	c.Other = maps.Clone(r.Other)
	return c
}

// NodeInfo is a node with the sum of what its pods take. In a Snapshot it is
// never changed; Clone one to ask what-if questions.
type NodeInfo struct {
	// Slot is the node's index in its Snapshot.
	Slot        int
	Node        *corev1.Node
	Allocatable Resources
	Requested   Resources
	// NonZero sums PodInfo.NonZero.
	NonZero Resources
	Pods    []*PodInfo
	// WithAffinity are the pods with any inter-pod term, WithAntiAffinity those
	// with a required anti-affinity.
	WithAffinity, WithAntiAffinity []*PodInfo
	Ports                          map[HostPort]int
	// Images maps normalised image names to their size in bytes.
	Images map[string]int64
}

// NewNodeInfo returns the info of a node without pods. node may be nil for one
// that is not known yet.
func NewNodeInfo(node *corev1.Node) *NodeInfo {
	n := &NodeInfo{}
	if node != nil {
		n.SetNode(node)
	}
	return n
}

// Name returns the node's name.
func (n *NodeInfo) Name() string { return n.Node.Name }

// SetNode replaces the node object.
func (n *NodeInfo) SetNode(node *corev1.Node) {
	n.Node = node
	n.Allocatable = Resources{}
	n.Allocatable.Add(node.Status.Allocatable)
	n.Images = nil
	for i := range node.Status.Images {
		im := &node.Status.Images[i]
		for _, name := range im.Names {
			if n.Images == nil {
				n.Images = make(map[string]int64, len(node.Status.Images))
			}
			n.Images[name] = im.SizeBytes
		}
	}
}

// AddPod counts a pod in.
func (n *NodeInfo) AddPod(p *PodInfo) {
	n.Pods = append(n.Pods, p)
	if p.HasAffinity() {
		n.WithAffinity = append(n.WithAffinity, p)
	}
	if len(p.RequiredAntiAffinity) > 0 {
		n.WithAntiAffinity = append(n.WithAntiAffinity, p)
	}
	n.count(p, 1)
}

// RemovePod counts a pod out; it reports whether it was there.
func (n *NodeInfo) RemovePod(uid types.UID) bool {
	i := slices.IndexFunc(n.Pods, func(p *PodInfo) bool { return p.Pod.UID == uid })
	if i < 0 {
		return false
	}
	p := n.Pods[i]
	n.Pods = without(n.Pods, uid)
	n.WithAffinity = without(n.WithAffinity, uid)
	n.WithAntiAffinity = without(n.WithAntiAffinity, uid)
	n.count(p, -1)
	return true
}

// Clone returns a copy that can be changed.
func (n *NodeInfo) Clone() *NodeInfo {
	c := *n
	c.Requested = n.Requested.clone()
	c.NonZero = n.NonZero.clone()
	c.Pods = slices.Clone(n.Pods)
	c.WithAffinity = slices.Clone(n.WithAffinity)
	c.WithAntiAffinity = slices.Clone(n.WithAntiAffinity)
	c.Ports = maps.Clone(n.Ports)
	return &c
}

func (n *NodeInfo) count(p *PodInfo, sign int) {
	n.Requested.plus(&p.Requests, int64(sign))
	n.NonZero.plus(&p.NonZero, int64(sign))
	for _, h := range p.HostPorts {
		if n.Ports == nil {
			n.Ports = map[HostPort]int{}
		}
		if n.Ports[h] += sign; n.Ports[h] <= 0 {
			delete(n.Ports, h)
		}
	}
}

// PortTaken reports whether a pod on the node holds the port, on this or on all addresses.
func (n *NodeInfo) PortTaken(want HostPort) bool {
	for have := range n.Ports {
		if have.Port == want.Port && have.Protocol == want.Protocol &&
			(have.IP == want.IP || have.IP == "0.0.0.0" || want.IP == "0.0.0.0") {
			return true
		}
	}
	return false
}

func without(pods []*PodInfo, uid types.UID) []*PodInfo {
	for i, p := range pods {
		if p.Pod.UID == uid {
			last := len(pods) - 1
			pods[i] = pods[last]
			pods[last] = nil
			return pods[:last]
		}
	}
	return pods
}

// NormalizeImage adds the tag :latest to a name without tag or digest, as
// container runtimes report it.
func NormalizeImage(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

// Exceeds reports whether any amount is higher than the other's.
func (r *Resources) Exceeds(o *Resources) bool {
	if r.MilliCPU > o.MilliCPU || r.Memory > o.Memory || r.EphemeralStorage > o.EphemeralStorage {
		return true
	}
	for name, v := range r.Other {
		if v > o.Other[name] {
			return true
		}
	}
	return false
}
