// Package flowcontrol keeps the flow control objects that every cluster has. That
// a FlowSchema's priority level exists, the API server's own filter tells.
package flowcontrol

import (
	"context"
	"strconv"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/kubernetes"
	flowcontrollisters "k8s.io/client-go/listers/flowcontrol/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
)

const (
	levelPrefix  = "level/"
	schemaPrefix = "schema/"
)

type reconciler struct {
	client    kubernetes.Interface
	schemas   flowcontrollisters.FlowSchemaLister
	levels    flowcontrollisters.PriorityLevelConfigurationLister
	wantLevel map[string]*flowcontrolv1.PriorityLevelConfiguration
	want      map[string]*flowcontrolv1.FlowSchema
	mandatory map[string]bool // by key
}

// New builds the controller; its keys are "level/" and "schema/" with a name.
func New(env controller.Env) (*controller.Loop, error) {
	flow := env.Informers.Flowcontrol().V1()
	r := &reconciler{
		client: env.Client, schemas: flow.FlowSchemas().Lister(), levels: flow.PriorityLevelConfigurations().Lister(),
		wantLevel: map[string]*flowcontrolv1.PriorityLevelConfiguration{}, want: map[string]*flowcontrolv1.FlowSchema{},
		mandatory: map[string]bool{},
	}
	r.collect()
	loop := controller.New("flow-control", 2, env.Log)
	loop.Reconciler = r
	controller.Watch(loop, flow.FlowSchemas().Informer(), func(old, obj *flowcontrolv1.FlowSchema) {
		loop.Add(schemaPrefix + either(old, obj).Name)
	})
	controller.Watch(loop, flow.PriorityLevelConfigurations().Informer(),
		func(old, obj *flowcontrolv1.PriorityLevelConfiguration) {
			loop.Add(levelPrefix + either(old, obj).Name)
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

// Reconcile makes or corrects one object.
func (r *reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	if name, ok := strings.CutPrefix(key, levelPrefix); ok {
		return 0, r.level(ctx, name)
	}
	return 0, r.schema(ctx, strings.TrimPrefix(key, schemaPrefix))
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
	if want == nil {
		return nil
	}
	client := r.client.FlowcontrolV1().FlowSchemas()
	have, err := r.schemas.Get(name)
	if apierrors.IsNotFound(err) {
		made := want.DeepCopy()
		follow(&made.ObjectMeta, true)
		_, err = client.Create(ctx, made, metav1.CreateOptions{})
		return ignoreExists(err)
	} else if err != nil {
		return err
	}
	update := r.mandatory[schemaPrefix+name] || follows(&have.ObjectMeta)
	fixed := have.DeepCopy()
	follow(&fixed.ObjectMeta, update)
	if update {
		fixed.Spec = *want.Spec.DeepCopy()
	}
	if equality.Semantic.DeepEqual(fixed, have) {
		return nil
	}
	_, err = client.Update(ctx, fixed, metav1.UpdateOptions{})
	return err
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
