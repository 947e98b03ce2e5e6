package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/csi/locality"
)

const defaultStorageClass = "storageclass.kubernetes.io/is-default-class"

// ensureLocalStorage makes the CSIDriver of the storage driver that ships with Shoal,
// and a StorageClass for it before: once, so that somebody who deletes the class is
// rid of it. It is the default where the cluster has no other class yet.
func ensureLocalStorage(ctx context.Context, client kubernetes.Interface) error {
	drivers, classes := client.StorageV1().CSIDrivers(), client.StorageV1().StorageClasses()
	_, err := drivers.Get(ctx, locality.Driver, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read CSIDriver %s: %w", locality.Driver, err)
	}
	others, err := classes.List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsNotFound(err) {
		return nil // runtimeConfig turned these APIs off
	}
	if err != nil {
		return fmt.Errorf("list storage classes: %w", err)
	}
	class := localClass()
	if len(others.Items) > 0 {
		class.Annotations = nil
	}
	if _, err = classes.Create(ctx, class, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make storage class %s: %w", class.Name, err)
	}
	return createLocalDriver(ctx, client)
}

func createLocalDriver(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().CSIDrivers().Create(ctx, localDriver(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make CSIDriver %s: %w", locality.Driver, err)
	}
	return nil
}

// LocalDriver is the name of the storage driver that ships with Shoal, "" where it is off.
func (s System) LocalDriver() string {
	if !s.LocalStorage {
		return ""
	}
	return locality.Driver
}

// PublishLocalDriver makes the CSIDriver of the storage driver that ships with Shoal, if it
// is missing. Without it volumes wait to be attached, which nobody does.
func (s System) PublishLocalDriver(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().CSIDrivers().Get(ctx, locality.Driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return createLocalDriver(ctx, client)
	}
	return err
}

func localClass() *storagev1.StorageClass {
	reclaim, binding, expands := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer, true
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        locality.Class,
			Annotations: map[string]string{defaultStorageClass: "true"},
		},
		Provisioner:          locality.Driver,
		ReclaimPolicy:        &reclaim,
		VolumeBindingMode:    &binding,
		AllowVolumeExpansion: &expands,
	}
}

func localDriver() *storagev1.CSIDriver {
	attach, capacity, group := false, true, storagev1.FileFSGroupPolicy
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: locality.Driver},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       &attach,
			StorageCapacity:      &capacity,
			FSGroupPolicy:        &group,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}
