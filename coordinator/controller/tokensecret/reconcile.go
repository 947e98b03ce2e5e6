package tokensecret

import (
	"context"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// The keys are "secret/NAMESPACE/NAME", and "reference/NAMESPACE/ACCOUNT/UID/NAME"
// for a Secret that is gone; the UID may be empty.
const (
	secretKey    = "secret/"
	referenceKey = "reference/"
)

// Deps are what New needs beside the environment.
type Deps struct {
	// Token signs the token of a Secret.
	Token func(*corev1.ServiceAccount, *corev1.Secret) (string, error)
	// Dropped tells whether a token's key is not accepted any more: then it is made anew;
	// nil: no key ever is.
	Dropped func(token string) bool
	// RootCA is the PEM bundle that the API server is verified with.
	RootCA []byte
}

type reconciler struct {
	Deps
	client   kubernetes.Interface
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	loop     *controller.Loop
	log      *slog.Logger
}

// New builds the controller.
func New(env controller.Env, d Deps) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &reconciler{
		Deps: d, client: env.Client, secrets: core.Secrets().Lister(), accounts: core.ServiceAccounts().Lister(),
		loop: controller.New("serviceaccount-token", 2, env.Log), log: env.Log,
	}
	r.loop.Reconciler = r
	controller.Watch(r.loop, core.Secrets().Informer(), func(old, s *corev1.Secret) {
		if s != nil && isToken(s) {
			r.loop.Add(secretKey + s.Namespace + "/" + s.Name)
		} else if s == nil && isToken(old) {
			account, uid := owner(old)
			r.loop.Add(referenceKey + strings.Join([]string{old.Namespace, account, string(uid), old.Name}, "/"))
		}
	})
	controller.Watch(r.loop, core.ServiceAccounts().Informer(), func(old, sa *corev1.ServiceAccount) {
		if old != nil && (sa == nil || sa.UID != old.UID) {
			r.orphaned(old)
		}
	})
	return r.loop, nil
}

// orphaned has the Secrets of an account looked at that is gone.
func (r *reconciler) orphaned(sa *corev1.ServiceAccount) {
	list, _ := r.secrets.Secrets(sa.Namespace).List(labels.Everything())
	for _, s := range list {
		if isToken(s) && isOf(s, sa) {
			r.loop.Add(secretKey + s.Namespace + "/" + s.Name)
		}
	}
}

// Reconcile fills or deletes one Secret, or drops the reference to one.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if rest, ok := strings.CutPrefix(key, referenceKey); ok {
		if part := strings.Split(rest, "/"); len(part) == 4 {
			return 0, r.dropReference(ctx, part[0], part[1], types.UID(part[2]), part[3])
		}
		return 0, nil
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(key, secretKey), "/")
	secret, err := r.secrets.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	if !isToken(secret) {
		return 0, nil
	}
	sa, err := r.account(ctx, secret)
	if err != nil {
		return 0, err
	}
	if sa == nil {
		return 0, r.delete(ctx, secret)
	}
	return 0, r.fill(ctx, secret, sa)
}

// account is the one that a Secret names, nil when it does not exist. What the
// cache has not got is asked of the API: the account may be new.
func (r *reconciler) account(ctx context.Context, s *corev1.Secret) (*corev1.ServiceAccount, error) {
	name, _ := owner(s)
	sa, err := r.accounts.ServiceAccounts(s.Namespace).Get(name)
	if err == nil && isOf(s, sa) {
		return sa, nil
	}
	sa, err = r.client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && !isOf(s, sa) {
		return nil, nil
	}
	return sa, err
}

func (r *reconciler) delete(ctx context.Context, s *corev1.Secret) error {
	err := r.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID},
	})
	if apierrors.IsConflict(err) { // another has the name now; its own event comes
		return nil
	}
	return controller.IgnoreGone(err)
}

// withoutDropped is the Secret, without a token whose key was dropped.
func (r *reconciler) withoutDropped(s *corev1.Secret) *corev1.Secret {
	token := s.Data[corev1.ServiceAccountTokenKey]
	if r.Dropped == nil || len(token) == 0 || !r.Dropped(string(token)) {
		return s
	}
	s = s.DeepCopy()
	delete(s.Data, corev1.ServiceAccountTokenKey)
	return s
}

// fill works on what the API has: a token is written once, never over another.
func (r *reconciler) fill(ctx context.Context, cached *corev1.Secret, sa *corev1.ServiceAccount) error {
	if complete(r.withoutDropped(cached), r.RootCA) {
		return nil
	}
	secrets := r.client.CoreV1().Secrets(cached.Namespace)
	live, err := secrets.Get(ctx, cached.Name, metav1.GetOptions{})
	if err != nil {
		return controller.IgnoreGone(err)
	}
	stale := live.ResourceVersion != cached.ResourceVersion
	live = r.withoutDropped(live)
	if stale || complete(live, r.RootCA) {
		return nil // an event tells of the newer one
	}
	filled, err := fill(live, sa, r.RootCA, r.Token)
	if err != nil {
		return err
	}
	_, err = secrets.Update(ctx, filled, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err):
		return nil
	case apierrors.IsInvalid(err): // an immutable Secret; it will not be another later
		r.log.Warn("service account token cannot be written into its secret: make the secret anew, without immutable",
			"secret", controller.Key(cached.Namespace, cached.Name), "err", err)
		return nil
	}
	return controller.IgnoreGone(err)
}

// dropReference takes a Secret that is gone out of its account's list.
func (r *reconciler) dropReference(ctx context.Context, namespace, account string, uid types.UID, secret string) error {
	cached, err := r.accounts.ServiceAccounts(namespace).Get(account)
	if err != nil || uid != "" && cached.UID != uid {
		return controller.IgnoreGone(err)
	}
	accounts := r.client.CoreV1().ServiceAccounts(namespace)
	live, err := accounts.Get(ctx, account, metav1.GetOptions{})
	if err != nil {
		return controller.IgnoreGone(err)
	}
	left := without(live.Secrets, secret)
	if uid != "" && live.UID != uid || len(left) == len(live.Secrets) {
		return nil
	}
	live.Secrets = left
	_, err = accounts.Update(ctx, live, metav1.UpdateOptions{})
	return controller.IgnoreGone(err)
}
