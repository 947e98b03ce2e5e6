package cpu

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"
)

// Pod is the record of the CPUs that containers of a pod have for themselves. It is never
// changed.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Containers are lists of CPUs as the kernel writes them, by the containers' names.
	Containers map[string]string

	sets map[string]cpuset.CPUSet
}

// Records keeps the records of pods over restarts, by the pods' UIDs.
type Records interface {
	All() (map[string]*Pod, error)
	// PutNow returns when the record is on the disk.
	PutNow(key string, p *Pod) error
	Delete(key string) error
}

// decode makes a record usable that was read, or tells what is wrong with it.
func (p *Pod) decode(key string) error {
	if p.UID == "" || string(p.UID) != key {
		return fmt.Errorf("it is of pod %q", p.UID)
	}
	p.sets = make(map[string]cpuset.CPUSet, len(p.Containers))
	for name, list := range p.Containers {
		set, err := cpuset.Parse(list)
		if err != nil {
			return fmt.Errorf("container %s: %w", name, err)
		}
		p.sets[name] = set
	}
	return nil
}

// with is the record with the CPUs of one more container.
func (p *Pod) with(container string, cpus cpuset.CPUSet) *Pod {
	out := *p
	out.Containers, out.sets = maps.Clone(p.Containers), maps.Clone(p.sets)
	if out.Containers == nil {
		out.Containers, out.sets = map[string]string{}, map[string]cpuset.CPUSet{}
	}
	out.Containers[container], out.sets[container] = cpus.String(), cpus
	return &out
}

// all are the CPUs of all containers.
func (p *Pod) all() cpuset.CPUSet {
	out := cpuset.New()
	for _, s := range p.sets {
		out = out.Union(s)
	}
	return out
}

// object is what is known of the pod by its record.
func (p *Pod) object() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
}
