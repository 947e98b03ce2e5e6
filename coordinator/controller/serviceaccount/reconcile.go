package serviceaccount

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const name = "default"

type reconciler struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New builds the controller; its keys are namespaces.
func New(env controller.Env) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &reconciler{client: env.Client, namespaces: core.Namespaces().Lister(),
		accounts: core.ServiceAccounts().Lister()}
	loop := controller.New("serviceaccount", 2, env.Log)
	loop.Reconciler = r
	loop.WatchKeys(core.Namespaces().Informer())
	controller.Watch(loop, core.ServiceAccounts().Informer(), func(old, obj *corev1.ServiceAccount) {
		if obj == nil && old.Name == name {
			loop.Add(old.Namespace)
		}
	})
	return loop, nil
}

// Reconcile creates the account that a namespace lacks.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, err := r.namespaces.Get(key)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if _, err := r.accounts.ServiceAccounts(key).Get(name); !apierrors.IsNotFound(err) {
		return 0, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: key}}
	_, err = r.client.CoreV1().ServiceAccounts(key).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil
	}
	return 0, err
}
