package cpu

import (
	"fmt"
	"maps"

	"k8s.io/utils/cpuset"

	"github.com/shoal-project/shoal/agent/device/ledger"
)

// Pod is the record of the CPUs that containers of a pod have for themselves. It is never
// changed.
type Pod struct {
	ledger.Pod
	// Containers are lists of CPUs as the kernel writes them, by the containers' names.
	Containers map[string]string

	sets map[string]cpuset.CPUSet
}

// decode makes a record usable that was read, or tells what is wrong with it.
func (p *Pod) decode() error {
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

// of are the CPUs that a container has.
func (p *Pod) of(container string) (cpuset.CPUSet, bool) {
	if p == nil {
		return cpuset.CPUSet{}, false
	}
	s, has := p.sets[container]
	return s, has
}
