package plugins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// Devices is what the plugin DynamicResources reads of devices.
type Devices interface {
	Claim(namespace, name string) (*resourcev1.ResourceClaim, error)
	Claims() ([]*resourcev1.ResourceClaim, error)
	Class(name string) (*resourcev1.DeviceClass, error)
	Classes() ([]*resourcev1.DeviceClass, error)
	// ClassOf is the class that gives devices for an extended resource, nil for none.
	ClassOf(r corev1.ResourceName) *resourcev1.DeviceClass
	Slices() ([]*resourcev1.ResourceSlice, error)
}

const (
	// readyPoll is how often claims are looked at whose devices are made ready: by
	// a cache, for the few pods that wait here, for seconds to minutes.
	readyPoll = 250 * time.Millisecond
	// expressions is how many compiled selectors are kept.
	expressions = 100
)

// deviceFeatures are those of v1.36 that are on by default.
var deviceFeatures = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true,
	PartitionableDevices: true, PrioritizedList: true,
}

var (
	noDevices       = unresolvable("cannot allocate all claims")
	devicesAreAway  = unresolvable("resourceclaim not available on the node")
	claimInUse      = unresolvable("resourceclaim in use")
	noClaimsToFree  = framework.NewStatus(framework.Unschedulable, "no new claims to deallocate")
	claimFreed      = framework.NewStatus(framework.Unschedulable, "deallocation of ResourceClaim completed")
	claimDeleted    = framework.NewStatus(framework.Unschedulable, "deletion of ResourceClaim completed")
	noClaimWasFreed = framework.NewStatus(framework.Unschedulable, "still not schedulable")
	claimIsOld      = framework.NewStatus(framework.Unschedulable, "cannot schedule extended resource claim")
)

func unresolvable(reason string) *framework.Status {
	return framework.NewStatus(framework.UnschedulableAndUnresolvable, reason)
}

// dynamicResources allocates devices to the ResourceClaims of pods and keeps pods
// from nodes that have none for them (KEP-4381).
type dynamicResources struct {
	client   kubernetes.Interface
	recorder events.EventRecorder // nil: nobody is told
	devices  Devices
	book     claimBook
	cel      *cel.Cache
	// search bounds that for devices of one node, 0 for no bound; devices may take as long
	// as ready to become so.
	search, ready time.Duration
}

func newDynamicResources(args []byte, d *Deps) (framework.Plugin, error) {
	a := configv1.DynamicResourcesArgs{
		FilterTimeout: &metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault},
	}
	if err := decodeArgs(args, &a); err != nil {
		return nil, err
	}
	p := &dynamicResources{
		client: d.Client, recorder: d.Recorder, devices: d.Devices,
		book: claimBook{devices: d.Devices, entries: map[types.UID]*claimEntry{}},
		cel:  cel.NewCache(expressions, cel.Features{EnableConsumableCapacity: deviceFeatures.ConsumableCapacity}),
		// As upstream null says nothing: the search is without a bound, readiness has its own.
		search: ptr.Deref(a.FilterTimeout, metav1.Duration{}).Duration,
		ready:  configv1.DynamicResourcesBindingTimeoutDefault,
	}
	if a.BindingTimeout != nil {
		p.ready = a.BindingTimeout.Duration
	}
	if p.search < 0 {
		return nil, fmt.Errorf("args.filterTimeout: %s must not be negative", p.search)
	}
	if p.ready < time.Second {
		return nil, fmt.Errorf("args.bindingTimeout: %s must be at least 1s", p.ready)
	}
	return p, nil
}

// Patience is how long PreBind may take.
func (d *dynamicResources) Patience() time.Duration { return d.ready }

func (*dynamicResources) Name() string { return DynamicResourcesName }

// Sign lets a pod without claims share a class; the claims of others change.
func (d *dynamicResources) Sign(key []byte, pod *framework.PodInfo, _ *framework.Snapshot) ([]byte, bool) {
	return key, len(pod.Pod.Spec.ResourceClaims) == 0 && len(byClaims(d.devices, pod)) == 0
}

// PreEnqueue keeps a pod out until all its claims are there.
func (d *dynamicResources) PreEnqueue(pod *corev1.Pod) *framework.Status {
	if _, err := d.claims(pod); err != nil {
		return unresolvable(err.Error())
	}
	return nil
}

// claims are those that the pod uses, as they will be when all is written that is
// under way. The error tells why the pod cannot be scheduled yet.
func (d *dynamicResources) claims(pod *corev1.Pod) (list []*resourcev1.ResourceClaim, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, owned, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // none is needed
		}
		if d.devices == nil {
			return nil, fmt.Errorf("resourceclaim %q not found", *name)
		}
		c, err := d.book.claim(pod.Namespace, *name)
		switch {
		case err != nil:
			return nil, err
		case c.DeletionTimestamp != nil:
			return nil, fmt.Errorf("resourceclaim %q is being deleted", c.Name)
		case owned:
			if err := resourceclaim.IsForPod(pod, c, false); err != nil {
				return nil, err
			}
		}
		if !slices.ContainsFunc(list, func(o *resourcev1.ResourceClaim) bool { return o.UID == c.UID }) {
			list = append(list, c) // else the pod has it under two names
		}
	}
	return list, nil
}

func (d *dynamicResources) PreFilter(pod *framework.PodInfo, _ *framework.Snapshot) (framework.NodeFilter,
	sets.Set[string], *framework.Status) {
	resources := byClaims(d.devices, pod)
	if len(pod.Pod.Spec.ResourceClaims) == 0 && len(resources) == 0 {
		return nil, nil, nil
	}
	claims, err := d.claims(pod.Pod)
	if err != nil {
		return nil, nil, unresolvable(err.Error())
	}
	if len(claims) == 0 && len(resources) == 0 {
		return nil, nil, nil
	}
	f := &deviceFilter{plans: map[string]*devicePlan{}, search: d.search, ready: d.ready}
	if len(resources) > 0 {
		if f.extended, err = d.extendedOf(pod, resources); err != nil {
			return nil, nil, framework.AsStatus(err)
		}
	}
	for _, c := range claims {
		if st := d.sort(pod.Pod, c, f); !st.OK() {
			return nil, nil, st
		}
	}
	if len(f.waiting) == 0 && f.extended == nil {
		return f, nil, nil
	}
	state, err := d.book.allocated()
	if err != nil {
		return nil, nil, framework.AsStatus(fmt.Errorf("gather allocation state: %w", err))
	}
	all, err := d.devices.Slices()
	if err != nil {
		return nil, nil, framework.AsStatus(err)
	}
	f.allocator, err = structured.NewAllocator(context.Background(), deviceFeatures, state,
		classLister{d.devices}, all, d.cel)
	return f, nil, framework.AsStatus(err)
}

// sort puts a claim where it belongs in the filter.
func (d *dynamicResources) sort(pod *corev1.Pod, c *resourcev1.ResourceClaim, f *deviceFilter) *framework.Status {
	if !resourceclaim.IsReservedForPod(pod, c, false) && !resourceclaim.CanBeReserved(c) {
		return claimInUse
	}
	if c.Status.Allocation == nil {
		f.waiting = append(f.waiting, c)
		return d.classesExist(c)
	}
	if d.book.underWay(c) {
		return unresolvable(fmt.Sprintf("resource claim %s/%s is in the process of being allocated", c.Namespace, c.Name))
	}
	a := allocatedClaim{claim: c}
	if s := c.Status.Allocation.NodeSelector; s != nil {
		var err error
		if a.nodes, err = nodeaffinity.NewNodeSelector(s); err != nil {
			return framework.AsStatus(err)
		}
	}
	f.allocated = append(f.allocated, a)
	return nil
}

// classesExist refuses a claim for devices of a class that nobody has made.
func (d *dynamicResources) classesExist(c *resourcev1.ResourceClaim) *framework.Status {
	check := func(request, class string) *framework.Status {
		if _, err := d.devices.Class(class); err != nil {
			return unresolvable(fmt.Sprintf("request %s: device class %s does not exist", request, class))
		}
		return nil
	}
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		switch {
		case r.Exactly != nil:
			if st := check(r.Name, r.Exactly.DeviceClassName); st != nil {
				return st
			}
		case len(r.FirstAvailable) > 0:
			for j := range r.FirstAvailable {
				sub := &r.FirstAvailable[j]
				if st := check(r.Name+"/"+sub.Name, sub.DeviceClassName); st != nil {
					return st
				}
			}
		default:
			return unresolvable(fmt.Sprintf("resource claim %s/%s, request %s: unknown request type",
				c.Namespace, c.Name, r.Name))
		}
	}
	return nil
}

// classLister is Devices as the allocator asks for classes.
type classLister struct{ devices Devices }

func (l classLister) List() ([]*resourcev1.DeviceClass, error)         { return l.devices.Classes() }
func (l classLister) Get(name string) (*resourcev1.DeviceClass, error) { return l.devices.Class(name) }

// PostFilter takes the devices from a claim of the pod that nobody else uses and
// that keep it from some node, so that others are looked for.
func (d *dynamicResources) PostFilter(ctx context.Context, cycle framework.PostFilterCycle) (*framework.Nomination,
	*framework.Status) {
	pod := cycle.Pod().Pod
	extended := len(byClaims(d.devices, cycle.Pod())) > 0
	if len(pod.Spec.ResourceClaims) == 0 && !extended {
		return nil, noClaimsToFree
	}
	claims, err := d.claims(pod)
	if err != nil {
		return nil, noClaimWasFreed
	}
	f := &deviceFilter{}
	for _, c := range claims {
		if c.Status.Allocation != nil {
			if st := d.sort(pod, c, f); !st.OK() {
				return nil, noClaimWasFreed
			}
		}
	}
	for i := range f.allocated {
		a := &f.allocated[i]
		inTheWay := slices.ContainsFunc(cycle.Snapshot().Slots(), func(n *framework.NodeInfo) bool {
			return n != nil && refusedByDevices(cycle.Verdict(n)) && !a.usable(n.Node, d.ready)
		})
		if !inTheWay || !onlyFor(pod, a.claim) {
			continue
		}
		c := a.claim.DeepCopy()
		c.Status.ReservedFor, c.Status.Allocation, c.Status.Devices = nil, nil, nil
		if _, err := d.client.ResourceV1().ResourceClaims(c.Namespace).UpdateStatus(ctx, c,
			metav1.UpdateOptions{}); err != nil {
			return nil, framework.AsStatus(fmt.Errorf("deallocating claim %s/%s: %w", c.Namespace, c.Name, err))
		}
		return nil, claimFreed
	}
	if !extended {
		return nil, noClaimWasFreed
	}
	switch old, err := d.extendedClaim(pod); {
	case err != nil:
		return nil, framework.AsStatus(err)
	case old == nil:
		return nil, noClaimWasFreed
	default:
		if err := d.deleteClaim(ctx, old); err != nil {
			return nil, framework.AsStatus(err)
		}
		return nil, claimDeleted
	}
}

// refusedByDevices: it is for devices that a node does not serve. Where it is for something
// else, other devices would not help.
func refusedByDevices(st *framework.Status) bool {
	return st != nil && st.Plugin == DynamicResourcesName
}

// onlyFor tells whether the claim is reserved for nobody but the pod.
func onlyFor(pod *corev1.Pod, c *resourcev1.ResourceClaim) bool {
	return !slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.UID != pod.UID
	})
}

// Reserve keeps the devices from other pods until the API has the allocation.
func (d *dynamicResources) Reserve(_ context.Context, pod *framework.PodInfo, node string,
	judged framework.NodeFilter) *framework.Status {
	f, ok := judged.(*deviceFilter)
	if !ok || len(f.waiting) == 0 && f.extended == nil {
		return nil
	}
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault != nil {
		// Another node would do, but then nobody would learn of the fault.
		return framework.AsStatus(fault)
	}
	plan := f.plan(node)
	if plan == nil {
		return framework.AsStatus(errors.New("claim allocation not found for node"))
	}
	d.book.reserve(pod.UID(), f.waiting, plan)
	return nil
}

// Unreserve undoes Reserve, and what PreBind has written for the pod alone.
func (d *dynamicResources) Unreserve(ctx context.Context, pod *framework.PodInfo, _ string) {
	// The class that stood for a resource may be gone by now.
	extended := d.devices != nil && len(pod.Requests.Other) > 0
	if len(pod.Pod.Spec.ResourceClaims) == 0 && !extended {
		return
	}
	d.book.release(pod.UID())
	if extended {
		d.unmake(ctx, pod.Pod)
	}
	claims, err := d.claims(pod.Pod)
	if err != nil {
		return // they are gone
	}
	for _, c := range claims {
		if c.Status.Allocation == nil || !resourceclaim.IsReservedForPod(pod.Pod, c, false) {
			continue
		}
		// One entry goes, whatever else has changed.
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"reservedFor":[{"$patch":"delete","uid":%q}]}}`,
			c.UID, pod.UID())
		// What fails here is tried again when the pod is.
		_, _ = d.client.ResourceV1().ResourceClaims(c.Namespace).Patch(ctx, c.Name, types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{}, "status")
	}
}

// PreFlight implements framework.PreFlightPlugin.
func (d *dynamicResources) PreFlight(pod *framework.PodInfo) bool {
	made, _ := d.book.toMake(pod.UID())
	return made != nil || len(pod.Pod.Spec.ResourceClaims) > 0
}

// PreBind writes allocations, reserves the claims for the pod, and waits for
// devices that have to be made ready.
func (d *dynamicResources) PreBind(ctx context.Context, pod *framework.PodInfo, node string) *framework.Status {
	for i := range pod.Pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod.Pod, &pod.Pod.Spec.ResourceClaims[i])
		if err != nil {
			return framework.AsStatus(err)
		}
		if name == nil {
			continue
		}
		c, err := d.book.claim(pod.Pod.Namespace, *name)
		if err == nil {
			err = d.bind(ctx, pod.Pod, c)
		}
		if err != nil {
			return framework.AsStatus(err)
		}
	}
	made, err := d.makeExtended(ctx, pod.Pod)
	if err != nil {
		return framework.AsStatus(err)
	}
	return framework.AsStatus(d.await(ctx, pod.Pod, node, made))
}

// bind writes the allocation of a claim, if it has none yet, and that the pod uses
// it. A change of others in between is benign, and the write is tried again.
func (d *dynamicResources) bind(ctx context.Context, pod *corev1.Pod, c *resourcev1.ResourceClaim) error {
	allocation := d.book.reserved(pod.UID, c.UID)
	if allocation == nil && resourceclaim.IsReservedForPod(pod, c, false) {
		return nil
	}
	api := d.client.ResourceV1().ResourceClaims(c.Namespace)
	name := c.Namespace + "/" + c.Name
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := api.Get(ctx, c.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("get claim %s: %w", name, err)
		case now.DeletionTimestamp != nil || now.UID != c.UID:
			return fmt.Errorf("claim %s got deleted in the meantime", name)
		case allocation != nil && now.Status.Allocation != nil:
			return fmt.Errorf("claim %s got allocated elsewhere in the meantime", name)
		case allocation == nil && now.Status.Allocation == nil:
			return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", name)
		}
		if allocation != nil {
			if !slices.Contains(now.Finalizers, resourcev1.Finalizer) {
				now.Finalizers = append(now.Finalizers, resourcev1.Finalizer)
				if now, err = api.Update(ctx, now, metav1.UpdateOptions{}); err != nil {
					return fmt.Errorf("add finalizer to claim %s: %w", name, err)
				}
			}
			now.Status.Allocation = allocation.DeepCopy()
		}
		if now.Status.Allocation.AllocationTimestamp == nil {
			now.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now()}
		}
		if !resourceclaim.IsReservedForPod(pod, now, false) {
			now.Status.ReservedFor = append(now.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
				Resource: "pods", Name: pod.Name, UID: pod.UID,
			})
		}
		if now, err = api.UpdateStatus(ctx, now, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("add reservation to claim %s: %w", name, err)
		}
		d.book.written(now)
		return nil
	})
}

// await returns when the devices of all claims are ready for the pod, those of the claim
// made for it, if there is one, too.
func (d *dynamicResources) await(ctx context.Context, pod *corev1.Pod, node string,
	made *resourcev1.ResourceClaim) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.ready, errors.New("device binding timeout"))
	defer cancel()
	for told := false; ; told = true {
		claims, err := d.claims(pod)
		if err != nil {
			return err
		}
		if made != nil {
			now, err := d.book.claim(made.Namespace, made.Name)
			if err != nil {
				return err
			}
			claims = append(claims, now)
		}
		waits := ""
		for _, c := range claims {
			ready, err := devicesReady(c)
			if err != nil {
				return err
			}
			if !ready {
				waits = c.Name
			}
		}
		if waits == "" {
			return nil
		}
		if !told && d.recorder != nil {
			d.recorder.Eventf(pod, nil, corev1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
				"waiting for binding conditions for device on node %s", node)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: claim=%s", context.Cause(ctx), waits)
		case <-time.After(readyPoll):
		}
	}
}

// Events that can help: claims, what is known of devices, and nodes.
func (d *dynamicResources) Events() []framework.EventHint {
	return []framework.EventHint{
		{Resource: framework.Node,
			Actions: framework.Add | framework.UpdateNodeLabel | framework.UpdateNodeTaint |
				framework.UpdateNodeAllocatable},
		{Resource: framework.Pod, Actions: framework.UpdatePodGeneratedResourceClaim,
			Hint: func(pod *corev1.Pod, e framework.Event) framework.Hint {
				p := podOf(e.New)
				return framework.Hint(p != nil && samePod(pod, e) && d.PreEnqueue(p).OK())
			}},
		{Resource: framework.ResourceClaim, Actions: framework.Add | framework.UpdateOther | framework.Delete,
			Hint: d.claimHelps},
		{Resource: framework.DeviceClass, Actions: framework.Add | framework.UpdateOther},
		{Resource: framework.ResourceSlice, Actions: framework.Add | framework.UpdateOther},
	}
}

// claimHelps tells whether a pod may fit after a change of a claim: when devices
// became free, and when it is one of its own.
func (d *dynamicResources) claimHelps(pod *corev1.Pod, e framework.Event) framework.Hint {
	old, _ := e.Old.(*resourcev1.ResourceClaim)
	now, _ := e.New.(*resourcev1.ResourceClaim)
	claims, err := d.claims(pod)
	if err != nil {
		return framework.QueueSkip
	}
	if old != nil && old.Status.Allocation != nil && (now == nil || now.Status.Allocation == nil) {
		return framework.Queue
	}
	if now == nil && old != nil && extendedFor(pod, old) {
		return framework.Queue // it was in the way of the next attempt
	}
	if now == nil || !slices.ContainsFunc(claims, func(c *resourcev1.ResourceClaim) bool { return c.UID == now.UID }) {
		return framework.QueueSkip
	}
	return framework.Hint(old == nil || !equality.Semantic.DeepEqual(&old.Status, &now.Status))
}
