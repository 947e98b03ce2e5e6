package plugin

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Pod is the record of the devices that a pod has.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Containers are by name, their allocations by resource.
	Containers map[string]map[string]*Allocation
}

// Allocation is what a container has of a resource. It is never changed.
type Allocation struct {
	Devices []Device
	// Answer is what the plugin answered, a ContainerAllocateResponse.
	Answer []byte
	// PreStart: the plugin is to be asked before each start of the container.
	PreStart bool `json:",omitempty"`
	// Boot is the boot of the machine in which the plugin was asked.
	Boot string

	answer *pluginapi.ContainerAllocateResponse
}

// Device is one that a container has.
type Device struct {
	ID string
	// Nodes are the NUMA nodes that it is near to.
	Nodes []int64 `json:",omitempty"`
}

// Known is the record of a resource whose plugin registered once: its devices may come
// back.
type Known struct{ Name string }

// Records keeps the records of pods over restarts, by the pods' UIDs.
type Records interface {
	All() (map[string]*Pod, error)
	// PutNow returns when the record is on the disk.
	PutNow(key string, p *Pod) error
	Delete(key string) error
}

// KnownRecords keeps the records of resources, by their names.
type KnownRecords interface {
	All() (map[string]*Known, error)
	Put(key string, k *Known) error
	Delete(key string) error
}

// decode makes a record usable that was read, or tells what is wrong with it.
func (p *Pod) decode(key string) error {
	if p.UID == "" || string(p.UID) != key {
		return fmt.Errorf("it is of pod %q", p.UID)
	}
	for container, list := range p.Containers {
		for resource, a := range list {
			if a == nil {
				return fmt.Errorf("container %s has nothing of %s", container, resource)
			}
			a.answer = &pluginapi.ContainerAllocateResponse{}
			if err := proto.Unmarshal(a.Answer, a.answer); err != nil {
				return fmt.Errorf("answer of %s for container %s: %w", resource, container, err)
			}
		}
	}
	return nil
}

// with is the record with one more allocation.
func (p *Pod) with(container, resource string, a *Allocation) *Pod {
	out := *p
	out.Containers = maps.Clone(p.Containers)
	if out.Containers == nil {
		out.Containers = map[string]map[string]*Allocation{}
	}
	list := maps.Clone(out.Containers[container])
	if list == nil {
		list = map[string]*Allocation{}
	}
	list[resource] = a
	out.Containers[container] = list
	return &out
}

// of is what a container has of a resource, nil for nothing.
func (p *Pod) of(container, resource string) *Allocation {
	if p == nil {
		return nil
	}
	return p.Containers[container][resource]
}

// ids are the devices of a resource that the pod has.
func (p *Pod) ids(resource string) sets.Set[string] {
	out := sets.New[string]()
	for _, list := range p.Containers {
		if a := list[resource]; a != nil {
			out.Insert(a.ids()...)
		}
	}
	return out
}

func (a *Allocation) ids() []string {
	out := make([]string, 0, len(a.Devices))
	for _, d := range a.Devices {
		out = append(out, d.ID)
	}
	return out
}

// object is what is known of the pod by its record.
func (p *Pod) object() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
}
