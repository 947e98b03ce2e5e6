package admission

import (
	"context"
	"fmt"

	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/kubernetes"

	corev1 "k8s.io/api/core/v1"
)

// runtimeClass applies a pod's RuntimeClass: overhead, node selector and
// tolerations (RTC-11 to RTC-13). Few pods have one, so that it is read when needed.
type runtimeClass struct {
	*admission.Handler
	client kubernetes.Interface
}

func newRuntimeClass() *runtimeClass {
	return &runtimeClass{Handler: admission.NewHandler(admission.Create)}
}

// SetExternalKubeClientSet implements the initializer's interface.
func (r *runtimeClass) SetExternalKubeClientSet(client kubernetes.Interface) { r.client = client }

// ValidateInitialization says what is missing.
func (r *runtimeClass) ValidateInitialization() error {
	if r.client == nil {
		return fmt.Errorf("no client")
	}
	return nil
}

// Admit merges the class into the pod.
func (r *runtimeClass) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil || pod.Spec.RuntimeClassName == nil {
		return nil
	}
	class, err := r.get(ctx, a, *pod.Spec.RuntimeClassName)
	if err != nil {
		return err
	}
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	for key, value := range class.Scheduling.NodeSelector {
		if had, ok := pod.Spec.NodeSelector[key]; ok && had != value {
			return forbid(a,
				"conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key,
				value, key, had)
		}
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[key] = value
	}
	pod.Spec.Tolerations = unite(pod.Spec.Tolerations, class.Scheduling.Tolerations)
	return nil
}

// Validate refuses an overhead that is not the class's.
func (r *runtimeClass) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	var class *nodev1.RuntimeClass
	if pod.Spec.RuntimeClassName != nil {
		var err error
		if class, err = r.get(ctx, a, *pod.Spec.RuntimeClassName); err != nil {
			return err
		}
	}
	if class != nil && class.Overhead != nil {
		if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return forbid(a, "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
		}
		return nil
	}
	if pod.Spec.Overhead != nil { // an empty one too, as upstream
		return forbid(a, "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
	}
	return nil
}

func (r *runtimeClass) get(ctx context.Context, a admission.Attributes, name string) (*nodev1.RuntimeClass, error) {
	class, err := r.client.NodeV1().RuntimeClasses().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, forbid(a, "pod rejected: RuntimeClass %q not found", name)
	}
	return class, err
}

// unite appends the tolerations that are not there yet.
func unite(have, more []corev1.Toleration) []corev1.Toleration {
	for _, m := range more {
		found := false
		for _, h := range have {
			found = found || equality.Semantic.DeepEqual(h, m)
		}
		if !found {
			have = append(have, m)
		}
	}
	return have
}
