package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// maxDisrupted is how many evictions may be under way, unseen by the
// disruption controller.
const maxDisrupted = 2000

// evictionBackoff paces retries of writes that conflict.
var evictionBackoff = wait.Backoff{Steps: 20, Duration: 500 * time.Millisecond, Factor: 1, Jitter: 0.1}

// evictionREST deletes pods as far as disruption budgets allow.
type evictionREST struct {
	store  rest.StandardStorage
	client kubernetes.Interface
}

var (
	_ rest.NamedCreater             = &evictionREST{}
	_ rest.GroupVersionKindProvider = &evictionREST{}
	_ rest.GroupVersionAcceptor     = &evictionREST{}
)

// newEviction works on a store that writes the status, for the condition that
// tells why the pod went.
func newEviction(env *kind.Env, main *genericregistry.Store) rest.Storage {
	status := newPart(main, part[corev1.Pod]{
		keep:     func(p, old *corev1.Pod) { p.Spec = old.Spec },
		validate: validatePodStatus,
	})
	return &evictionREST{store: status.store, client: env.Client}
}

var evictionKind = policyv1.SchemeGroupVersion.WithKind("Eviction")

func (r *evictionREST) New() runtime.Object { return &policyv1.Eviction{} }
func (r *evictionREST) Destroy()            {}

func (r *evictionREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return evictionKind
}

// AcceptsGroupVersion: evictions are posted as policy/v1 or v1beta1.
func (r *evictionREST) AcceptsGroupVersion(gv schema.GroupVersion) bool {
	return gv == policyv1.SchemeGroupVersion || gv == policyv1beta1.SchemeGroupVersion
}

func (r *evictionREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	e, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if name != e.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	deletion, err := deletionOf(e, options)
	if err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, e.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	p, deleted, err := r.deleteUnguarded(ctx, name, deletion)
	if err != nil {
		return nil, err
	}
	if deleted {
		return &metav1.Status{Status: metav1.StatusSuccess}, nil
	}
	return r.deleteGuarded(ctx, p, deletion)
}

// deletionOf joins the dry-run options of the request and of the body.
func deletionOf(e *policyv1.Eviction, options *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	d := e.DeleteOptions
	switch {
	case d == nil:
		return &metav1.DeleteOptions{DryRun: options.DryRun}, nil
	case len(d.DryRun) == 0:
		d.DryRun = options.DryRun
	case len(options.DryRun) > 0 && !slices.Equal(options.DryRun, d.DryRun):
		return nil, fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", options.DryRun,
			d.DryRun)
	}
	return d, nil
}

// deleteUnguarded deletes a pod that no budget counts: one that has ended, has
// not started or is being deleted.
func (r *evictionREST) deleteUnguarded(ctx context.Context, name string, options *metav1.DeleteOptions) (p *corev1.Pod,
	deleted bool, err error) {
	retriable := func(err error) bool { return apierrors.IsConflict(err) && !pinned(options) }
	err = retry.OnError(evictionBackoff, retriable, func() error {
		obj, err := r.store.Get(ctx, name, &metav1.GetOptions{})
		if err != nil {
			return err
		}
		p = obj.(*corev1.Pod)
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed ||
			p.DeletionTimestamp != nil
		if !ended && p.Status.Phase != corev1.PodPending {
			return nil
		}
		o := options
		if !ended && !pinned(options) {
			o = pin(options, p.ResourceVersion) // it must not become ready meanwhile
		}
		if err := r.markAndDelete(ctx, name, o); err != nil {
			return err
		}
		deleted = true
		return nil
	})
	return p, deleted, err
}

func pinned(o *metav1.DeleteOptions) bool {
	return o.Preconditions != nil && o.Preconditions.ResourceVersion != nil
}

func pin(o *metav1.DeleteOptions, version string) *metav1.DeleteOptions {
	o = o.DeepCopy()
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	o.Preconditions.ResourceVersion = &version
	return o
}

func (r *evictionREST) deleteGuarded(ctx context.Context, p *corev1.Pod,
	options *metav1.DeleteOptions) (runtime.Object, error) {
	budgets, err := r.budgetsOf(ctx, p)
	if err != nil {
		return nil, err
	}
	if len(budgets) > 1 {
		return &metav1.Status{Status: metav1.StatusFailure, Code: 500,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."},
			nil
	}
	free, name := len(budgets) == 0, ""
	o := options
	if !free {
		name = budgets[0].Name
		if unhealthyAllowed(p, &budgets[0]) {
			free, o = true, pin(options, p.ResourceVersion)
		}
	}
	if !free {
		if err := r.take(ctx, p, &budgets[0], dryrun.IsDryRun(options.DryRun)); err != nil {
			return nil, err
		}
	}
	if err := r.markAndDelete(ctx, p.Name, o); err != nil {
		if apierrors.IsConflict(err) && o != options && !pinned(options) {
			return nil, tooMany(name)
		}
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func (r *evictionREST) budgetsOf(ctx context.Context, p *corev1.Pod) (out []policyv1.PodDisruptionBudget, err error) {
	list, err := r.client.PolicyV1().PodDisruptionBudgets(p.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		selector, err := metav1.LabelSelectorAsSelector(list.Items[i].Spec.Selector)
		if err == nil && selector.Matches(labels.Set(p.Labels)) {
			out = append(out, list.Items[i])
		}
	}
	return out, nil
}

// unhealthyAllowed: a pod that is not ready may go when the policy always allows
// it or when enough others are healthy (KEP-3017).
func unhealthyAllowed(p *corev1.Pod, b *policyv1.PodDisruptionBudget) bool {
	if conditionTrue(&p.Status, corev1.PodReady) {
		return false
	}
	return deref(b.Spec.UnhealthyPodEvictionPolicy) == policyv1.AlwaysAllow ||
		b.Status.CurrentHealthy >= b.Status.DesiredHealthy && b.Status.DesiredHealthy > 0
}

// take uses up one of the budget's disruptions, retrying on conflict.
func (r *evictionREST) take(ctx context.Context, p *corev1.Pod, b *policyv1.PodDisruptionBudget, dryRun bool) error {
	budgets := r.client.PolicyV1().PodDisruptionBudgets(p.Namespace)
	stale := false
	err := retry.RetryOnConflict(evictionBackoff, func() (err error) {
		if stale {
			if b, err = budgets.Get(ctx, b.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		stale = true
		next := b.DeepCopy()
		if err := disrupt(next, p.Name, time.Now()); err != nil || dryRun {
			return err
		}
		_, err = budgets.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		return err
	})
	if wait.Interrupted(err) {
		return apierrors.NewTimeoutError(fmt.Sprintf("couldn't update PodDisruptionBudget %q due to conflicts", b.Name),
			10)
	}
	return err
}

// disrupt counts one disruption in the budget's status, or says why not.
func disrupt(b *policyv1.PodDisruptionBudget, pod string, now time.Time) error {
	s := &b.Status
	resource := schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}
	switch {
	case s.ObservedGeneration < b.Generation:
		return tooMany(b.Name)
	case s.DisruptionsAllowed < 0:
		return apierrors.NewForbidden(resource, b.Name, errors.New("pdb disruptions allowed is negative"))
	case len(s.DisruptedPods) > maxDisrupted:
		return apierrors.NewForbidden(resource, b.Name, errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller"))
	case s.DisruptionsAllowed == 0:
		return refused(b)
	}
	s.DisruptionsAllowed--
	if s.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: s.ObservedGeneration,
		})
	}
	if s.DisruptedPods == nil {
		s.DisruptedPods = map[string]metav1.Time{}
	}
	s.DisruptedPods[pod] = metav1.Time{Time: now}
	return nil
}

const wouldViolate = "Cannot evict pod as it would violate the pod's disruption budget."

func tooMany(budget string) error {
	err := apierrors.NewTooManyRequests(wouldViolate, 10)
	return withCause(err, fmt.Sprintf("The disruption budget %s is still being processed by the server.", budget))
}

func refused(b *policyv1.PodDisruptionBudget) error {
	s, c := &b.Status, meta.FindStatusCondition(b.Status.Conditions, policyv1.DisruptionAllowedCondition)
	explained := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
	msg := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", b.Name)
	switch {
	case explained && c.Reason == policyv1.SyncFailedReason:
		msg += " because it failed sync: " + c.Message
	case s.CurrentHealthy <= s.DesiredHealthy:
		msg = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently", b.Name,
			s.DesiredHealthy, s.CurrentHealthy)
	case explained:
		msg += fmt.Sprintf(" (%s): %s", c.Reason, c.Message)
	}
	return withCause(apierrors.NewTooManyRequests(wouldViolate, 0), msg)
}

func withCause(err *apierrors.StatusError, message string) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: message})
	return err
}

// markAndDelete adds the DisruptionTarget condition and deletes the pod.
func (r *evictionREST) markAndDelete(ctx context.Context, name string, options *metav1.DeleteOptions) error {
	if dryrun.IsDryRun(options.DryRun) {
		_, _, err := r.store.Delete(ctx, name, rest.ValidateAllObjectFunc, options)
		return err
	}
	latest := func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		p := old.(*corev1.Pod).DeepCopy()
		return p, checkPinned(p, options.Preconditions)
	}
	mark := func(_ context.Context, obj, _ runtime.Object) (runtime.Object, error) {
		setCondition(&obj.(*corev1.Pod).Status, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		})
		return obj, nil
	}
	obj, _, err := r.store.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, latest, mark),
		rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if pinned(options) {
		options = pin(options, obj.(*corev1.Pod).ResourceVersion) // our own write moved it
	}
	_, _, err = r.store.Delete(ctx, name, rest.ValidateAllObjectFunc, options)
	return err
}

func checkPinned(p *corev1.Pod, c *metav1.Preconditions) error {
	if c == nil {
		return nil
	}
	resource := schema.GroupResource{Resource: "Pod"}
	if c.UID != nil && *c.UID != "" && *c.UID != p.UID {
		return apierrors.NewConflict(resource, p.Name,
			fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). "+
				"The object might have been deleted and then recreated", *c.UID, p.UID))
	}
	if c.ResourceVersion != nil && *c.ResourceVersion != "" && *c.ResourceVersion != p.ResourceVersion {
		return apierrors.NewConflict(resource, p.Name,
			fmt.Errorf(
				"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). "+
					"The object might have been modified", *c.ResourceVersion, p.ResourceVersion))
	}
	return nil
}
