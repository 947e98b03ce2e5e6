package systemnamespace

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type reconciler struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
}

// New builds the controller for namespaces of these names, which are its keys.
func New(env controller.Env, names []string) (*controller.Loop, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	loop := controller.New("system-namespaces", 1, env.Log)
	loop.Reconciler = &reconciler{client: env.Client, namespaces: namespaces.Lister()}
	loop.Started = func(context.Context) {
		for _, name := range names {
			loop.Add(name)
		}
	}
	controller.Watch(loop, namespaces.Informer(), func(old, obj *corev1.Namespace) {
		if obj == nil && slices.Contains(names, old.Name) {
			loop.Add(old.Name)
		}
	})
	return loop, nil
}

// Reconcile makes a namespace that is not there.
func (r *reconciler) Reconcile(ctx context.Context, name string) (time.Duration, error) {
	if _, err := r.namespaces.Get(name); !apierrors.IsNotFound(err) {
		return 0, err
	}
	_, err := r.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return 0, err
}
