package systemobjects

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// Deps make what they name if it is missing, and leave alone what is right. A nil one is
// not kept.
type Deps struct {
	// Service makes the Service kubernetes, Endpoints its Endpoints and EndpointSlices.
	Service, Endpoints func(context.Context) error
	// Authentication makes what extension API servers verify requests with.
	Authentication func(context.Context) error
	// TokenTracking makes the date since when the use of tokens in Secrets is recorded.
	TokenTracking func(context.Context) error
	// DriverName is the storage driver's that ships with Shoal, and Driver makes its
	// CSIDriver.
	DriverName string
	Driver     func(context.Context) error
}

// The keys of the loop.
const (
	service        = "service"
	endpoints      = "endpoints"
	authentication = "authentication"
	tokenTracking  = "token tracking"
	driver         = "driver"
)

const (
	apiService        = "kubernetes"
	authenticationMap = "extension-apiserver-authentication"
	tokenTrackingMap  = "kube-apiserver-legacy-service-account-token-tracking"
)

// New returns the controller.
func New(env controller.Env, d Deps) (*controller.Loop, error) {
	makers := map[string]func(context.Context) error{}
	for key, f := range map[string]func(context.Context) error{
		service: d.Service, endpoints: d.Endpoints, authentication: d.Authentication, tokenTracking: d.TokenTracking,
		driver: d.Driver,
	} {
		if f != nil {
			makers[key] = f
		}
	}
	loop := controller.New("system-objects", 1, env.Log)
	loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
		return 0, makers[key](ctx)
	})
	// What was deleted while nobody led.
	loop.Started = func(context.Context) {
		for _, key := range slices.Sorted(maps.Keys(makers)) {
			loop.Add(key)
		}
	}
	add := func(key string) {
		if makers[key] != nil {
			loop.Add(key)
		}
	}
	core := env.Informers.Core().V1()
	controller.Watch(loop, core.Services().Informer(), func(old, obj *corev1.Service) {
		if obj == nil && isAPI(old) {
			add(service)
		}
	})
	controller.Watch(loop, core.Endpoints().Informer(), func(old, obj *corev1.Endpoints) {
		if isAPI(newest(old, obj)) {
			add(endpoints)
		}
	})
	controller.Watch(loop, env.Informers.Discovery().V1().EndpointSlices().Informer(),
		func(old, obj *discoveryv1.EndpointSlice) {
			if isAPI(newest(old, obj)) {
				add(endpoints)
			}
		})
	controller.Watch(loop, core.ConfigMaps().Informer(), func(old, obj *corev1.ConfigMap) {
		if newest(old, obj).Namespace != metav1.NamespaceSystem || !lost(old, obj) {
			return
		}
		switch newest(old, obj).Name {
		case authenticationMap:
			add(authentication)
		case tokenTrackingMap:
			add(tokenTracking)
		}
	})
	controller.Watch(loop, env.Informers.Storage().V1().CSIDrivers().Informer(), func(old, obj *storagev1.CSIDriver) {
		if obj == nil && old.Name == d.DriverName {
			add(driver)
		}
	})
	return loop, nil
}

func isAPI(obj metav1.Object) bool {
	return obj.GetNamespace() == metav1.NamespaceDefault && obj.GetName() == apiService
}

func newest[T any](old, obj *T) *T {
	if obj == nil {
		return old
	}
	return obj
}

// lost tells whether a ConfigMap is gone, or a key of it. Other changes are left to who
// makes it: each coordinator writes there whom it trusts itself while keys are rotated.
func lost(old, obj *corev1.ConfigMap) bool {
	if old == nil || obj == nil {
		return obj == nil
	}
	for key := range old.Data {
		if _, has := obj.Data[key]; !has {
			return true
		}
	}
	return false
}
