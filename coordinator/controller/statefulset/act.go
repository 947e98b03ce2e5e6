package statefulset

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// do carries out the plan, and stops at the first step that fails: no pod is
// deleted before its claims have the owner they are to have (STS-40).
func (r *reconciler) do(ctx context.Context, key string, v *view, revisions controller.Revisions) error {
	do := v.plan()
	for _, p := range do.claim {
		if err := r.ensureClaims(ctx, v, p); err != nil {
			return err
		}
	}
	_, err := controller.SlowStart(ctx, len(do.create), func(ctx context.Context, i int) error {
		return r.create(ctx, key, v, do.create[i], revisions)
	})
	if err != nil {
		return err
	}
	for _, p := range do.repair {
		if err := r.repair(ctx, v, p); err != nil {
			return err
		}
	}
	for _, p := range do.handOver {
		if err := r.ownClaims(ctx, v, p); err != nil {
			return err
		}
	}
	_, err = controller.SlowStart(ctx, len(do.del), func(ctx context.Context, i int) error {
		return r.delete(ctx, key, v.set, do.del[i])
	})
	return err
}

func (r *reconciler) create(ctx context.Context, key string, v *view, ordinal int, revisions controller.Revisions) error {
	name, template := v.revisionOf(ordinal), &v.set.Spec.Template
	if name != v.update {
		var err error
		if template, err = controller.TemplateOf(revisions.Named(name)); err != nil {
			return err
		}
	}
	pod := newPod(v.set, template, name, ordinal)
	err := r.ensureClaims(ctx, v, pod)
	if err == nil {
		var made *corev1.Pod
		made, err = r.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		switch {
		case err == nil:
			r.expect.Created(key, made.UID, time.Now())
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return nil
		case apierrors.IsAlreadyExists(err):
			// No event, as upstream. The loop tells it once, if it lasts.
			return fmt.Errorf("pod %s waits for its name, which a pod of somebody else has; delete that one: %w",
				pod.Name, err)
		}
	}
	r.told(v.set, "Create", pod.Name, err)
	return err
}

func (r *reconciler) delete(ctx context.Context, key string, set *appsv1.StatefulSet, pod *corev1.Pod) error {
	err := r.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err == nil {
		r.expect.Deleted(key, pod.UID, time.Now())
	}
	r.told(set, "Delete", pod.Name, err)
	return err
}

// repair gives a pod its labels, volumes and claims back.
func (r *reconciler) repair(ctx context.Context, v *view, pod *corev1.Pod) error {
	err := r.ownClaims(ctx, v, pod)
	if err == nil && isIdentified(pod) && mountsClaims(v.set, pod) {
		return nil
	}
	if err == nil && !mountsClaims(v.set, pod) {
		err = r.ensureClaims(ctx, v, pod)
	}
	if err == nil {
		changed := pod.DeepCopy()
		identify(changed)
		mountClaims(v.set, changed)
		_, err = r.client.CoreV1().Pods(pod.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
	}
	r.told(v.set, "Update", pod.Name, err)
	return err
}

// ensureClaims makes those of the pod's claims that are missing.
func (r *reconciler) ensureClaims(ctx context.Context, v *view, pod *corev1.Pod) error {
	var errs []error
	for _, c := range newClaims(v.set, pod) {
		if have := v.claim(c.Name); have != nil {
			if have.DeletionTimestamp != nil {
				errs = append(errs, fmt.Errorf("pvc %s is being deleted", c.Name))
			}
			continue
		}
		_, err := r.client.CoreV1().PersistentVolumeClaims(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			r.events.Eventf(v.set, corev1.EventTypeWarning, "FailedCreate",
				"Create Claim %s for Pod %s in StatefulSet %s failed error: %s", c.Name, pod.Name, v.set.Name, err)
			errs = append(errs, fmt.Errorf("failed to create PVC %s: %w", c.Name, err))
			continue
		}
		r.events.Eventf(v.set, corev1.EventTypeNormal, "SuccessfulCreate",
			"Create Claim %s Pod %s in StatefulSet %s success", c.Name, pod.Name, v.set.Name)
	}
	return errors.Join(errs...)
}

// ownClaims gives the pod's claims the owners that the policy asks for.
func (r *reconciler) ownClaims(ctx context.Context, v *view, pod *corev1.Pod) error {
	for _, c := range v.claimsOf(pod) {
		if isClaimRight(c, v.set, pod) {
			continue
		}
		if hasForeignController(c, v.set, pod) {
			r.events.Eventf(v.set, corev1.EventTypeWarning, "ConflictingController",
				"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim",
				c.Name)
		}
		changed := c.DeepCopy()
		changed.OwnerReferences = claimOwners(c, v.set, pod)
		if _, err := r.client.CoreV1().PersistentVolumeClaims(c.Namespace).Update(ctx, changed,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", c.Name, err)
		}
	}
	return nil
}

// told tells what was done to a pod as an event of the set.
func (r *reconciler) told(set *appsv1.StatefulSet, verb, pod string, err error) {
	if err != nil {
		r.events.Eventf(set, corev1.EventTypeWarning, "Failed"+verb,
			"%s Pod %s in StatefulSet %s failed error: %s", verb, pod, set.Name, err)
		return
	}
	r.events.Eventf(set, corev1.EventTypeNormal, "Successful"+verb,
		"%s Pod %s in StatefulSet %s successful", verb, pod, set.Name)
}
