package plugins

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/retry"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// Extended resources that a class of devices stands for (KEP-5004): where a node has
// none of such a resource itself, the scheduler makes one claim for all that the pod's
// containers ask for, and tells in the pod's status for whom each request of it is.

// showTimeout is how long a claim that was just made may take to come to the cache, as
// upstream's for the same.
const showTimeout = 2 * time.Minute

// byClaims are the resources of a pod that classes of devices stand for, in order.
func byClaims(devices Devices, pod *framework.PodInfo) (names []corev1.ResourceName) {
	if devices == nil {
		return nil
	}
	for name, amount := range pod.Requests.Other {
		if amount > 0 && devices.ClassOf(name) != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// extendedNeed is what a pod needs of extended resources that classes stand for.
type extendedNeed struct {
	pod       *corev1.Pod
	resources []corev1.ResourceName
	classes   map[corev1.ResourceName]string
	claim     *resourcev1.ResourceClaim // without requests and name
	// old: the pod has such a claim of an attempt that failed, whose devices may serve
	// no more. It is deleted first.
	old bool
}

// extendedOf looks at what the pod needs, and for what an attempt before has left.
func (d *dynamicResources) extendedOf(pod *framework.PodInfo, resources []corev1.ResourceName) (*extendedNeed, error) {
	left, err := d.extendedClaim(pod.Pod)
	if err != nil {
		return nil, err
	}
	need := &extendedNeed{pod: pod.Pod, resources: resources, classes: map[corev1.ResourceName]string{},
		old: left != nil, claim: extendedTemplate(pod.Pod)}
	for _, r := range resources {
		if class := d.devices.ClassOf(r); class != nil {
			need.classes[r] = class.Name
		}
	}
	return need, nil
}

// extendedTemplate is the claim for a pod's extended resources, without requests. Its
// UID is for the scheduler's own books.
func extendedTemplate(pod *corev1.Pod) *resourcev1.ResourceClaim {
	yes := true
	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, GenerateName: pod.Name + "-extended-resources-", UID: uuid.NewUUID(),
		Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes}},
	}}
}

// extendedFor tells whether a claim was made for extended resources of the pod.
func extendedFor(pod *corev1.Pod, c *resourcev1.ResourceClaim) bool {
	return c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" && metav1.IsControlledBy(c, pod)
}

// extendedClaim is the claim that was made for extended resources of the pod, nil for none.
func (d *dynamicResources) extendedClaim(pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	all, err := d.devices.Claims()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(c *resourcev1.ResourceClaim) bool {
		return c.Namespace == pod.Namespace && extendedFor(pod, c)
	})
	if i < 0 {
		return nil, nil
	}
	return all[i], nil
}

// on is the claim that the pod needs on a node, nil where the node has all resources
// itself, and for whom its requests are.
func (x *extendedNeed) on(n *framework.NodeInfo) (*resourcev1.ResourceClaim, []corev1.ContainerExtendedResourceRequest) {
	var requests []resourcev1.DeviceRequest
	var mappings []corev1.ContainerExtendedResourceRequest
	for _, r := range x.resources {
		class := x.classes[r]
		if class == "" || n.Allocatable.Get(r) > 0 {
			continue
		}
		more, users := requestsFor(x.pod, r, class)
		requests, mappings = append(requests, more...), append(mappings, users...)
	}
	if len(requests) == 0 {
		return nil, nil
	}
	slices.SortFunc(requests, func(a, b resourcev1.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	c := x.claim.DeepCopy()
	c.Spec.Devices.Requests = requests
	return c, mappings
}

// requestsFor are the requests for one resource of a pod. Containers that run for the
// pod's whole life have their own devices. Init containers that end use the devices of
// those that come later, and where they need more, share what the neediest lacks.
func requestsFor(pod *corev1.Pod, r corev1.ResourceName, class string) (requests []resourcev1.DeviceRequest,
	mappings []corev1.ContainerExtendedResourceRequest) {
	containers := append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...)
	ends := func(i int) bool {
		p := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (p == nil || *p != corev1.ContainerRestartPolicyAlways)
	}
	use := func(i int, request string) {
		mappings = append(mappings, corev1.ContainerExtendedResourceRequest{
			ContainerName: containers[i].Name, ResourceName: string(r), RequestName: request})
	}
	own := make([]int64, len(containers)) // by container: what is asked for it alone
	for i := range containers {
		if own[i] = amountOf(&containers[i], r); ends(i) || own[i] == 0 {
			continue
		}
		requests = append(requests, deviceRequest(&containers[i], i, r, class, own[i]))
		use(i, requests[len(requests)-1].Name)
	}
	extra, neediest := int64(0), -1
	var short []int // what they share must be known before they are told of it
	uses := map[int][]string{}
	for i := range containers {
		need := own[i]
		if !ends(i) || need == 0 {
			continue
		}
		for j := i + 1; j < len(containers) && need > 0; j++ {
			if !ends(j) && own[j] > 0 {
				uses[i] = append(uses[i], requestName(&containers[j], j, r))
				need -= own[j]
			}
		}
		if short = append(short, i); need <= 0 {
			continue
		}
		uses[i] = append(uses[i], "")
		if need > extra {
			extra, neediest = need, i
		}
	}
	if neediest >= 0 {
		requests = append(requests, deviceRequest(&containers[neediest], neediest, r, class, extra))
	}
	for _, i := range short {
		for _, name := range uses[i] {
			if name == "" {
				name = requests[len(requests)-1].Name
			}
			use(i, name)
		}
	}
	return requests, mappings
}

func amountOf(c *corev1.Container, r corev1.ResourceName) int64 {
	q := c.Resources.Requests[r]
	n, _ := q.AsInt64()
	return n
}

func deviceRequest(c *corev1.Container, i int, r corev1.ResourceName, class string,
	count int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{
		Name: requestName(c, i, r),
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count},
	}
}

// requestName tells the container by its index, init containers first, and the resource
// by its place among all that the container asks for, as upstream names them.
func requestName(c *corev1.Container, i int, r corev1.ResourceName) string {
	before := 0
	for name := range c.Resources.Requests {
		if name < r {
			before++
		}
	}
	return fmt.Sprintf("container-%d-request-%d", i, before)
}

// makeExtended makes the claim that was decided on for the pod, with its devices, and
// tells of it in the pod's status; nil when there is none to make.
func (d *dynamicResources) makeExtended(ctx context.Context, pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	decided, mappings := d.book.toMake(pod.UID)
	if decided == nil {
		return nil, nil
	}
	c := decided.DeepCopy()
	c.UID, c.Status = "", resourcev1.ResourceClaimStatus{}
	claims := d.client.ResourceV1().ResourceClaims(pod.Namespace)
	c, err := claims.Create(ctx, c, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim for extended resources %s/%s: %w", pod.Namespace, decided.GenerateName, err)
	}
	if err := d.shown(ctx, c); err != nil {
		_ = claims.Delete(context.WithoutCancel(ctx), c.Name, metav1.DeleteOptions{}) // its owner's end takes it, too
		return nil, err
	}
	d.book.made(decided.UID, c)
	if err := d.bind(ctx, pod, c); err != nil {
		return nil, err
	}
	status := corev1.PodExtendedResourceClaimStatus{RequestMappings: mappings, ResourceClaimName: c.Name}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"extendedResourceClaimStatus": status},
	})
	if err != nil {
		return nil, err
	}
	if _, err := d.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		return nil, fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", pod.Namespace, pod.Name, err)
	}
	return c, nil
}

// shown returns when the cache has a claim that was just made: from then on it counts
// like any other.
func (d *dynamicResources) shown(ctx context.Context, c *resourcev1.ResourceClaim) error {
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	// A cache, for the moment that an event takes to come: looked at often, then less.
	for wait := time.Millisecond; ; wait = min(2*wait, readyPoll) {
		if _, err := d.devices.Claim(c.Namespace, c.Name); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("claim %s/%s was made and is not seen: %w", c.Namespace, c.Name, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// unmake deletes what makeExtended has made. What fails here is found by the next attempt.
func (d *dynamicResources) unmake(ctx context.Context, pod *corev1.Pod) {
	if c, err := d.extendedClaim(pod); err == nil && c != nil {
		_ = d.deleteClaim(ctx, c)
	}
}

// deleteClaim deletes a claim of the scheduler's, which nobody uses.
func (d *dynamicResources) deleteClaim(ctx context.Context, c *resourcev1.ResourceClaim) error {
	claims := d.client.ResourceV1().ResourceClaims(c.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := claims.Get(ctx, c.Name, metav1.GetOptions{})
		if err != nil || now.UID != c.UID || !slices.Contains(now.Finalizers, resourcev1.Finalizer) {
			return err
		}
		now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == resourcev1.Finalizer })
		_, err = claims.Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = claims.Delete(ctx, c.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete claim %s/%s: %w", c.Namespace, c.Name, err)
	}
	return nil
}
