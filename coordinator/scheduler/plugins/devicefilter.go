package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// deviceFilter judges nodes by the ResourceClaims of one pod.
type deviceFilter struct {
	allocated []allocatedClaim
	waiting   []*resourcev1.ResourceClaim
	// extended is what the pod needs for extended resources, nil for nothing.
	extended  *extendedNeed
	allocator structured.Allocator // nil when nothing waits
	// search and ready are the plugin's.
	search, ready time.Duration

	mu sync.Mutex
	// plans are what nodes have for the claims that wait, by node.
	plans map[string]*devicePlan
	// fault is what is wrong with a claim, a class or a slice, whatever the node.
	fault error
}

// devicePlan is what one node gives.
type devicePlan struct {
	results map[types.UID]*resourcev1.AllocationResult // by the claim's UID
	// extended is the claim for extended resources as this node needs it, nil for none,
	// and mappings tells for which of them its requests are.
	extended *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
}

// allocatedClaim has its devices already.
type allocatedClaim struct {
	claim *resourcev1.ResourceClaim
	nodes *nodeaffinity.NodeSelector // where they can be used; nil: everywhere
}

// usable tells whether the devices serve a pod on the node: they can be reached
// there, and becoming ready, for which they have a time, has not failed.
func (a *allocatedClaim) usable(n *corev1.Node, wait time.Duration) bool {
	if a.nodes != nil && !a.nodes.Match(n) {
		return false
	}
	ready, err := devicesReady(a.claim)
	if err != nil {
		return false
	}
	at := a.claim.Status.Allocation.AllocationTimestamp
	return ready || at == nil || time.Since(at.Time) < wait
}

func (f *deviceFilter) plan(node string) *devicePlan {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.plans[node]
}

// Filter refuses nodes that lack devices, and looks for those that are needed.
func (f *deviceFilter) Filter(n *framework.NodeInfo) *framework.Status {
	for i := range f.allocated {
		if !f.allocated[i].usable(n.Node, f.ready) {
			return devicesAreAway
		}
	}
	if f.allocator == nil {
		return nil
	}
	plan, claims := &devicePlan{}, f.waiting
	if f.extended != nil {
		if f.extended.old {
			return claimIsOld
		}
		if plan.extended, plan.mappings = f.extended.on(n); plan.extended != nil {
			claims = append(slices.Clone(claims), plan.extended)
		}
	}
	if len(claims) == 0 {
		f.keep(n, plan) // the node has the resources without a claim
		return nil
	}
	ctx := context.Background()
	if f.search > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.search)
		defer cancel()
	}
	results, err := f.allocator.Allocate(ctx, n.Node, claims)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return framework.AsStatus(fmt.Errorf("node %s: timed out trying to allocate devices", n.Node.Name))
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return unresolvable(err.Error())
	case err != nil:
		f.mu.Lock()
		f.fault = err
		f.mu.Unlock()
		return framework.AsStatus(err)
	case len(results) != len(claims):
		return noDevices
	}
	plan.results = make(map[types.UID]*resourcev1.AllocationResult, len(results))
	for i, c := range claims {
		plan.results[c.UID] = &results[i]
	}
	f.keep(n, plan)
	return nil
}

func (f *deviceFilter) keep(n *framework.NodeInfo, plan *devicePlan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plans[n.Node.Name] = plan
}

// devicesReady tells whether all binding conditions of a claim's devices are true
// (KEP-5007); the error tells which one has failed for good.
func devicesReady(c *resourcev1.ResourceClaim) (bool, error) {
	if c.Status.Allocation == nil {
		return false, nil
	}
	ready := true
	for i := range c.Status.Allocation.Devices.Results {
		r := &c.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		status := statusOf(c, r)
		for _, name := range r.BindingFailureConditions {
			if status == nil {
				break
			}
			if cond := meta.FindStatusCondition(status.Conditions, name); cond != nil && cond.Status == "True" {
				return false, fmt.Errorf("device binding failed: claim=%s, reason=%s, message=%q",
					c.Name, cond.Reason, cond.Message)
			}
		}
		ready = ready && status != nil && !slices.ContainsFunc(r.BindingConditions, func(name string) bool {
			return !meta.IsStatusConditionTrue(status.Conditions, name)
		})
	}
	return ready, nil
}

// statusOf is what the driver says of an allocated device, nil before it does.
func statusOf(c *resourcev1.ResourceClaim,
	r *resourcev1.DeviceRequestAllocationResult) *resourcev1.AllocatedDeviceStatus {
	share := ""
	if r.ShareID != nil {
		share = string(*r.ShareID)
	}
	for i := range c.Status.Devices {
		s := &c.Status.Devices[i]
		if s.Driver == r.Driver && s.Pool == r.Pool && s.Device == r.Device && ptr.Deref(s.ShareID, "") == share {
			return s
		}
	}
	return nil
}
