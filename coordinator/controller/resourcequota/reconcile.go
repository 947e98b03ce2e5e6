package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/quota"
)

const (
	workers = 5
	// recount is upstream's period: it corrects what no event tells, such as a
	// charge for an object that was then refused, or a pod overdue for deletion.
	recount = 5 * time.Minute
	// lookAgain is for a resource that is not served (yet).
	lookAgain = 30 * time.Second
)

// Deps are what the controller needs beyond Env.
type Deps struct {
	Discovery discovery.DiscoveryInterface
	Metadata  metadata.Interface
	// StartInformers starts the shared informers that were asked for since it
	// was called last; they outlive the controller.
	StartInformers func()
}

// Controller counts what quotas limit; its keys are quotas.
type Controller struct {
	client    kubernetes.Interface
	quotas    corelisters.ResourceQuotaLister
	informers informers.SharedInformerFactory
	metadata  metadata.Interface
	mapper    meta.ResettableRESTMapper
	startAll  func()
	loop      *controller.Loop
	registry  quotav1.Registry
	monitors  *monitors
	charges   charges
}

// New builds the controller.
func New(env controller.Env, deps Deps) *Controller {
	c := &Controller{
		client: env.Client, quotas: env.Informers.Core().V1().ResourceQuotas().Lister(), informers: env.Informers,
		metadata: deps.Metadata, startAll: deps.StartInformers,
		mapper:   restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(deps.Discovery)),
		loop:     controller.New("resource-quota", workers, env.Log),
		monitors: &monitors{byResource: map[schema.GroupResource]*monitor{}},
	}
	c.registry = generic.NewRegistry(quota.Evaluators(c.lister, env.Informers))
	c.loop.Reconciler = c
	controller.Watch(c.loop, env.Informers.Core().V1().ResourceQuotas().Informer(), func(old, q *corev1.ResourceQuota) {
		if q == nil {
			c.charges.forget(controller.Key(old.Namespace, old.Name))
			return
		}
		grew := old != nil && lower(q.Status.Used, old.Status.Used)
		c.charges.note(controller.Key(q.Namespace, q.Name), q.ResourceVersion, grew, time.Now())
		// A status that was counted, or charged, is left alone; one that someone
		// else changed is not.
		if old == nil || !quotav1.Equals(old.Spec.Hard, q.Spec.Hard) ||
			!equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) {
			c.loop.Add(controller.Key(q.Namespace, q.Name))
		}
	})
	// A class decides which quotas the claims for its devices count in.
	controller.Watch(c.loop, env.Informers.Resource().V1().DeviceClasses().Informer(),
		func(old, class *resourcev1.DeviceClass) {
			if old == nil || class == nil ||
				!equality.Semantic.DeepEqual(old.Spec.ExtendedResourceName, class.Spec.ExtendedResourceName) {
				c.addAll()
			}
		})
	return c
}

// Name tells whose loop it is.
func (c *Controller) Name() string { return c.loop.Name() }

// Run counts until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	defer c.monitors.close()
	return c.loop.Run(ctx)
}

// again has the quotas of a namespace that are about a resource counted.
func (c *Controller) again(gr schema.GroupResource, namespace string, after time.Duration) {
	list, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil || len(list) == 0 {
		return
	}
	e := c.registry.Get(gr)
	if e == nil {
		return
	}
	for _, q := range list {
		if len(e.MatchingResources(quotav1.ResourceNames(q.Spec.Hard))) > 0 {
			c.loop.AddAfter(controller.Key(q.Namespace, q.Name), after)
		}
	}
}

func (c *Controller) addAll() {
	list, err := c.quotas.List(labels.Everything())
	if err != nil {
		return
	}
	for _, q := range list {
		c.loop.Add(controller.Key(q.Namespace, q.Name))
	}
}

// Reconcile counts what one quota's namespace uses.
func (c *Controller) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	q, err := c.quotas.ResourceQuotas(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	after, followErr := c.followAll(q)
	usage, err := quotav1.CalculateUsage(namespace, q.Spec.Scopes, q.Spec.Hard, c.registry, q.Spec.ScopeSelector)
	if err != nil {
		err = fmt.Errorf("count the use of quota %s: %w", key, err)
	}
	// What could be counted is written even when something could not.
	status := next(q, usage)
	wait := c.charges.settled(key, q.ResourceVersion, time.Now())
	if wait > 0 && lower(q.Status.Used, status.Used) {
		return wait, errors.Join(err, followErr)
	}
	if differs(q, status) && (err == nil || len(usage) > 0) {
		q = q.DeepCopy()
		q.Status = status
		_, writeErr := c.client.CoreV1().ResourceQuotas(namespace).UpdateStatus(ctx, q, metav1.UpdateOptions{})
		if apierrors.IsNotFound(writeErr) {
			return 0, nil
		}
		err = errors.Join(err, writeErr)
	}
	return after, errors.Join(err, followErr)
}

// followAll watches what a quota is about, and returns when to count again
// without an event.
func (c *Controller) followAll(q *corev1.ResourceQuota) (time.Duration, error) {
	after := recount
	var errs []error
	for gr := range concerns(q.Spec.Hard, c.registry.List()) {
		served, err := c.follow(gr)
		if err != nil {
			errs = append(errs, err)
		} else if !served {
			after = lookAgain
		}
	}
	return after, errors.Join(errs...)
}
