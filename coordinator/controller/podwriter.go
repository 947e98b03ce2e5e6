package controller

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// PodWriter creates and deletes the pods of one kind of owner: it notes each
// write in the expectations and tells it as an event of the owner, in upstream's
// words.
type PodWriter struct {
	Client kubernetes.Interface
	Events record.EventRecorder
	Expect *Expectations
}

// Create creates a pod of the owner with this key. The pod is nil without an
// error when its namespace is being deleted.
func (w PodWriter) Create(ctx context.Context, key string, owner runtime.Object, pod *corev1.Pod) (*corev1.Pod, error) {
	created, err := w.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil, nil
	}
	if err != nil {
		w.Events.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		return nil, err
	}
	w.Expect.Created(key, created.UID, time.Now())
	w.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", created.Name)
	return created, nil
}

// Delete deletes a pod of the owner; one that is gone already, or another by
// now, is no error.
func (w PodWriter) Delete(ctx context.Context, key string, owner runtime.Object, pod *corev1.Pod) error {
	err := w.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		w.Events.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return err
	}
	w.Expect.Deleted(key, pod.UID, time.Now())
	w.Events.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", pod.Name)
	return nil
}
