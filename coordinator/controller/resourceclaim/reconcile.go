package resourceclaim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// fieldManager owns resourceClaimStatuses of pods' statuses.
	fieldManager = "ResourceClaimController"

	// The keys are "pod/" and "claim/" with a namespace and a name.
	podKey   = "pod/"
	claimKey = "claim/"

	// podsByNeed finds pods by what they name: "claim/" and "template/" with a
	// namespace and a name.
	podsByNeed  = "resource-claim"
	templateKey = "template/"
)

type reconciler struct {
	client    kubernetes.Interface
	events    record.EventRecorder
	pods      corelisters.PodLister
	podIndex  cache.Indexer
	claims    resourcelisters.ResourceClaimLister
	byOwner   cache.Indexer
	templates resourcelisters.ResourceClaimTemplateLister
	loop      *controller.Loop

	// made are claims that were generated and that the cache may not have yet, by
	// pod and name in its spec: a retry must not make a second one.
	mu   sync.Mutex
	made map[types.UID]map[string]*resourcev1.ResourceClaim
}

// New builds the controller.
func New(env controller.Env) (*controller.Loop, error) {
	pods, dra := env.Informers.Core().V1().Pods(), env.Informers.Resource().V1()
	claims, templates := dra.ResourceClaims(), dra.ResourceClaimTemplates()
	r := &reconciler{
		client: env.Client, events: env.Recorder("resource_claim"),
		pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(),
		claims: claims.Lister(), byOwner: claims.Informer().GetIndexer(), templates: templates.Lister(),
		loop: controller.New("resource-claim", 2, env.Log),
		made: map[types.UID]map[string]*resourcev1.ResourceClaim{},
	}
	if err := controller.Index(pods.Informer(), podsByNeed, needs); err != nil {
		return nil, err
	}
	if err := controller.IndexByController(claims.Informer()); err != nil {
		return nil, err
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, pods.Informer(), r.podChanged)
	controller.Watch(r.loop, claims.Informer(), func(old, c *resourcev1.ResourceClaim) {
		if c == nil {
			r.wakePods(claimKey + old.Namespace + "/" + old.Name)
			return
		}
		r.loop.Add(claimKey + c.Namespace + "/" + c.Name)
		r.wakePods(claimKey + c.Namespace + "/" + c.Name)
	})
	controller.Watch(r.loop, templates.Informer(), func(_, t *resourcev1.ResourceClaimTemplate) {
		if t != nil {
			r.wakePods(templateKey + t.Namespace + "/" + t.Name)
		}
	})
	return r.loop, nil
}

// needs indexes a pod; most need nothing.
func needs(obj any) (keys []string, err error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || len(pod.Spec.ResourceClaims) == 0 {
		return nil, nil
	}
	for _, name := range claimNames(pod) {
		keys = append(keys, claimKey+pod.Namespace+"/"+name)
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			keys = append(keys, templateKey+pod.Namespace+"/"+*c.ResourceClaimTemplateName)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

func (r *reconciler) wakePods(need string) {
	objs, _ := r.podIndex.ByIndex(podsByNeed, need)
	for _, o := range objs {
		if pod, ok := o.(*corev1.Pod); ok {
			r.loop.Add(podKey + pod.Namespace + "/" + pod.Name)
		}
	}
}

// podChanged has a pod with claims looked at, and its claims once it is over.
func (r *reconciler) podChanged(old, pod *corev1.Pod) {
	last := pod
	if last == nil {
		last = old
	}
	if len(last.Spec.ResourceClaims) == 0 && last.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	if pod == nil || over(pod) {
		for _, name := range claimNames(last) {
			r.loop.Add(claimKey + last.Namespace + "/" + name)
		}
	}
	if pod == nil {
		r.mu.Lock()
		delete(r.made, last.UID)
		r.mu.Unlock()
		return
	}
	r.loop.Add(podKey + pod.Namespace + "/" + pod.Name)
}

// Reconcile looks at one pod or one claim.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	kind, rest, _ := strings.Cut(key, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	if kind+"/" == claimKey {
		return 0, r.claim(ctx, namespace, name)
	}
	return 0, r.pod(ctx, namespace, name)
}

// pod makes the claims that a pod lacks and reserves those that it was bound with.
func (r *reconciler) pod(ctx context.Context, namespace, name string) error {
	pod, err := r.pods.Pods(namespace).Get(name)
	if err != nil {
		return controller.IgnoreGone(err)
	}
	if pod.DeletionTimestamp != nil || over(pod) {
		return nil
	}
	var made []*corev1apply.PodResourceClaimStatusApplyConfiguration
	for i := range pod.Spec.ResourceClaims {
		c := &pod.Spec.ResourceClaims[i]
		claim, err := r.generated(ctx, pod, c)
		if err != nil {
			r.events.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation",
				"PodResourceClaim %s: %v", c.Name, err)
			return fmt.Errorf("claim %s of pod %s/%s: %w", c.Name, namespace, name, err)
		}
		if claim != nil {
			made = append(made,
				corev1apply.PodResourceClaimStatus().WithName(c.Name).WithResourceClaimName(claim.Name))
		}
	}
	if len(made) > 0 {
		status := corev1apply.Pod(name, namespace).WithUID(pod.UID).
			WithStatus(corev1apply.PodStatus().WithResourceClaimStatuses(r.withOthers(pod, made)...))
		_, err := r.client.CoreV1().Pods(namespace).ApplyStatus(ctx, status,
			metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		return controller.IgnoreGone(err) // the pod's event comes
	}
	if pod.Spec.NodeName == "" {
		return nil // the scheduler reserves
	}
	return r.reserve(ctx, pod)
}

// withOthers adds what the pod's status says of other claims: what is applied
// without them would take them away.
func (r *reconciler) withOthers(pod *corev1.Pod, made []*corev1apply.PodResourceClaimStatusApplyConfiguration,
) []*corev1apply.PodResourceClaimStatusApplyConfiguration {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil && !slices.ContainsFunc(made,
			func(m *corev1apply.PodResourceClaimStatusApplyConfiguration) bool { return *m.Name == s.Name }) {
			made = append(made,
				corev1apply.PodResourceClaimStatus().WithName(s.Name).WithResourceClaimName(*s.ResourceClaimName))
		}
	}
	return made
}

// generated returns the claim that the pod's status does not tell of yet, making
// it where it does not exist, or nil when there is nothing to tell.
func (r *reconciler) generated(ctx context.Context, pod *corev1.Pod,
	c *corev1.PodResourceClaim) (*resourcev1.ResourceClaim, error) {
	u := useOf(pod, c)
	if u.known && (u.name == "" || !u.generated) {
		return nil, nil
	}
	if u.known {
		claim, err := r.claims.ResourceClaims(pod.Namespace).Get(u.name)
		if apierrors.IsNotFound(err) { // the cache may be behind the pod's
			claim, err = r.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, u.name, metav1.GetOptions{})
		}
		if err == nil && isFor(pod, claim) == nil {
			return nil, nil
		} else if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		// Somebody deleted it, or put another in its place: the pod gets a new one.
	}
	if c.ResourceClaimTemplateName == nil {
		return nil, nil
	}
	if claim := r.find(pod, c.Name, u.name); claim != nil {
		return claim, nil
	}
	template, err := r.templates.ResourceClaimTemplates(pod.Namespace).Get(*c.ResourceClaimTemplateName)
	if err != nil {
		return nil, fmt.Errorf("resource claim template %q: %w", *c.ResourceClaimTemplateName, err)
	}
	claim, err := r.client.ResourceV1().ResourceClaims(pod.Namespace).
		Create(ctx, generate(pod, c.Name, template), metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create ResourceClaim: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made[pod.UID] == nil {
		r.made[pod.UID] = map[string]*resourcev1.ResourceClaim{}
	}
	r.made[pod.UID][c.Name] = claim
	return claim, nil
}

// find returns a claim that was made for the pod before; gone is the name of one
// that is known not to exist.
func (r *reconciler) find(pod *corev1.Pod, name, gone string) *resourcev1.ResourceClaim {
	for _, claim := range controller.Controlled[resourcev1.ResourceClaim](r.byOwner, pod.UID) {
		if claim.Annotations[resourcev1.PodResourceClaimAnnotation] == name && claim.DeletionTimestamp == nil {
			return claim
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if claim := r.made[pod.UID][name]; claim != nil && claim.Name != gone {
		return claim
	}
	return nil
}

// reserve enters a pod that was bound without the scheduler into its claims.
func (r *reconciler) reserve(ctx context.Context, pod *corev1.Pod) error {
	for i := range pod.Spec.ResourceClaims {
		u := useOf(pod, &pod.Spec.ResourceClaims[i])
		if u.name == "" {
			continue
		}
		claim, err := r.claims.ResourceClaims(pod.Namespace).Get(u.name)
		if err != nil {
			return controller.IgnoreGone(err)
		}
		if u.generated && isFor(pod, claim) != nil || !reservable(pod, claim) {
			continue
		}
		next := claim.DeepCopy()
		next.Status.ReservedFor = append(next.Status.ReservedFor,
			resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		if _, err := r.client.ResourceV1().ResourceClaims(claim.Namespace).
			UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("reserve claim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
	}
	return nil
}

// claim takes out reservations of pods that are over, and what they held.
func (r *reconciler) claim(ctx context.Context, namespace, name string) error {
	claim, err := r.claims.ResourceClaims(namespace).Get(name)
	if err != nil {
		return controller.IgnoreGone(err)
	}
	var left []resourcev1.ResourceClaimConsumerReference
	for _, ref := range claim.Status.ReservedFor {
		keep, err := r.uses(ctx, namespace, ref)
		if err != nil {
			return err
		}
		if keep {
			left = append(left, ref)
		}
	}
	if err := r.free(ctx, claim, left); err != nil || len(left) > 0 {
		return controller.IgnoreGone(err)
	}
	return r.deleteUnused(ctx, claim)
}

// uses tells whether who reserved a claim may still use it. Who is no pod is
// believed; a pod that the cache has not got is asked of the API.
func (r *reconciler) uses(ctx context.Context, namespace string,
	ref resourcev1.ResourceClaimConsumerReference) (bool, error) {
	if ref.APIGroup != "" || ref.Resource != "pods" {
		return true, nil
	}
	pod, err := r.pods.Pods(namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) {
		pod, err = r.client.CoreV1().Pods(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return pod.UID == ref.UID && !over(pod), nil
}

// free writes who is left. When the last has gone the claim is deallocated, and
// needs no finalizer any more; so does one that is being deleted.
func (r *reconciler) free(ctx context.Context, claim *resourcev1.ResourceClaim,
	left []resourcev1.ResourceClaimConsumerReference) error {
	claims := r.client.ResourceV1().ResourceClaims(claim.Namespace)
	held := slices.Contains(claim.Finalizers, resourcev1.Finalizer)
	fewer := len(left) < len(claim.Status.ReservedFor)
	ends := held && claim.DeletionTimestamp != nil && len(left) == 0
	if !fewer && !ends {
		return nil
	}
	next := claim.DeepCopy()
	if fewer || next.Status.Allocation != nil {
		next.Status.ReservedFor = left
		if len(left) == 0 && held {
			next.Status.Allocation = nil
		}
		var err error
		if next, err = claims.UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	i := slices.Index(next.Finalizers, resourcev1.Finalizer)
	if i < 0 || next.Status.Allocation != nil {
		return nil
	}
	next = next.DeepCopy()
	next.Finalizers = slices.Delete(next.Finalizers, i, i+1)
	_, err := claims.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// deleteUnused deletes a claim that was made for a pod which is over; one whose
// pod is gone is the garbage collector's.
func (r *reconciler) deleteUnused(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	name, uid, ok := owningPod(claim)
	if !ok || claim.DeletionTimestamp != nil {
		return nil
	}
	pod, err := r.pods.Pods(claim.Namespace).Get(name)
	if err != nil {
		return controller.IgnoreGone(err)
	}
	if pod.UID == uid && !over(pod) {
		return nil
	}
	return controller.IgnoreGone(r.client.ResourceV1().ResourceClaims(claim.Namespace).Delete(ctx, claim.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &claim.UID}}))
}
