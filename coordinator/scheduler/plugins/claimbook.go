package plugins

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// claimBook knows which devices are taken: what the informer says, and what this
// scheduler has decided or written that the informer does not show yet.
type claimBook struct {
	devices Devices

	mu      sync.Mutex
	entries map[types.UID]*claimEntry // by the claim's UID
}

// claimEntry is a claim ahead of the informer.
type claimEntry struct {
	claim *resourcev1.ResourceClaim
	// pod has decided on it, and nothing is written; "" when it is written.
	pod types.UID
	// mappings are those of a claim for extended resources that is to be made: it has a
	// UID that nobody else knows, and no name.
	mappings []corev1.ContainerExtendedResourceRequest
}

// unmade tells whether the API has no such claim yet.
func (e *claimEntry) unmade() bool { return e.claim.Name == "" }

// claim is a claim as it will be.
func (b *claimBook) claim(namespace, name string) (*resourcev1.ResourceClaim, error) {
	c, err := b.devices.Claim(namespace, name)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ahead(c), nil
}

// ahead is the claim of an entry, or the informer's where that is as new; what was
// written is then forgotten.
func (b *claimBook) ahead(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	e := b.entries[c.UID]
	if e == nil {
		return c
	}
	if e.pod != "" && c.Status.Allocation != nil {
		return c // the informer was faster than the answer to the write
	}
	if e.pod == "" {
		order, err := resourceversion.CompareResourceVersion(c.ResourceVersion, e.claim.ResourceVersion)
		if err != nil || order >= 0 {
			delete(b.entries, c.UID)
			return c
		}
	}
	return e.claim
}

// underWay tells whether a claim, as claim returned it, has devices that are
// decided on and not written.
func (b *claimBook) underWay(c *resourcev1.ResourceClaim) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[c.UID]
	return e != nil && e.pod != "" && e.claim == c
}

// reserve notes what is decided for a pod.
func (b *claimBook) reserve(pod types.UID, claims []*resourcev1.ResourceClaim, plan *devicePlan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	enter := func(c *resourcev1.ResourceClaim, mappings []corev1.ContainerExtendedResourceRequest) {
		c = c.DeepCopy()
		c.Status.Allocation = plan.results[c.UID]
		b.entries[c.UID] = &claimEntry{claim: c, pod: pod, mappings: mappings}
	}
	for _, c := range claims {
		enter(c, nil)
	}
	if plan.extended != nil {
		enter(plan.extended, plan.mappings)
	}
}

// toMake is the claim for extended resources that is to be made for a pod, nil for none.
func (b *claimBook) toMake(pod types.UID) (*resourcev1.ResourceClaim, []corev1.ContainerExtendedResourceRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if e.pod == pod && e.unmade() {
			return e.claim, e.mappings
		}
	}
	return nil, nil
}

// made puts a claim, as the API has it and as the informer shows it, in the place of the
// one that was to be made, if that is not released by now.
func (b *claimBook) made(was types.UID, c *resourcev1.ResourceClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[was]
	if e == nil {
		return
	}
	delete(b.entries, was)
	c = c.DeepCopy()
	c.Status.Allocation = e.claim.Status.Allocation
	b.entries[c.UID] = &claimEntry{claim: c, pod: e.pod}
}

// reserved is what is decided for a claim of the pod, nil for nothing.
func (b *claimBook) reserved(pod, claim types.UID) *resourcev1.AllocationResult {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.entries[claim]; e != nil && e.pod == pod {
		return e.claim.Status.Allocation
	}
	return nil
}

// written notes the API's answer.
func (b *claimBook) written(c *resourcev1.ResourceClaim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries[c.UID] = &claimEntry{claim: c}
}

// release forgets what is decided for a pod and not written.
func (b *claimBook) release(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid, e := range b.entries {
		if e.pod == pod {
			delete(b.entries, uid)
		}
	}
}

// allocated gathers the devices that claims have. Those of claims for
// administrators do not count.
func (b *claimBook) allocated() (structured.AllocatedState, error) {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	all, err := b.devices.Claims()
	if err != nil {
		return state, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	there := make(sets.Set[types.UID], len(all))
	for _, c := range all {
		there.Insert(c.UID)
		count(&state, b.ahead(c))
	}
	for uid, e := range b.entries {
		switch {
		case there.Has(uid):
		case e.unmade():
			count(&state, e.claim)
		default:
			delete(b.entries, uid) // the claim is gone
		}
	}
	return state, nil
}

// count adds the devices of a claim.
func count(state *structured.AllocatedState, c *resourcev1.ResourceClaim) {
	if c.Status.Allocation == nil {
		return
	}
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if ptr.Deref(r.AdminAccess, false) {
			continue
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
}
