package admission

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	storagehelper "k8s.io/component-helpers/storage/volume"
)

// classes holds the StorageClasses for the two plugins that read them.
type classes struct {
	*admission.Handler
	lister storagelisters.StorageClassLister
}

// SetExternalKubeInformerFactory takes the informer of storage classes.
func (c *classes) SetExternalKubeInformerFactory(f informers.SharedInformerFactory) {
	c.lister = f.Storage().V1().StorageClasses().Lister()
	c.SetReadyFunc(f.Storage().V1().StorageClasses().Informer().HasSynced)
}

// ValidateInitialization says what is missing.
func (c *classes) ValidateInitialization() error {
	if c.lister == nil {
		return fmt.Errorf("no informers")
	}
	return nil
}

// claimOf returns the claim of a request for the claims resource itself.
func claimOf(a admission.Attributes) *corev1.PersistentVolumeClaim {
	if a.GetResource().GroupResource() != corev1.Resource("persistentvolumeclaims") || a.GetSubresource() != "" {
		return nil
	}
	claim, _ := a.GetObject().(*corev1.PersistentVolumeClaim)
	return claim
}

// defaultStorageClass gives a new claim the default class (PV-76, PV-79).
type defaultStorageClass struct{ classes }

func newDefaultStorageClass() *defaultStorageClass {
	return &defaultStorageClass{classes{Handler: admission.NewHandler(admission.Create)}}
}

// Admit sets spec.storageClassName; without a default class it leaves it.
func (d *defaultStorageClass) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim := claimOf(a)
	if claim == nil || storagehelper.PersistentVolumeClaimHasClass(claim) {
		return nil
	}
	list, err := d.lister.List(labels.Everything())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if class := newestDefault(list); class != nil {
		name := class.Name
		claim.Spec.StorageClassName = &name
	}
	return nil
}

func newestDefault(list []*storagev1.StorageClass) *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, c := range list {
		if c.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" &&
			c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&c.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < found.Name {
			found = c
		}
	}
	return found
}

// claimResize lets only claims grow whose class allows it (PV-34).
type claimResize struct{ classes }

func newClaimResize() *claimResize {
	return &claimResize{classes{Handler: admission.NewHandler(admission.Update)}}
}

// Validate refuses a larger request otherwise.
func (r *claimResize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim := claimOf(a)
	old, ok := a.GetOldObject().(*corev1.PersistentVolumeClaim)
	if claim == nil || !ok {
		return nil
	}
	size, before := claim.Spec.Resources.Requests[corev1.ResourceStorage],
		old.Spec.Resources.Requests[corev1.ResourceStorage]
	switch {
	case size.Cmp(before) <= 0:
		return nil
	case old.Status.Phase != corev1.ClaimBound:
		return forbid(a, "Only bound persistent volume claims can be expanded")
	case !r.allows(claim, old):
		return forbid(a, "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
	}
	return nil
}

func (r *claimResize) allows(claim, old *corev1.PersistentVolumeClaim) bool {
	name := storagehelper.GetPersistentVolumeClaimClass(claim)
	if name == "" || name != storagehelper.GetPersistentVolumeClaimClass(old) {
		return false
	}
	class, err := r.lister.Get(name)
	return err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion
}
