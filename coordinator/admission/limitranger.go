package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/cache"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// limitRangerAnnotation tells what the plugin has filled in.
const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// limitRanger gives containers a namespace's default resources and keeps pods
// and claims within its limits.
type limitRanger struct {
	*admission.Handler
	lister corelisters.LimitRangeLister
	client kubernetes.Interface
	asked  *cache.LRUExpireCache // namespaces without ranges: what a list said of them
	asking singleflight.Group
}

// A namespace of which the informer knows no range is asked for, since one that was made
// just now may not have come yet; how long the answer counts and how many are kept, as
// upstream.
const (
	askedFor   = 30 * time.Second
	askedSpace = 10000
)

func newLimitRanger() *limitRanger {
	return &limitRanger{Handler: admission.NewHandler(admission.Create, admission.Update),
		asked: cache.NewLRUExpireCache(askedSpace)}
}

// SetExternalKubeClientSet takes the client that asks for ranges.
func (l *limitRanger) SetExternalKubeClientSet(c kubernetes.Interface) { l.client = c }

// SetExternalKubeInformerFactory takes the informer of limit ranges.
func (l *limitRanger) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	l.lister = f.Core().V1().LimitRanges().Lister()
	l.SetReadyFunc(f.Core().V1().LimitRanges().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (l *limitRanger) ValidateInitialization() error {
	if l.lister == nil || l.client == nil {
		return fmt.Errorf("no informers or no client")
	}
	return nil
}

// Admit fills in defaults.
func (l *limitRanger) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod, ok := a.GetObject().(*corev1.Pod)
	if !ok || !limited(a) {
		return nil
	}
	ranges, err := l.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		setDefaults(pod, r.Spec.Limits)
	}
	return nil
}

// Validate refuses what is outside of the limits, naming every one.
func (l *limitRanger) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if !limited(a) {
		return nil
	}
	ranges, err := l.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		var errs []error
		switch o := a.GetObject().(type) {
		case *corev1.Pod:
			errs = checkPod(o, r.Spec.Limits)
		case *corev1.PersistentVolumeClaim:
			errs = checkClaim(o, r.Spec.Limits)
		}
		if err := utilerrors.NewAggregate(errs); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	return nil
}

// limited: new pods and claims, changed claims and resized pods, unless they are
// being deleted.
func limited(a admission.Attributes) bool {
	if old, ok := a.GetOldObject().(metav1.Object); ok && old.GetDeletionTimestamp() != nil {
		return false
	}
	switch a.GetResource().GroupResource() {
	case corev1.Resource("pods"):
		if a.GetOperation() == admission.Update {
			return a.GetSubresource() == "resize"
		}
		return a.GetSubresource() == ""
	case corev1.Resource("persistentvolumeclaims"):
		return a.GetSubresource() == ""
	}
	return false
}

func (l *limitRanger) ranges(ctx context.Context, a admission.Attributes) ([]*corev1.LimitRange, error) {
	ranges, err := l.lister.LimitRanges(a.GetNamespace()).List(labels.Everything())
	if err == nil && len(ranges) == 0 {
		ranges, err = l.ask(ctx, a.GetNamespace())
	}
	if err != nil {
		return nil, forbid(a,
			"unable to %s %v at this time because there was an error enforcing limit ranges", a.GetOperation(),
			a.GetResource())
	}
	return ranges, nil
}

// ask lists a namespace's ranges, once for all that wait for the answer.
func (l *limitRanger) ask(ctx context.Context, namespace string) ([]*corev1.LimitRange, error) {
	if known, ok := l.asked.Get(namespace); ok {
		return known.([]*corev1.LimitRange), nil
	}
	answer, err, _ := l.asking.Do(namespace, func() (any, error) {
		list, err := l.client.CoreV1().LimitRanges(namespace).List(context.WithoutCancel(ctx), metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		var ranges []*corev1.LimitRange
		for i := range list.Items {
			ranges = append(ranges, &list.Items[i])
		}
		l.asked.Add(namespace, ranges, askedFor)
		return ranges, nil
	})
	if err != nil {
		return nil, err
	}
	return answer.([]*corev1.LimitRange), nil
}

func setDefaults(pod *corev1.Pod, limits []corev1.LimitRangeItem) {
	requests, maxima := corev1.ResourceList{}, corev1.ResourceList{}
	for _, item := range limits {
		if item.Type == corev1.LimitTypeContainer {
			merge(requests, item.DefaultRequest)
			merge(maxima, item.Default)
		}
	}
	var notes []string
	for i := range pod.Spec.Containers {
		notes = append(notes, setContainerDefaults(&pod.Spec.Containers[i], requests, maxima, "container")...)
	}
	for i := range pod.Spec.InitContainers {
		notes = append(notes, setContainerDefaults(&pod.Spec.InitContainers[i], requests, maxima, "init container")...)
	}
	if len(notes) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, limitRangerAnnotation,
			"LimitRanger plugin set: "+strings.Join(notes, "; "))
	}
}

func setContainerDefaults(c *corev1.Container, requests, limits corev1.ResourceList, what string) []string {
	var notes []string
	note := func(names []string, field string) {
		if len(names) > 0 {
			slices.Sort(names)
			notes = append(notes, fmt.Sprintf("%s %s for %s %s", strings.Join(names, ", "), field, what, c.Name))
		}
	}
	if c.Resources.Requests == nil {
		c.Resources.Requests = corev1.ResourceList{}
	}
	if c.Resources.Limits == nil {
		c.Resources.Limits = corev1.ResourceList{}
	}
	note(merge(c.Resources.Requests, requests), "request")
	note(merge(c.Resources.Limits, limits), "limit")
	return notes
}

// merge adds what list does not have, and returns the names.
func merge(list, more corev1.ResourceList) []string {
	var added []string
	for name, q := range more {
		if _, ok := list[name]; !ok {
			list[name] = q.DeepCopy()
			added = append(added, string(name))
		}
	}
	return added
}

func checkPod(pod *corev1.Pod, limits []corev1.LimitRangeItem) []error {
	var errs []error
	for i := range limits {
		item := &limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for j := range list {
					errs = append(errs, checkItem(item, list[j].Resources.Requests, list[j].Resources.Limits)...)
				}
			}
		case corev1.LimitTypePod:
			options := resourcehelper.PodResourcesOptions{ExcludeOverhead: true}
			errs = append(errs,
				checkItem(item, resourcehelper.PodRequests(pod, options), resourcehelper.PodLimits(pod, options))...)
		}
	}
	return errs
}

func checkClaim(claim *corev1.PersistentVolumeClaim, limits []corev1.LimitRangeItem) []error {
	var errs []error
	requests := claim.Spec.Resources.Requests
	for i := range limits {
		item := &limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for name, q := range item.Min {
			errs = append(errs, checkMin(item.Type, name, q, requests, nil))
		}
		for name, q := range item.Max {
			errs = append(errs, checkMaxRequest(item.Type, name, q, requests))
		}
	}
	return errs
}

func checkItem(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	for name, q := range item.Min {
		errs = append(errs, checkMin(item.Type, name, q, requests, limits))
	}
	for name, q := range item.Max {
		errs = append(errs, checkMax(item.Type, name, q, requests, limits))
	}
	for name, q := range item.MaxLimitRequestRatio {
		errs = append(errs, checkRatio(item.Type, name, q, requests, limits))
	}
	return errs
}

func checkMin(typ corev1.LimitType, name corev1.ResourceName, least resource.Quantity,
	requests, limits corev1.ResourceList) error {
	request, ok := requests[name]
	if !ok {
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, typ, least.String())
	}
	if request.Cmp(least) < 0 {
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, typ, least.String(), request.String())
	}
	if limit, ok := limits[name]; ok && limit.Cmp(least) < 0 {
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, typ, least.String(), limit.String())
	}
	return nil
}

func checkMax(typ corev1.LimitType, name corev1.ResourceName, most resource.Quantity,
	requests, limits corev1.ResourceList) error {
	limit, ok := limits[name]
	if !ok {
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, typ, most.String())
	}
	if limit.Cmp(most) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, typ, most.String(), limit.String())
	}
	if request, ok := requests[name]; ok && request.Cmp(most) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, typ, most.String(), request.String())
	}
	return nil
}

func checkMaxRequest(typ corev1.LimitType, name corev1.ResourceName, most resource.Quantity,
	requests corev1.ResourceList) error {
	request, ok := requests[name]
	if !ok {
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, typ, most.String())
	}
	if request.Cmp(most) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, typ, most.String(), request.String())
	}
	return nil
}

func checkRatio(typ corev1.LimitType, name corev1.ResourceName, most resource.Quantity,
	requests, limits corev1.ResourceList) error {
	request, limit := requests[name], limits[name]
	if request.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0",
			name, typ, most.String())
	}
	if limit.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name,
			typ, most.String())
	}
	if ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64(); ratio > most.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name,
			typ, most.String(), ratio)
	}
	return nil
}
