package scheduler

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
)

// devices is what the plugin for ResourceClaims reads (plugins.Devices).
type devices struct {
	claims  resourcelisters.ResourceClaimLister
	classes resourcelisters.DeviceClassLister
	slices  resourcelisters.ResourceSliceLister
}

func newDevices(f informers.SharedInformerFactory) *devices {
	r := f.Resource().V1()
	return &devices{
		claims: r.ResourceClaims().Lister(), classes: r.DeviceClasses().Lister(), slices: r.ResourceSlices().Lister(),
	}
}

func (d *devices) Claim(namespace, name string) (*resourcev1.ResourceClaim, error) {
	return d.claims.ResourceClaims(namespace).Get(name)
}

func (d *devices) Claims() ([]*resourcev1.ResourceClaim, error) {
	return d.claims.List(labels.Everything())
}

func (d *devices) Class(name string) (*resourcev1.DeviceClass, error) { return d.classes.Get(name) }

func (d *devices) Classes() ([]*resourcev1.DeviceClass, error) {
	return d.classes.List(labels.Everything())
}

func (d *devices) Slices() ([]*resourcev1.ResourceSlice, error) {
	return d.slices.List(labels.Everything())
}
