package admission

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

// storageProtection gives claims, volumes and attribute classes the finalizer
// that the protection controllers take off when nothing uses them (PV-12, PV-13).
type storageProtection struct{ *admission.Handler }

func newStorageProtection() *storageProtection {
	return &storageProtection{admission.NewHandler(admission.Create)}
}

// Admit adds the finalizer.
func (*storageProtection) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetSubresource() != "" {
		return nil
	}
	switch obj := a.GetObject().(type) {
	case *corev1.PersistentVolume:
		addFinalizer(&obj.ObjectMeta, "kubernetes.io/pv-protection")
	case *corev1.PersistentVolumeClaim:
		addFinalizer(&obj.ObjectMeta, "kubernetes.io/pvc-protection")
	case *storagev1.VolumeAttributesClass:
		addFinalizer(&obj.ObjectMeta, "kubernetes.io/vac-protection")
	}
	return nil
}

func addFinalizer(m *metav1.ObjectMeta, name string) {
	if !slices.Contains(m.Finalizers, name) {
		m.Finalizers = append(m.Finalizers, name)
	}
}
