package qos

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/cgroup"
)

// reservations keep what pods ask for of memory from being reclaimed (KEP-2570): memory.min of
// guaranteed pods, memory.low of burstable ones. The kernel protects a group as far as its
// parents are, so that these have the sums.
type reservations struct {
	cgroups *cgroup.Root
	tree    Tree
	// on: pods are protected. Otherwise the parents are not, and so nobody is.
	on bool

	mu   sync.Mutex
	pods map[string]protected // by path
}

// protected is in bytes.
type protected struct{ min, low int64 }

// adopt takes what pods have that were here before, and sets the parents.
func (r *reservations) adopt() error {
	r.pods = map[string]protected{}
	if r.on && r.cgroups.Mode() != cgroup.V2 {
		return errors.New("memoryReservationPolicy: TieredReservation is for machines whose control groups are v2: use None")
	}
	if r.on {
		classes := []string{r.tree.Class(corev1.PodQOSBurstable), r.tree.Class(corev1.PodQOSBestEffort)}
		for _, parent := range []string{r.tree.Kubepods(), classes[0]} {
			for _, name := range r.cgroups.List(parent) {
				if child := path.Join(parent, name); !slices.Contains(classes, child) {
					r.pods[child] = protected{r.cgroups.Value(child, "memory.min"), r.cgroups.Value(child, "memory.low")}
				}
			}
		}
	}
	return r.apply()
}

// put takes what a pod is to have; with none it is forgotten.
func (r *reservations) put(pod string, p protected) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.on || r.pods[pod] == p {
		return nil
	}
	r.pods[pod] = p
	if p == (protected{}) {
		delete(r.pods, pod)
	}
	return r.apply()
}

// apply sets the parents.
func (r *reservations) apply() error {
	var all, burstable protected
	class := r.tree.Class(corev1.PodQOSBurstable)
	for pod, p := range r.pods {
		all.min, all.low = all.min+p.min, all.low+p.low
		if path.Dir(pod) == class {
			burstable.min, burstable.low = burstable.min+p.min, burstable.low+p.low
		}
	}
	errs := []error{r.set(class, burstable), r.set(r.tree.Kubepods(), all)}
	for above := r.tree.Top(); r.on && len(above) > 1; above = path.Dir(above) {
		// Somebody else may protect more there: it is never lowered.
		errs = append(errs, r.set(above, protected{
			min: max(all.min, r.cgroups.Value(above, "memory.min")),
			low: max(all.low, r.cgroups.Value(above, "memory.low")),
		}))
	}
	return errors.Join(errs...)
}

func (r *reservations) set(group string, p protected) error {
	if r.cgroups.Mode() != cgroup.V2 || r.cgroups.Value(group, "memory.min") == p.min &&
		r.cgroups.Value(group, "memory.low") == p.low {
		return nil
	}
	if err := r.cgroups.Set(group, cgroup.Resources{MemoryMin: &p.min, MemoryLow: &p.low}); err != nil {
		return fmt.Errorf("protect the memory of pods: %w", err)
	}
	return nil
}
