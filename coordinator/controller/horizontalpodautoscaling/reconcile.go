package horizontalpodautoscaling

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/controller"
)

// period is how often an autoscaler looks at its target.
const period = 15 * time.Second

// Scales reads and writes the scale subresource of any kind.
type Scales interface {
	// Find returns the scale of what an autoscaler names, and its resource.
	Find(ctx context.Context, namespace string,
		target autoscalingv2.CrossVersionObjectReference) (*autoscalingv1.Scale, schema.GroupResource, error)
	Get(ctx context.Context, namespace string, resource schema.GroupResource, name string) (*autoscalingv1.Scale, error)
	Update(ctx context.Context, namespace string, resource schema.GroupResource, scale *autoscalingv1.Scale) error
}

// Deps are what the controller needs beside controller.Env.
type Deps struct {
	Scales  Scales
	Metrics Metrics
}

// New returns the controller.
func New(env controller.Env, deps Deps) (*controller.Loop, error) {
	hpas, pods := env.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), env.Informers.Core().V1().Pods()
	r := &reconciler{
		Deps:      deps,
		client:    env.Client,
		hpas:      hpas.Lister(),
		pods:      pods.Lister(),
		events:    env.Recorder("horizontal-pod-autoscaler"),
		log:       env.Log,
		known:     map[string]bool{},
		histories: map[string]*history{},
		selectors: map[string]labels.Selector{},
	}
	register()
	loop := controller.New("horizontal-pod-autoscaler", 5, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, hpas.Informer(), func(old, hpa *autoscalingv2.HorizontalPodAutoscaler) {
		// Its own writes of the status do not bring the next look closer.
		switch {
		case hpa == nil:
			loop.Add(controller.Key(old.Namespace, old.Name))
		case old == nil || !equality.Semantic.DeepEqual(old.Spec, hpa.Spec):
			loop.Add(controller.Key(hpa.Namespace, hpa.Name))
		}
	})
	loop.Needs(pods.Informer())
	return loop, nil
}

type reconciler struct {
	Deps
	client kubernetes.Interface
	hpas   autoscalinglisters.HorizontalPodAutoscalerLister
	pods   corelisters.PodLister
	events record.EventRecorder
	log    *slog.Logger

	mu        sync.Mutex
	known     map[string]bool // the autoscalers that there are
	histories map[string]*history
	selectors map[string]labels.Selector
}

// Reconcile looks at one autoscaler's target. It comes back after the period in any
// case: an error is told in conditions and events.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, nil
	}
	shared, err := r.hpas.HorizontalPodAutoscalers(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		r.forget(key)
		desiredReplicas.DeleteLabelValues(namespace, name)
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	r.note(key)
	look := &look{reconciler: r, key: key, hpa: shared.DeepCopy(), now: time.Now(), action: noAction}
	err = look.scale(ctx)
	reconciled(look.action, err, look.now)
	desiredReplicas.WithLabelValues(namespace, name).Set(float64(look.hpa.Status.DesiredReplicas))
	if err != nil {
		r.log.Debug("autoscaler could not scale", "autoscaler", key, "err", err)
	}
	if equality.Semantic.DeepEqual(shared.Status, look.hpa.Status) {
		return period, nil
	}
	_, err = r.client.AutoscalingV2().HorizontalPodAutoscalers(namespace).UpdateStatus(ctx, look.hpa,
		metav1.UpdateOptions{})
	if err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		r.events.Event(look.hpa, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
	}
	return period, nil
}

// note counts an autoscaler once.
func (r *reconciler) note(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[key] = true
	autoscalers.Set(float64(len(r.known)))
}

func (r *reconciler) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, key)
	autoscalers.Set(float64(len(r.known)))
	delete(r.histories, key)
	delete(r.selectors, key)
}

// history returns the one of an autoscaler; it begins with the replicas that are
// there.
func (r *reconciler) history(key string, current int32, now time.Time) *history {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.histories[key]
	if h == nil {
		h = &history{recommended: []event{{current, now}}}
		r.histories[key] = h
	}
	return h
}

// rivals returns the autoscalers of a namespace whose targets have one of the pods,
// the one of key among them.
func (r *reconciler) rivals(key string, selector labels.Selector, pods []*corev1.Pod) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.selectors[key] = selector
	namespace, _, _ := cache.SplitMetaNamespaceKey(key)
	for other, s := range r.selectors {
		of, name, _ := cache.SplitMetaNamespaceKey(other)
		has := func(p *corev1.Pod) bool { return s.Matches(labels.Set(p.Labels)) }
		if of == namespace && slices.ContainsFunc(pods, has) {
			out = append(out, fmt.Sprintf("{%s %s}", name, of))
		}
	}
	slices.Sort(out)
	return out
}

// look is one look of an autoscaler at its target. hpa is a copy; its status becomes
// the new one.
type look struct {
	*reconciler
	key string
	hpa *autoscalingv2.HorizontalPodAutoscaler
	now time.Time
	// action is what was done to the target, as the metrics call it.
	action string
}

// scale brings the target to the replicas that it should have.
func (l *look) scale(ctx context.Context) error {
	found, resource, err := l.Scales.Find(ctx, l.hpa.Namespace, l.hpa.Spec.ScaleTargetRef)
	if err != nil {
		l.warn("FailedGetScale", err.Error())
		l.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedGetScale",
			"the HPA controller was unable to get the target's current scale: "+err.Error())
		return err
	}
	l.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededGetScale",
		"the HPA controller was able to get the target's current scale")
	current := found.Spec.Replicas
	past := l.history(l.key, current, l.now)
	want, err := l.decide(ctx, found, past)
	if want == nil {
		return err
	}
	if want.replicas != current {
		if failed := l.rescale(ctx, found, resource, *want); failed != nil {
			return failed
		}
		l.action = actionOf(current, want.replicas)
		past.done(l.hpa.Spec.Behavior, current, want.replicas, l.now)
		l.hpa.Status.LastScaleTime = &metav1.Time{Time: l.now}
	}
	l.status(current, want.replicas, want.metrics)
	return err
}

// decision is what a target should have.
type decision struct {
	replicas int32
	why      string // of a change
	metrics  []autoscalingv2.MetricStatus
}

// decide returns nil when nothing can be decided; the status is written then. Some
// metrics may have failed where there is a decision.
func (l *look) decide(ctx context.Context, found *autoscalingv1.Scale, past *history) (*decision, error) {
	current, least, most := found.Spec.Replicas, ptr.Deref(l.hpa.Spec.MinReplicas, 1), l.hpa.Spec.MaxReplicas
	switch {
	case current == 0:
		l.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, "ScalingDisabled",
			"scaling is disabled since the replica count of the target is zero")
		return &decision{}, nil
	case current > most:
		return &decision{replicas: most, why: "Current number of replicas above Spec.MaxReplicas"}, nil
	case current < least:
		return &decision{replicas: least, why: "Current number of replicas below Spec.MinReplicas"}, nil
	}
	best, statuses, err := l.best(ctx, found)
	if best == nil {
		l.status(current, l.hpa.Status.DesiredReplicas, statuses)
		l.warn("FailedComputeMetricsReplicas", err.Error())
		return nil, err
	}
	d := &decision{metrics: statuses}
	switch {
	case best.replicas > current:
		d.why = best.metric + " above target"
	case best.replicas < current:
		d.why = "All metrics below target"
	}
	o := past.settle(l.hpa.Spec.Behavior, current, best.replicas, least, most, l.now)
	d.replicas = o.replicas
	l.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, o.able, words[o.able])
	limited := corev1.ConditionTrue
	if o.limit == withinRange {
		limited = corev1.ConditionFalse
	}
	l.condition(autoscalingv2.ScalingLimited, limited, o.limit, words[o.limit])
	return d, err
}

// best returns the proposal of the metric that asks for the most. It is nil when no
// metric could be had, and when one of several could not while the others would
// remove replicas.
func (l *look) best(ctx context.Context, found *autoscalingv1.Scale) (*proposal, []autoscalingv2.MetricStatus, error) {
	selector, pods, err := l.selected(found.Status.Selector)
	if err != nil {
		return nil, nil, err
	}
	s := situation{pods: pods, replicas: found.Spec.Replicas, counted: found.Status.Replicas,
		tolerances: tolerancesOf(l.hpa), now: l.now}
	specs := l.hpa.Spec.Metrics
	statuses := make([]autoscalingv2.MetricStatus, len(specs))
	var best, firstFailed *proposal
	failed := 0
	for i := range specs {
		begin := time.Now()
		p := s.propose(&specs[i], gather(ctx, l.Metrics, l.hpa.Namespace, selector, &specs[i]))
		statuses[i] = p.status
		action := noAction
		if p.failed == nil {
			action = actionOf(found.Spec.Replicas, p.replicas)
		}
		computed(action, p.failed, string(specs[i].Type), begin)
		if p.failed != nil {
			l.warn(p.reason, p.failed.Error())
			failed++
			if firstFailed == nil {
				firstFailed = &p
			}
			continue
		}
		if best == nil || p.replicas > best.replicas {
			best = &p
		}
	}
	if failed > 0 {
		err = fmt.Errorf("invalid metrics (%d invalid out of %d), first error is: %w", failed, len(specs),
			firstFailed.told)
	}
	if failed == len(specs) || failed > 0 && best.replicas < found.Spec.Replicas {
		if firstFailed != nil {
			l.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, firstFailed.reason,
				"the HPA was unable to compute the replica count: "+firstFailed.failed.Error())
		} else {
			err = errors.New("no metrics are configured")
		}
		return nil, statuses, err
	}
	l.condition(autoscalingv2.ScalingActive, corev1.ConditionTrue, "ValidMetricFound",
		"the HPA was able to successfully calculate a replica count from "+best.metric)
	return best, statuses, err
}

// selected returns the target's pods. No other autoscaler may have one of them.
func (l *look) selected(text string) (labels.Selector, []*corev1.Pod, error) {
	refuse := func(reason, told, condition string) error {
		l.warn(reason, told)
		if reason == "SelectorRequired" {
			reason = "InvalidSelector"
		}
		l.condition(autoscalingv2.ScalingActive, corev1.ConditionFalse, reason, condition)
		return errors.New(told)
	}
	if text == "" {
		return nil, nil, refuse("SelectorRequired", "selector is required",
			"the HPA target's scale is missing a selector")
	}
	selector, err := labels.Parse(text)
	if err != nil {
		told := fmt.Sprintf("couldn't convert selector into a corresponding internal selector object: %v", err)
		return nil, nil, refuse("InvalidSelector", told, told)
	}
	pods, err := l.pods.Pods(l.hpa.Namespace).List(selector)
	if err != nil {
		return nil, nil, err
	}
	if rivals := l.rivals(l.key, selector, pods); len(rivals) > 1 {
		told := fmt.Sprintf("pods by selector %v are controlled by multiple HPAs: [%s]", text,
			strings.Join(rivals, " "))
		return nil, nil, refuse("AmbiguousSelector", told, told)
	}
	return selector, pods, nil
}

// rescale writes the target's replicas, whatever else was written to it meanwhile.
func (l *look) rescale(ctx context.Context, found *autoscalingv1.Scale, resource schema.GroupResource,
	want decision) error {
	current := found.Spec.Replicas
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		found.Spec.Replicas = want.replicas
		err := l.Scales.Update(ctx, l.hpa.Namespace, resource, found)
		if apierrors.IsConflict(err) {
			if latest, getErr := l.Scales.Get(ctx, l.hpa.Namespace, resource, found.Name); getErr == nil {
				found = latest
			}
		}
		return err
	})
	if err != nil {
		l.warn("FailedRescale", fmt.Sprintf("New size: %d; reason: %s; error: %v", want.replicas, want.why, err))
		l.condition(autoscalingv2.AbleToScale, corev1.ConditionFalse, "FailedUpdateScale",
			"the HPA controller was unable to update the target scale: "+err.Error())
		l.status(current, l.hpa.Status.DesiredReplicas, want.metrics)
		return err
	}
	l.condition(autoscalingv2.AbleToScale, corev1.ConditionTrue, "SucceededRescale",
		fmt.Sprintf("the HPA controller was able to update the target scale to %d", want.replicas))
	l.events.Event(l.hpa, corev1.EventTypeNormal, "SuccessfulRescale",
		fmt.Sprintf("New size: %d; reason: %s", want.replicas, want.why))
	return nil
}

func (l *look) warn(reason, message string) {
	l.events.Event(l.hpa, corev1.EventTypeWarning, reason, message)
}

// condition sets one condition.
func (l *look) condition(kind autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus,
	reason, message string) {
	list := l.hpa.Status.Conditions
	i := slices.IndexFunc(list, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool { return c.Type == kind })
	if i < 0 {
		i = len(list)
		list = append(list, autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind})
	}
	if list[i].Status != status {
		list[i].LastTransitionTime = metav1.NewTime(l.now)
	}
	list[i].Status, list[i].Reason, list[i].Message = status, reason, message
	l.hpa.Status.Conditions = list
}

// status sets what is counted.
func (l *look) status(current, desired int32, metrics []autoscalingv2.MetricStatus) {
	l.hpa.Status.CurrentReplicas, l.hpa.Status.DesiredReplicas, l.hpa.Status.CurrentMetrics = current, desired, metrics
	l.hpa.Status.ObservedGeneration = nil
}
