// Package flowcontrol keeps the flow control objects that every cluster has, and
// tells of each FlowSchema whether its priority level exists.
package flowcontrol

import (
	"context"
	"fmt"
	"strconv"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/flowcontrol/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	levelPrefix  = "level/"
	schemaPrefix = "schema/"
)

type reconciler struct {
	client    kubernetes.Interface
	schemas   listers.FlowSchemaLister
	levels    listers.PriorityLevelConfigurationLister
	wantLevel map[string]*flowcontrolv1.PriorityLevelConfiguration
	want      map[string]*flowcontrolv1.FlowSchema
	mandatory map[string]bool // by key
}

// New builds the controller; its keys are "level/" and "schema/" with a name.
func New(env controller.Env) (*controller.Loop, error) {
	flow := env.Informers.Flowcontrol().V1()
	r := &reconciler{
		client: env.Client, schemas: flow.FlowSchemas().Lister(), levels: flow.PriorityLevelConfigurations().Lister(),
		wantLevel: map[string]*flowcontrolv1.PriorityLevelConfiguration{}, want: map[string]*flowcontrolv1.FlowSchema{}, mandatory: map[string]bool{},
	}
	r.collect()
	loop := controller.New("flow-control", 2, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, flow.FlowSchemas().Informer(), func(old, obj *flowcontrolv1.FlowSchema) {
		loop.Add(schemaPrefix + either(old, obj).Name)
	})
	controller.Watch(loop, flow.PriorityLevelConfigurations().Informer(), func(old, obj *flowcontrolv1.PriorityLevelConfiguration) {
		name := either(old, obj).Name
		loop.Add(levelPrefix + name)
		if old == nil || obj == nil {
			r.addReferring(loop, name)
		}
	})
	loop.Started = func(context.Context) {
		for name := range r.wantLevel {
			loop.Add(levelPrefix + name)
		}
		for name := range r.want {
			loop.Add(schemaPrefix + name)
		}
	}
	return loop, nil
}

func (r *reconciler) collect() {
	for _, l := range bootstrap.MandatoryPriorityLevelConfigurations {
		r.wantLevel[l.Name], r.mandatory[levelPrefix+l.Name] = l, true
	}
	for _, l := range bootstrap.SuggestedPriorityLevelConfigurations {
		r.wantLevel[l.Name] = l
	}
	for _, s := range bootstrap.MandatoryFlowSchemas {
		r.want[s.Name], r.mandatory[schemaPrefix+s.Name] = s, true
	}
	for _, s := range bootstrap.SuggestedFlowSchemas {
		r.want[s.Name] = s
	}
}

func either[T any](old, obj *T) *T {
	if obj == nil {
		return old
	}
	return obj
}

func (r *reconciler) addReferring(loop *controller.Loop, level string) {
	all, err := r.schemas.List(labels.Everything())
	if err != nil {
		return // a lister on an index fails for wrong types only
	}
	for _, s := range all {
		if s.Spec.PriorityLevelConfiguration.Name == level {
			loop.Add(schemaPrefix + s.Name)
		}
	}
}

// Reconcile makes or corrects one object.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := cut(key, levelPrefix); ok {
		return 0, r.level(ctx, name)
	}
	name, _ := cut(key, schemaPrefix)
	return 0, r.schema(ctx, name)
}

func cut(key, prefix string) (string, bool) {
	if len(key) < len(prefix) || key[:len(prefix)] != prefix {
		return key, false
	}
	return key[len(prefix):], true
}

func (r *reconciler) level(ctx context.Context, name string) error {
	want := r.wantLevel[name]
	if want == nil {
		return nil
	}
	mandatory := r.mandatory[levelPrefix+name]
	client := r.client.FlowcontrolV1().PriorityLevelConfigurations()
	have, err := r.levels.Get(name)
	if apierrors.IsNotFound(err) {
		made := want.DeepCopy()
		follow(&made.ObjectMeta, true)
		_, err = client.Create(ctx, made, metav1.CreateOptions{})
		return ignoreExists(err)
	} else if err != nil {
		return err
	}
	update := mandatory || follows(&have.ObjectMeta)
	fixed := have.DeepCopy()
	follow(&fixed.ObjectMeta, update)
	if update {
		fixed.Spec = *want.Spec.DeepCopy()
		if mandatory && have.Spec.Exempt != nil {
			fixed.Spec.Exempt = have.Spec.Exempt // its shares are the administrator's
		}
	}
	if equality.Semantic.DeepEqual(fixed, have) {
		return nil
	}
	_, err = client.Update(ctx, fixed, metav1.UpdateOptions{})
	return err
}

func (r *reconciler) schema(ctx context.Context, name string) error {
	want := r.want[name]
	have, err := r.schemas.Get(name)
	client := r.client.FlowcontrolV1().FlowSchemas()
	switch {
	case apierrors.IsNotFound(err) && want == nil:
		return nil
	case apierrors.IsNotFound(err):
		made := want.DeepCopy()
		follow(&made.ObjectMeta, true)
		_, err = client.Create(ctx, made, metav1.CreateOptions{})
		return ignoreExists(err)
	case err != nil:
		return err
	}
	if want != nil {
		update := r.mandatory[schemaPrefix+name] || follows(&have.ObjectMeta)
		fixed := have.DeepCopy()
		follow(&fixed.ObjectMeta, update)
		if update {
			fixed.Spec = *want.Spec.DeepCopy()
		}
		if !equality.Semantic.DeepEqual(fixed, have) {
			_, err = client.Update(ctx, fixed, metav1.UpdateOptions{})
			return err // its event brings the status
		}
	}
	_, err = r.levels.Get(have.Spec.PriorityLevelConfiguration.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if told := withDangling(have, err != nil, time.Now()); told != nil {
		_, err = client.UpdateStatus(ctx, told, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return nil
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil // its event comes
	}
	return err
}

// follows tells whether an object's spec is to be the library's: as its
// annotation says, else while nobody has changed it.
func follows(m *metav1.ObjectMeta) bool {
	if value, err := strconv.ParseBool(m.Annotations[flowcontrolv1.AutoUpdateAnnotationKey]); err == nil {
		return value
	}
	return m.Generation == 1
}

func follow(m *metav1.ObjectMeta, yes bool) {
	metav1.SetMetaDataAnnotation(m, flowcontrolv1.AutoUpdateAnnotationKey, strconv.FormatBool(yes))
}

// withDangling returns s with the condition Dangling, nil if it has it already.
func withDangling(s *flowcontrolv1.FlowSchema, dangling bool, now time.Time) *flowcontrolv1.FlowSchema {
	name := s.Spec.PriorityLevelConfiguration.Name
	want := flowcontrolv1.FlowSchemaCondition{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, LastTransitionTime: metav1.NewTime(now), Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", name),
	}
	if dangling {
		want.Status, want.Reason = flowcontrolv1.ConditionTrue, "NotFound"
		want.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", name)
	}
	for i, c := range s.Status.Conditions {
		if c.Type != want.Type {
			continue
		}
		if c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message {
			return nil
		}
		s = s.DeepCopy()
		s.Status.Conditions[i] = want
		return s
	}
	s = s.DeepCopy()
	s.Status.Conditions = append(s.Status.Conditions, want)
	return s
}
