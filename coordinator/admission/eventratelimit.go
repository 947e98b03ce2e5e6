package admission

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"
)

// eventLimits is the plugin's configuration, Configuration of
// eventratelimit.admission.k8s.io/v1alpha1.
type eventLimits struct {
	metav1.TypeMeta `json:",inline"`
	Limits          []eventLimit `json:"limits"`
}

type eventLimit struct {
	Type      string `json:"type"`
	QPS       int32  `json:"qps"`
	Burst     int32  `json:"burst"`
	CacheSize int32  `json:"cacheSize,omitempty"`
}

// The sorts of limits: one bucket for all, or one a namespace, a user, a source
// with the object that it tells of.
var eventLimitTypes = []string{"Server", "Namespace", "User", "SourceAndObject"}

// eventCacheSize buckets are remembered when the configuration does not say.
const eventCacheSize = 4096

// eventRateLimit answers 429 to Events beyond a rate.
type eventRateLimit struct {
	*admission.Handler
	enforcers []*eventEnforcer
}

func newEventRateLimit(config io.Reader) (admission.Interface, error) {
	if config == nil {
		return nil, fmt.Errorf("it needs a Configuration of eventratelimit.admission.k8s.io/v1alpha1 in admissionControlConfigFile")
	}
	data, err := io.ReadAll(config)
	if err != nil {
		return nil, err
	}
	var c eventLimits
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return nil, err
	}
	if c.APIVersion != "eventratelimit.admission.k8s.io/v1alpha1" || c.Kind != "Configuration" {
		return nil, fmt.Errorf("it holds %s %s, give a Configuration of eventratelimit.admission.k8s.io/v1alpha1",
			c.APIVersion, c.Kind)
	}
	if errs := c.validate(); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	e := &eventRateLimit{Handler: admission.NewHandler(admission.Create, admission.Update)}
	for _, limit := range c.Limits {
		e.enforcers = append(e.enforcers, newEventEnforcer(limit))
	}
	return e, nil
}

func (c *eventLimits) validate() field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("limits")
	if len(c.Limits) == 0 {
		errs = append(errs, field.Invalid(path, c.Limits, "must not be empty"))
	}
	for i, l := range c.Limits {
		p := path.Index(i)
		if !slices.Contains(eventLimitTypes, l.Type) {
			errs = append(errs, field.NotSupported(p.Child("type"), l.Type, eventLimitTypes))
		}
		if l.QPS <= 0 {
			errs = append(errs, field.Invalid(p.Child("qps"), l.QPS, "must be positive"))
		}
		if l.Burst <= 0 {
			errs = append(errs, field.Invalid(p.Child("burst"), l.Burst, "must be positive"))
		}
		if l.CacheSize < 0 {
			errs = append(errs, field.Invalid(p.Child("cacheSize"), l.CacheSize, "must not be negative"))
		}
	}
	return errs
}

// Validate asks every limit, so that each counts. Upstream's limits the Events of
// core/v1 only; they are the same objects as those of events.k8s.io.
func (e *eventRateLimit) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	r := a.GetResource()
	if r.Resource != "events" || r.Group != "" && r.Group != "events.k8s.io" || a.IsDryRun() {
		return nil
	}
	var refused error
	for _, enforcer := range e.enforcers {
		if err := enforcer.accept(a); err != nil {
			refused = err
		}
	}
	return refused
}

// eventEnforcer holds the buckets of one limit, the least recently used ones
// are forgotten.
type eventEnforcer struct {
	eventLimit
	mu      sync.Mutex // two first events of a key share one bucket
	buckets *lru.Cache
}

func newEventEnforcer(l eventLimit) *eventEnforcer {
	size := int(l.CacheSize)
	switch {
	case l.Type == "Server":
		size = 1
	case size == 0:
		size = eventCacheSize
	}
	return &eventEnforcer{eventLimit: l, buckets: lru.New(size)}
}

func (e *eventEnforcer) accept(a admission.Attributes) error {
	key := e.key(a)
	if e.bucket(key).TryAccept() {
		return nil
	}
	return apierrors.NewTooManyRequestsError(fmt.Sprintf("limit reached on type %v for key %v", e.Type, key))
}

func (e *eventEnforcer) bucket(key string) flowcontrol.RateLimiter {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b, ok := e.buckets.Get(key); ok {
		return b.(flowcontrol.RateLimiter)
	}
	b := flowcontrol.NewTokenBucketRateLimiter(float32(e.QPS), int(e.Burst))
	e.buckets.Add(key, b)
	return b
}

func (e *eventEnforcer) key(a admission.Attributes) string {
	switch e.Type {
	case "Namespace":
		return a.GetNamespace()
	case "User":
		return a.GetUserInfo().GetName()
	case "SourceAndObject":
		if event, ok := a.GetObject().(*corev1.Event); ok {
			o := event.InvolvedObject
			return strings.Join(
				[]string{event.Source.Component, event.Source.Host, o.Kind, o.Namespace, o.Name,
					string(o.UID), o.APIVersion}, "")
		}
	}
	return ""
}
