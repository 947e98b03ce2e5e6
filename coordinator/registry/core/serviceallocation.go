package core

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/util/dryrun"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/registry/allocate"
)

// allocateOnWrite has each write of a Service give it its addresses and ports, or
// take them back.
func allocateOnWrite(store *genericregistry.Store, a *allocate.Allocator, client kubernetes.Interface) {
	store.BeginCreate = func(ctx context.Context, obj runtime.Object,
		o *metav1.CreateOptions) (genericregistry.FinishFunc, error) {
		return begin(ctx, a, obj.(*corev1.Service), nil, dryrun.IsDryRun(o.DryRun))
	}
	store.BeginUpdate = func(ctx context.Context, obj, old runtime.Object,
		o *metav1.UpdateOptions) (genericregistry.FinishFunc, error) {
		return begin(ctx, a, obj.(*corev1.Service), old.(*corev1.Service), dryrun.IsDryRun(o.DryRun))
	}
	store.AfterDelete = func(obj runtime.Object, o *metav1.DeleteOptions) {
		if s := obj.(*corev1.Service); !dryrun.IsDryRun(o.DryRun) {
			dropEndpoints(client, s.Namespace, s.Name)
			a.Release(s)
		}
	}
}

// begin allocates. Where that fails because of what the client wrote, the client is
// told what is wrong with it, which is looked at after allocation otherwise.
func begin(ctx context.Context, a *allocate.Allocator, s, old *corev1.Service,
	dryRun bool) (genericregistry.FinishFunc, error) {
	asked := s.DeepCopy()
	finish, err := a.Begin(ctx, s, old, dryRun)
	if !apierrors.IsInternalError(err) {
		return finish, err
	}
	if errs := validateService(asked, old); len(errs) > 0 {
		return nil, apierrors.NewInvalid(corev1.SchemeGroupVersion.WithKind("Service").GroupKind(), s.Name, errs)
	}
	return nil, err
}

// dropEndpoints deletes the Endpoints of a deleted service, so that a new one of
// its name does not begin with old addresses.
func dropEndpoints(client kubernetes.Interface, namespace, name string) {
	if client == nil {
		return
	}
	err := client.CoreV1().Endpoints(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		utilruntime.HandleError(fmt.Errorf("delete endpoints of deleted service %s/%s: %w", namespace, name, err))
	}
}
