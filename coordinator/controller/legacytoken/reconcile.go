package legacytoken

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/shoal-project/shoal/coordinator/auth/podref"
	"github.com/shoal-project/shoal/coordinator/auth/token"
	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	// trackingMap of kube-system tells since when uses are noted.
	trackingMap = "kube-apiserver-legacy-service-account-token-tracking"
	trackingKey = "since"

	key = "tokens"
	// DefaultPeriod is upstream's.
	DefaultPeriod = 365 * 24 * time.Hour
	// DefaultInterval is upstream's: the dates of tokens are days.
	DefaultInterval = 24 * time.Hour
)

type reconciler struct {
	client   kubernetes.Interface
	period   time.Duration
	interval time.Duration
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	log      *slog.Logger
}

// New builds the controller; period is how long a token may lie unused, interval
// how often all are looked at.
func New(env controller.Env, period, interval time.Duration) (*controller.Loop, error) {
	core := env.Informers.Core().V1()
	r := &reconciler{
		client: env.Client, period: period, interval: interval, secrets: core.Secrets().Lister(),
		accounts: core.ServiceAccounts().Lister(), pods: core.Pods().Lister(), log: env.Log,
	}
	loop := controller.New("legacy-serviceaccount-token-cleaner", 1, env.Log)
	loop.Reconciler = r
	loop.Needs(core.Secrets().Informer())
	loop.Needs(core.ServiceAccounts().Informer())
	loop.Needs(core.Pods().Informer())
	loop.Started = func(context.Context) { loop.Add(key) }
	return loop, nil
}

// Reconcile looks at all tokens, and again after an interval.
func (r *reconciler) Reconcile(ctx context.Context, _ string) (time.Duration, error) {
	now := time.Now().UTC()
	tracking, err := r.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, trackingMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return r.interval, nil
	} else if err != nil {
		return 0, err
	}
	if from, ok := trackedFrom(tracking); !ok || now.Before(from.Add(r.period)) {
		return r.interval, nil
	}
	secrets, err := r.secrets.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	mounted := mountedSecrets{pods: r.pods, byNamespace: map[string]map[string]bool{}}
	var errs []error
	for _, s := range secrets {
		v := judge(s, now, r.period)
		if v == keep || !r.generated(s) || mounted.has(s) {
			continue
		}
		if v == markInvalid {
			errs = append(errs, r.mark(ctx, s, now))
		} else {
			errs = append(errs, r.remove(ctx, s))
		}
	}
	return r.interval, errors.Join(errs...)
}

// generated tells whether a Secret was made by Kubernetes for its account: then
// the account lists it.
func (r *reconciler) generated(s *corev1.Secret) bool {
	uid := types.UID(s.Annotations[corev1.ServiceAccountUIDKey])
	sa, err := r.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
	return err == nil && (uid == "" || uid == sa.UID) && token.Referenced(sa, s.Name)
}

func (r *reconciler) mark(ctx context.Context, s *corev1.Secret, now time.Time) error {
	day := now.Format(time.DateOnly)
	patch, err := json.Marshal(map[string]any{"metadata": metav1.ObjectMeta{
		UID: s.UID, Labels: map[string]string{token.InvalidSinceLabel: day},
	}})
	if err != nil {
		return err
	}
	_, err = r.client.CoreV1().Secrets(s.Namespace).
		Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil {
		r.log.Info("auto-generated service account token was not used for long: it is invalid now",
			"secret", controller.Key(s.Namespace, s.Name), "invalidSince", day)
	}
	return unlessChanged(err)
}

func (r *reconciler) remove(ctx context.Context, s *corev1.Secret) error {
	err := r.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err == nil {
		r.log.Info("invalid auto-generated service account token is deleted",
			"secret", controller.Key(s.Namespace, s.Name), "lastUsed", s.Labels[token.LastUsedLabel],
			"invalidSince", s.Labels[token.InvalidSinceLabel])
	}
	return unlessChanged(err)
}

// unlessChanged drops the errors that say that a Secret is not what it was; it is
// looked at again tomorrow.
func unlessChanged(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// mountedSecrets are the Secrets that pods name, read once a namespace.
type mountedSecrets struct {
	pods        corelisters.PodLister
	byNamespace map[string]map[string]bool
}

func (m *mountedSecrets) has(s *corev1.Secret) bool {
	names, ok := m.byNamespace[s.Namespace]
	if !ok {
		names = map[string]bool{}
		pods, _ := m.pods.Pods(s.Namespace).List(labels.Everything())
		for _, p := range pods {
			podref.Visit(p, func(kind podref.Kind, name string) {
				if kind == podref.Secret {
					names[name] = true
				}
			})
		}
		m.byNamespace[s.Namespace] = names
	}
	return names[s.Name]
}
