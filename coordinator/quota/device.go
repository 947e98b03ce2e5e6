package quota

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/utils/ptr"
)

var deviceClaims = countName(resourcev1.Resource("resourceclaims"))

// devices counts what ResourceClaims may get, under each of the names that a device
// has in a quota (KEP-5004):
//
//	CLASS.deviceclass.resource.k8s.io/devices          of a device class
//	requests.deviceclass.resource.kubernetes.io/CLASS  as the class's implicit extended resource
//	requests.example.com/gpu                           as the extended resource that the class names
//
// Pods are charged for what they ask for under the last two, and for such a pod the
// scheduler makes a claim: of that claim only what exceeds the pod's share counts.
type devices struct {
	classes resourcelisters.DeviceClassLister
	claims  resourcelisters.ResourceClaimLister
	pods    corelisters.PodLister
}

func newDevices(list generic.ListFuncByNamespace, f informers.SharedInformerFactory) quotav1.Evaluator {
	d := &devices{
		classes: f.Resource().V1().DeviceClasses().Lister(),
		claims:  f.Resource().V1().ResourceClaims().Lister(),
		pods:    f.Core().V1().Pods().Lister(),
	}
	return &evaluator[resourcev1.ResourceClaim]{
		resource: resourcev1.Resource("resourceclaims"), list: list, usage: d.usage, counts: d.counts,
		charged: func(a admission.Attributes) bool { return onObject(a, true) },
	}
}

func (d *devices) counts(name corev1.ResourceName) bool {
	if name == deviceClaims || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) {
		return true
	}
	asked, ok := strings.CutPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
	if !ok || !isExtended(name) {
		return false
	}
	if class, implicit := strings.CutPrefix(asked, resourcev1.ResourceDeviceClassPrefix); implicit {
		_, err := d.classes.Get(class)
		return err == nil
	}
	classes, err := d.classes.List(labels.Everything())
	if err != nil {
		return false
	}
	for _, c := range classes {
		if ptr.Deref(c.Spec.ExtendedResourceName, "") == asked {
			return true
		}
	}
	return false
}

func (d *devices) usage(c *resourcev1.ResourceClaim) corev1.ResourceList {
	byClass := devicesAsked(c)
	out := corev1.ResourceList{deviceClaims: count(1)}
	extended := corev1.ResourceList{}
	for class, q := range byClass {
		out[corev1.ResourceName(class+corev1.ResourceClaimsPerClass)] = q
		extended[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = q
		if known, err := d.classes.Get(class); err == nil && ptr.Deref(known.Spec.ExtendedResourceName, "") != "" {
			extended[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*known.Spec.ExtendedResourceName)] = q
		}
	}
	charged := d.chargedToPod(c)
	for name, q := range extended {
		q = q.DeepCopy()
		q.Sub(charged[name])
		if q.Sign() > 0 {
			out[name] = q
		}
	}
	return out
}

// chargedToPod is what the pod takes that a claim was made for because of the
// extended resources it asks for; nothing of any other claim.
func (d *devices) chargedToPod(c *resourcev1.ResourceClaim) corev1.ResourceList {
	owner := extendedOwner(c)
	if owner == nil {
		return nil
	}
	pod, err := d.pods.Pods(c.Namespace).Get(owner.Name)
	if err != nil || pod.UID != owner.UID {
		return nil
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != c.Name ||
		s == nil && !d.first(c, owner) {
		return nil
	}
	return podUsage(pod, time.Now())
}

// first tells whether no older claim was made for the same pod; before its status
// names one, anybody could say of more claims that they are.
func (d *devices) first(c *resourcev1.ResourceClaim, owner *metav1.OwnerReference) bool {
	all, err := d.claims.ResourceClaims(c.Namespace).List(labels.Everything())
	if err != nil {
		return false
	}
	for _, other := range all {
		if o := extendedOwner(other); o == nil || o.UID != owner.UID {
			continue
		}
		if other.CreationTimestamp.Before(&c.CreationTimestamp) ||
			other.CreationTimestamp.Equal(&c.CreationTimestamp) && other.Name < c.Name {
			return false
		}
	}
	return true
}

// extendedOwner is the pod that a claim says it was made for by the scheduler.
func extendedOwner(c *resourcev1.ResourceClaim) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(c)
	if owner == nil || owner.Kind != "Pod" || owner.APIVersion != "v1" ||
		c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return nil
	}
	return owner
}

// devicesAsked is the most that a claim may get of each class.
func devicesAsked(c *resourcev1.ResourceClaim) map[string]resource.Quantity {
	out := map[string]resource.Quantity{}
	add := func(class string, q resource.Quantity) {
		sum := out[class]
		sum.Add(q)
		out[class] = sum
	}
	for i := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[i]
		if r.Exactly != nil {
			add(r.Exactly.DeviceClassName, most(r.Exactly.AllocationMode, r.Exactly.Count))
		}
		// Of alternatives, the worst one counts, class by class.
		worst := map[string]resource.Quantity{}
		for j := range r.FirstAvailable {
			alt := &r.FirstAvailable[j]
			if q := most(alt.AllocationMode, alt.Count); q.Cmp(worst[alt.DeviceClassName]) > 0 {
				worst[alt.DeviceClassName] = q
			}
		}
		for class, q := range worst {
			add(class, q)
		}
	}
	return out
}

func most(mode resourcev1.DeviceAllocationMode, n int64) resource.Quantity {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return count(int(n))
	case resourcev1.DeviceAllocationModeAll:
		return count(resourcev1.AllocationResultsMaxSize)
	}
	return count(0)
}
