package memory

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/device/ledger"
	"github.com/shoal-project/shoal/agent/device/topology"
)

// Pod is the record of the memory that a pod has. It is never changed.
type Pod struct {
	ledger.Pod
	// Containers are in the order in which they were given theirs; init containers come before
	// others.
	Containers []Container
}

// Container is what one has.
type Container struct {
	Name string
	// Init containers end before the next one starts, but sidecars.
	Init, Sidecar bool `json:",omitempty"`
	Blocks        []Block
}

// Block is memory of one kind.
type Block struct {
	// Kind is memory, or the resource of huge pages.
	Kind corev1.ResourceName
	// Nodes are those that it is of, On how many bytes are counted at each of them.
	Nodes topology.Mask
	On    map[int]int64
}

// Size is in bytes.
func (b *Block) Size() (sum int64) {
	for _, n := range b.On {
		sum += n
	}
	return sum
}

// check tells what is wrong with a record that was read.
func (p *Pod) check() error {
	for i := range p.Containers {
		for j := range p.Containers[i].Blocks {
			for node, n := range p.Containers[i].Blocks[j].On {
				if n < 0 || !p.Containers[i].Blocks[j].Nodes.Has(node) {
					return errors.New("it has memory of nodes that it is not of")
				}
			}
		}
	}
	return nil
}

// of is what a container has.
func (p *Pod) of(container string) *Container {
	if p == nil {
		return nil
	}
	for i := range p.Containers {
		if p.Containers[i].Name == container {
			return &p.Containers[i]
		}
	}
	return nil
}

// with is the record with one more container.
func (p *Pod) with(c Container) *Pod {
	out := *p
	out.Containers = append(append([]Container(nil), p.Containers...), c)
	return &out
}

// amounts are bytes by kind.
type amounts map[corev1.ResourceName]int64

// peak is what the pod has of each node at most at one time.
func (p *Pod) peak() Amounts {
	most, beside := Amounts{}, Amounts{} // beside: what runs on
	for i := range p.Containers {
		c := &p.Containers[i]
		now := beside.clone()
		for j := range c.Blocks {
			now.addBlock(&c.Blocks[j])
		}
		most.raise(now)
		if !c.Init || c.Sidecar {
			beside = now
		}
	}
	return most
}

// beside is what of the pod runs beside a container that comes next.
func (p *Pod) beside() Amounts {
	out := Amounts{}
	if p == nil {
		return out
	}
	for i := range p.Containers {
		if c := &p.Containers[i]; !c.Init || c.Sidecar {
			for j := range c.Blocks {
				out.addBlock(&c.Blocks[j])
			}
		}
	}
	return out
}
