package rootca

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	name                  = "kube-root-ca.crt"
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

type reconciler struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	maps       corelisters.ConfigMapLister
	data       map[string]string
}

// New builds the controller for a CA bundle in PEM; its keys are namespaces.
func New(env controller.Env, ca []byte) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &reconciler{
		client: env.Client, namespaces: core.Namespaces().Lister(), maps: core.ConfigMaps().Lister(),
		data: map[string]string{"ca.crt": string(ca)},
	}
	loop := controller.New("root-ca", 2, env.Log)
	loop.Reconciler = r
	loop.WatchKeys(core.Namespaces().Informer())
	controller.Watch(loop, core.ConfigMaps().Informer(), func(old, obj *corev1.ConfigMap) {
		if obj == nil {
			obj = old
		}
		if obj.Name == name {
			loop.Add(obj.Namespace)
		}
	})
	return loop, nil
}

// Reconcile creates or corrects one namespace's ConfigMap.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, err := r.namespaces.Get(key)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	have, err := r.maps.ConfigMaps(key).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = r.client.CoreV1().ConfigMaps(key).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: key,
				Annotations: map[string]string{descriptionAnnotation: description}},
			Data: r.data,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			err = nil
		}
		return 0, err
	case err != nil:
		return 0, err
	case equality.Semantic.DeepEqual(have.Data, r.data) && have.Annotations[descriptionAnnotation] != "":
		return 0, nil
	}
	fixed := have.DeepCopy()
	fixed.Data = r.data
	metav1.SetMetaDataAnnotation(&fixed.ObjectMeta, descriptionAnnotation, description)
	_, err = r.client.CoreV1().ConfigMaps(key).Update(ctx, fixed, metav1.UpdateOptions{})
	return 0, err
}
