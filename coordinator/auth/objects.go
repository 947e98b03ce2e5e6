package auth

import (
	"context"
	"errors"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// objects reads what tokens are bound to: from the informers first, and from
// the API when they do not have it yet.
type objects struct {
	world atomic.Pointer[objectsWorld]
}

type objectsWorld struct {
	client          kubernetes.Interface
	serviceAccounts corelisters.ServiceAccountLister
	pods            corelisters.PodLister
	nodes           corelisters.NodeLister
	secrets         corelisters.SecretLister
}

var errNotConnected = errors.New("the server is starting: service account tokens cannot be checked yet")

func (o *objects) connect(client kubernetes.Interface, f informers.SharedInformerFactory) {
	o.world.Store(&objectsWorld{
		client:          client,
		serviceAccounts: f.Core().V1().ServiceAccounts().Lister(),
		pods:            f.Core().V1().Pods().Lister(),
		nodes:           f.Core().V1().Nodes().Lister(),
		secrets:         f.Core().V1().Secrets().Lister(),
	})
}

func (o *objects) nodeUID(name string) string {
	n, err := o.Node(context.Background(), name)
	if err != nil {
		return ""
	}
	return string(n.UID)
}

// ServiceAccount implements token.Objects, as do the following.
func (o *objects) ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	w := o.world.Load()
	if w == nil {
		return nil, errNotConnected
	}
	sa, err := w.serviceAccounts.ServiceAccounts(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return w.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return sa, err
}

// Pod reads a pod.
func (o *objects) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	w := o.world.Load()
	if w == nil {
		return nil, errNotConnected
	}
	pod, err := w.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return w.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return pod, err
}

// Secret reads a secret.
func (o *objects) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	secret, err := o.knownSecret(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return o.world.Load().client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	return secret, err
}

// PatchSecret implements token.LegacyObjects.
func (o *objects) PatchSecret(ctx context.Context, namespace, name string, patch []byte) error {
	w := o.world.Load()
	if w == nil {
		return errNotConnected
	}
	_, err := w.client.CoreV1().Secrets(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// knownSecret reads a secret from the informer alone: whoever is not known yet
// must not have the store asked.
func (o *objects) knownSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	w := o.world.Load()
	if w == nil {
		return nil, errNotConnected
	}
	return w.secrets.Secrets(namespace).Get(name)
}

// Node reads a node.
func (o *objects) Node(ctx context.Context, name string) (*corev1.Node, error) {
	w := o.world.Load()
	if w == nil {
		return nil, errNotConnected
	}
	n, err := w.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return w.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	}
	return n, err
}
