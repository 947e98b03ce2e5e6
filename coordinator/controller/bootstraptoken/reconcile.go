package bootstraptoken

import (
	"context"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	bootstrapsecret "k8s.io/cluster-bootstrap/util/secrets"

	"github.com/shoal-project/shoal/coordinator/controller"
)

type signing struct {
	client  kubernetes.Interface
	maps    corelisters.ConfigMapLister
	secrets corelisters.SecretLister
}

// NewSigner builds the controller that signs cluster-info; that is its only key.
func NewSigner(env controller.Env) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &signing{client: env.Client, maps: core.ConfigMaps().Lister(), secrets: core.Secrets().Lister()}
	loop := controller.New("bootstrap-signer", 1, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, core.ConfigMaps().Informer(), func(_, m *corev1.ConfigMap) {
		if m != nil && m.Namespace == metav1.NamespacePublic && m.Name == bootstrap.ConfigMapClusterInfo {
			loop.Add(m.Name)
		}
	})
	controller.Watch(loop, core.Secrets().Informer(), func(old, s *corev1.Secret) {
		if old != nil && isToken(old) || s != nil && isToken(s) {
			loop.Add(bootstrap.ConfigMapClusterInfo)
		}
	})
	return loop, nil
}

// Reconcile signs cluster-info anew where it or the tokens have changed. A token
// that expires is deleted, which calls it again.
func (r *signing) Reconcile(ctx context.Context, _ string) (time.Duration, error) {
	info, err := r.maps.ConfigMaps(metav1.NamespacePublic).Get(bootstrap.ConfigMapClusterInfo)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	secrets, err := r.secrets.Secrets(metav1.NamespaceSystem).List(labels.Everything())
	if err != nil {
		return 0, err
	}
	var tokens []*corev1.Secret
	for _, s := range secrets {
		if isToken(s) {
			tokens = append(tokens, s)
		}
	}
	signed := sign(info.Data, tokens, time.Now())
	if maps.Equal(signed, info.Data) {
		return 0, nil
	}
	next := info.DeepCopy()
	next.Data = signed
	_, err = r.client.CoreV1().ConfigMaps(info.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return 0, controller.IgnoreGone(err)
}

// NewCleaner builds the controller that deletes tokens which have expired; its
// keys are Secrets.
func NewCleaner(env controller.Env) (*controller.Loop, error) {
	secrets := env.Informers.Core().V1().Secrets()
	loop := controller.New("token-cleaner", 1, env.Log)
	loop.Reconciler = controller.Func(func(ctx context.Context, key string) (time.Duration, error) {
		return clean(ctx, env.Client, secrets.Lister(), key)
	})
	controller.Watch(loop, secrets.Informer(), func(_, s *corev1.Secret) {
		if s != nil && isToken(s) {
			loop.Add(s.Name)
		}
	})
	return loop, nil
}

func clean(ctx context.Context, client kubernetes.Interface, secrets corelisters.SecretLister,
	name string) (time.Duration, error) {
	s, err := secrets.Secrets(metav1.NamespaceSystem).Get(name)
	if err != nil {
		return 0, controller.IgnoreGone(err)
	}
	if !isToken(s) {
		return 0, nil
	}
	left, expired := bootstrapsecret.GetExpiration(s, time.Now())
	if !expired {
		return left, nil
	}
	err = client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID},
	})
	if apierrors.IsConflict(err) { // another has the name now
		return 0, nil
	}
	return 0, controller.IgnoreGone(err)
}
