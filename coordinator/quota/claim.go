package quota

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	storagehelper "k8s.io/component-helpers/storage/volume"
)

// byClass is between a storage class's name and what is limited of it:
// "gold.storageclass.storage.k8s.io/requests.storage".
const byClass = ".storageclass.storage.k8s.io/"

var claimResources = []corev1.ResourceName{corev1.ResourcePersistentVolumeClaims, corev1.ResourceRequestsStorage}

func newClaims(list generic.ListFuncByNamespace) quotav1.Evaluator {
	return &evaluator[corev1.PersistentVolumeClaim]{
		resource: corev1.Resource("persistentvolumeclaims"), list: list,
		counts: isClaimResource, usage: claimUsage, inScope: claimInScope,
		charged: func(a admission.Attributes) bool {
			if a.GetSubresource() != "status" {
				return onObject(a, true)
			}
			claim, ok := a.GetObject().(*corev1.PersistentVolumeClaim)
			old, was := a.GetOldObject().(*corev1.PersistentVolumeClaim)
			return ok && was && ClaimChanged(old, claim)
		},
	}
}

func isClaimResource(name corev1.ResourceName) bool {
	_, of, classed := strings.Cut(string(name), byClass)
	return name == "count/persistentvolumeclaims" || slices.Contains(claimResources, name) ||
		classed && slices.Contains(claimResources, corev1.ResourceName(of))
}

func claimUsage(c *corev1.PersistentVolumeClaim) corev1.ResourceList {
	out := corev1.ResourceList{"count/persistentvolumeclaims": count(1), corev1.ResourcePersistentVolumeClaims: count(1)}
	if asked, ok := claimStorage(c); ok {
		out[corev1.ResourceRequestsStorage] = asked
	}
	class := storagehelper.GetPersistentVolumeClaimClass(c)
	if class == "" {
		return out
	}
	for _, name := range claimResources {
		if q, ok := out[name]; ok {
			out[corev1.ResourceName(class+byClass)+name] = q
		}
	}
	return out
}

// claimStorage is the larger of what is asked for and what an expansion that
// failed still holds (KEP-1790), in whole bytes.
func claimStorage(c *corev1.PersistentVolumeClaim) (resource.Quantity, bool) {
	asked, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return resource.Quantity{}, false
	}
	if held, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok && held.Cmp(asked) > 0 {
		asked = held
	}
	asked = asked.DeepCopy()
	asked.RoundUp(0)
	return asked, true
}

func claimInScope(s corev1.ScopedResourceSelectorRequirement, c *corev1.PersistentVolumeClaim) (bool, error) {
	if s.ScopeName != corev1.ResourceQuotaScopeVolumeAttributesClass {
		return false, nil
	}
	return selects(s, attributesClasses(c)...)
}

// attributesClasses are all that a claim has, had or is to have (KEP-3751).
func attributesClasses(c *corev1.PersistentVolumeClaim) (names []string) {
	if name := c.Spec.VolumeAttributesClassName; name != nil {
		names = append(names, *name)
	}
	if name := c.Status.CurrentVolumeAttributesClassName; name != nil {
		names = append(names, *name)
	}
	if m := c.Status.ModifyVolumeStatus; m != nil {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// ClaimChanged tells whether a claim's update may change what it takes, or of
// which quota.
func ClaimChanged(old, c *corev1.PersistentVolumeClaim) bool {
	return !quotav1.Equals(claimUsage(old), claimUsage(c)) || !slices.Equal(attributesClasses(old), attributesClasses(c))
}
