package quota

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
)

// Evaluators returns those of the resources that are more than counted, and of
// those whose count has a name of its own ("secrets"). list finds the objects to
// count; admission charges one object at a time and needs none. Of f, which is to be
// started afterwards, the count of ResourceClaims reads classes, claims and pods.
func Evaluators(list quotav1.ListerForResourceFunc, f informers.SharedInformerFactory) []quotav1.Evaluator {
	listOf := func(gvr schema.GroupVersionResource) generic.ListFuncByNamespace {
		return generic.ListResourceUsingListerFunc(list, gvr)
	}
	core := corev1.SchemeGroupVersion
	out := []quotav1.Evaluator{
		newPods(listOf(core.WithResource("pods"))),
		newServices(listOf(core.WithResource("services"))),
		newClaims(listOf(core.WithResource("persistentvolumeclaims"))),
		newDevices(listOf(resourcev1.SchemeGroupVersion.WithResource("resourceclaims")), f),
	}
	for _, name := range []corev1.ResourceName{
		corev1.ResourceConfigMaps, corev1.ResourceQuotas, corev1.ResourceReplicationControllers, corev1.ResourceSecrets,
	} {
		gvr := core.WithResource(string(name))
		out = append(out, generic.NewObjectCountEvaluator(gvr.GroupResource(), listOf(gvr), name))
	}
	return out
}

// Ignored are the resources that no quota counts: questions that are not stored,
// and events.
func Ignored() map[schema.GroupResource]struct{} {
	return map[schema.GroupResource]struct{}{
		{Resource: "bindings"}:                                                 {},
		{Resource: "componentstatuses"}:                                        {},
		{Resource: "events"}:                                                   {},
		{Group: "events.k8s.io", Resource: "events"}:                           {},
		{Group: "authentication.k8s.io", Resource: "tokenreviews"}:             {},
		{Group: "authentication.k8s.io", Resource: "selfsubjectreviews"}:       {},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"}:      {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}:  {},
		{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}: {},
		{Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}:   {},
	}
}

// evaluator is quota.Evaluator made of what differs from resource to resource.
// T is the struct that it counts (corev1.Pod).
type evaluator[T any] struct {
	resource schema.GroupResource
	list     generic.ListFuncByNamespace
	// counts tells whether a name in a quota is about this resource.
	counts func(corev1.ResourceName) bool
	// usage is what one object takes.
	usage func(*T) corev1.ResourceList
	// charged tells whether a request may change usage.
	charged func(a admission.Attributes) bool
	// requires refuses an object that lacks what a quota has to know; nil:
	// nothing is required.
	requires func(names []corev1.ResourceName, obj *T) error
	// inScope tells whether a scope selects an object; nil: none does.
	inScope func(s corev1.ScopedResourceSelectorRequirement, obj *T) (bool, error)
}

func (e *evaluator[T]) typed(obj runtime.Object) (*T, error) {
	t, ok := any(obj).(*T)
	if !ok {
		return nil, fmt.Errorf("count %s: unexpected %T", e.resource, obj)
	}
	return t, nil
}

// GroupResource is what this evaluator counts.
func (e *evaluator[T]) GroupResource() schema.GroupResource { return e.resource }

// Handles tells whether a request may change usage.
func (e *evaluator[T]) Handles(a admission.Attributes) bool { return e.charged(a) }

// Constraints refuses an object that lacks what the names require.
func (e *evaluator[T]) Constraints(names []corev1.ResourceName, obj runtime.Object) error {
	t, err := e.typed(obj)
	if err != nil || e.requires == nil {
		return err
	}
	return e.requires(names, t)
}

// Matches tells whether a quota limits an object.
func (e *evaluator[T]) Matches(q *corev1.ResourceQuota, obj runtime.Object) (bool, error) {
	return generic.Matches(q, obj, e.MatchingResources, e.scope)
}

func (e *evaluator[T]) scope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	t, err := e.typed(obj)
	if err != nil || e.inScope == nil {
		return false, err
	}
	return e.inScope(s, t)
}

// MatchingScopes returns the scopes that select an object.
func (e *evaluator[T]) MatchingScopes(obj runtime.Object,
	scopes []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	for _, s := range scopes {
		in, err := e.scope(s, obj)
		if err != nil {
			return nil, fmt.Errorf("match scope %s: %w", s.ScopeName, err)
		}
		if in {
			out = append(out, s)
		}
	}
	return out, nil
}

// UncoveredQuotaScopes returns the scopes that consumption is limited in and
// that no quota covers.
func (e *evaluator[T]) UncoveredQuotaScopes(limited,
	covered []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	out := []corev1.ScopedResourceSelectorRequirement{}
	for _, s := range limited {
		same := func(c corev1.ScopedResourceSelectorRequirement) bool { return c.ScopeName == s.ScopeName }
		if e.inScope != nil && !slices.ContainsFunc(covered, same) {
			out = append(out, s)
		}
	}
	return out, nil
}

// MatchingResources returns the names that are about this resource.
func (e *evaluator[T]) MatchingResources(names []corev1.ResourceName) (out []corev1.ResourceName) {
	for _, name := range names {
		if e.counts(name) {
			out = append(out, name)
		}
	}
	return out
}

// Usage is what one object takes.
func (e *evaluator[T]) Usage(obj runtime.Object) (corev1.ResourceList, error) {
	t, err := e.typed(obj)
	if err != nil {
		return corev1.ResourceList{}, err
	}
	return e.usage(t), nil
}

// UsageStats adds up what a namespace's objects take.
func (e *evaluator[T]) UsageStats(o quotav1.UsageStatsOptions) (quotav1.UsageStats, error) {
	return generic.CalculateUsageStats(o, e.list, e.scope, e.Usage)
}

func count(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }

// countName is "count/RESOURCE[.GROUP]".
func countName(gr schema.GroupResource) corev1.ResourceName {
	return generic.ObjectCountQuotaResourceNameFor(gr)
}

// onObject: requests that create, or that also update, the object itself.
func onObject(a admission.Attributes, updates bool) bool {
	return a.GetSubresource() == "" &&
		(a.GetOperation() == admission.Create || updates && a.GetOperation() == admission.Update)
}

// selects matches a scope's values against one of the object's own.
func selects(s corev1.ScopedResourceSelectorRequirement, values ...string) (bool, error) {
	op, ok := map[corev1.ScopeSelectorOperator]selection.Operator{
		corev1.ScopeSelectorOpIn: selection.In, corev1.ScopeSelectorOpNotIn: selection.NotIn,
		corev1.ScopeSelectorOpExists: selection.Exists, corev1.ScopeSelectorOpDoesNotExist: selection.DoesNotExist,
	}[s.Operator]
	if !ok {
		return false, fmt.Errorf("%q is not a valid scope selector operator", s.Operator)
	}
	r, err := labels.NewRequirement(string(s.ScopeName), op, s.Values)
	if err != nil {
		return false, err
	}
	if len(values) == 0 {
		return r.Matches(labels.Set{}), nil
	}
	for _, v := range values {
		if r.Matches(labels.Set{string(s.ScopeName): v}) {
			return true, nil
		}
	}
	return false, nil
}
