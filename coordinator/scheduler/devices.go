package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

// classByResource finds device classes by the extended resources that they stand for.
const classByResource = "extended-resource"

// devices is what the plugin for ResourceClaims reads (plugins.Devices).
type devices struct {
	claims  resourcelisters.ResourceClaimLister
	classes resourcelisters.DeviceClassLister
	slices  resourcelisters.ResourceSliceLister
	// byResource is indexed by classByResource.
	byResource cache.Indexer
}

// newDevices asks for informers, which are not started yet.
func newDevices(f informers.SharedInformerFactory) (*devices, error) {
	r := f.Resource().V1()
	classes := r.DeviceClasses()
	if _, indexed := classes.Informer().GetIndexer().GetIndexers()[classByResource]; !indexed {
		err := classes.Informer().AddIndexers(cache.Indexers{classByResource: resourcesOfClass})
		if err != nil {
			return nil, err
		}
	}
	return &devices{
		claims: r.ResourceClaims().Lister(), classes: classes.Lister(), slices: r.ResourceSlices().Lister(),
		byResource: classes.Informer().GetIndexer(),
	}, nil
}

// resourcesOfClass are the extended resources that a class stands for: one by its name,
// and one that it may tell itself (KEP-5004).
func resourcesOfClass(obj any) ([]string, error) {
	c, ok := obj.(*resourcev1.DeviceClass)
	if !ok {
		return nil, nil
	}
	names := []string{resourcev1.ResourceDeviceClassPrefix + c.Name}
	if own := ptr.Deref(c.Spec.ExtendedResourceName, ""); own != "" {
		names = append(names, own)
	}
	return names, nil
}

func (d *devices) Claim(namespace, name string) (*resourcev1.ResourceClaim, error) {
	return d.claims.ResourceClaims(namespace).Get(name)
}

func (d *devices) Claims() ([]*resourcev1.ResourceClaim, error) {
	return d.claims.List(labels.Everything())
}

func (d *devices) Class(name string) (*resourcev1.DeviceClass, error) { return d.classes.Get(name) }

// ClassOf is the newest of several, of those made in the same second the first by name.
func (d *devices) ClassOf(r corev1.ResourceName) (class *resourcev1.DeviceClass) {
	found, err := d.byResource.ByIndex(classByResource, string(r))
	if err != nil {
		return nil
	}
	for _, obj := range found {
		c, ok := obj.(*resourcev1.DeviceClass)
		if !ok {
			continue
		}
		if class == nil || class.CreationTimestamp.Before(&c.CreationTimestamp) ||
			class.CreationTimestamp.Equal(&c.CreationTimestamp) && c.Name < class.Name {
			class = c
		}
	}
	return class
}

func (d *devices) Classes() ([]*resourcev1.DeviceClass, error) {
	return d.classes.List(labels.Everything())
}

func (d *devices) Slices() ([]*resourcev1.ResourceSlice, error) {
	return d.slices.List(labels.Everything())
}
