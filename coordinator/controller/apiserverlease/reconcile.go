package apiserverlease

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client kubernetes.Interface
	leases coordinationlisters.LeaseLister
}

// New builds the controller; its keys are Leases of kube-system.
func New(env controller.Env) (*controller.Loop, error) {
	leases := env.Informers.Coordination().V1().Leases()
	loop := controller.New("apiserver-lease-gc", 1, env.Log)
	loop.Reconciler = &reconciler{client: env.Client, leases: leases.Lister()}
	controller.Watch(loop, leases.Informer(), func(old, l *coordinationv1.Lease) {
		// Renewals, each some seconds, are not looked at: the end of a Lease is
		// looked at when it would come without them.
		if l != nil && isIdentity(l) && (old == nil || !isIdentity(old) || left(l, time.Now()) < 0) {
			loop.Add(l.Name)
		}
	})
	return loop, nil
}

// Reconcile deletes one Lease once it has expired.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	cached, err := r.leases.Leases(metav1.NamespaceSystem).Get(key)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	if !isIdentity(cached) {
		return 0, nil
	}
	if d := left(cached, time.Now()); d >= 0 {
		return d + time.Millisecond, nil
	}
	live, err := r.client.CoordinationV1().Leases(cached.Namespace).Get(ctx, key, metav1.GetOptions{})
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	if d := left(live, time.Now()); d >= 0 {
		return d + time.Millisecond, nil
	}
	err = r.client.CoordinationV1().Leases(live.Namespace).Delete(ctx, key, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion},
	})
	if apierrors.IsConflict(err) { // renewed at the last moment
		return time.Second, nil
	}
	return 0, controller.IgnoreGone(err)
}
