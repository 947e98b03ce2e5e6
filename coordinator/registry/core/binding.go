package core

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// binding is the old way to bind: POST /namespaces/NS/bindings.
func binding() kind.Kind {
	return kind.Of[corev1.Binding]{
		Names: kind.Names{GroupVersion: groupVersion, Resource: "bindings", Singular: "binding"},
		Rest: func(_ *kind.Env, stores kind.Stores) rest.Storage {
			return &legacyBinding{bindingREST{store: stores["/pods"]}}
		},
	}.Kind()
}

// bindingREST writes spec.nodeName; nothing else may.
type bindingREST struct{ store *genericregistry.Store }

var (
	_ rest.NamedCreater                   = &bindingREST{}
	_ rest.SubresourceObjectMetaPreserver = &bindingREST{}
)

func (r *bindingREST) New() runtime.Object   { return &corev1.Binding{} }
func (r *bindingREST) Destroy()              {}
func (r *bindingREST) NamespaceScoped() bool { return true }

func (r *bindingREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

func (r *bindingREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	b, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %#v", obj))
	}
	if name != b.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validateBinding(b); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if validate != nil {
		if err := validate(ctx, b.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if err := r.assign(ctx, b, dryrun.IsDryRun(options.DryRun)); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

func validateBinding(b *corev1.Binding) (errs field.ErrorList) {
	if b.Target.Kind != "" && b.Target.Kind != "Node" {
		errs = append(errs, field.NotSupported(field.NewPath("target", "kind"), b.Target.Kind, []string{"Node", "<empty>"}))
	}
	if b.Target.Name == "" {
		errs = append(errs, field.Required(field.NewPath("target", "name"), ""))
	}
	return errs
}

func (r *bindingREST) assign(ctx context.Context, b *corev1.Binding, dryRun bool) error {
	key, err := r.store.KeyFunc(ctx, b.Name)
	if err != nil {
		return err
	}
	var preconditions *storage.Preconditions
	if b.UID != "" || b.ResourceVersion != "" {
		preconditions = &storage.Preconditions{}
		if b.UID != "" {
			preconditions.UID = &b.UID
		}
		if b.ResourceVersion != "" {
			preconditions.ResourceVersion = &b.ResourceVersion
		}
	}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, &corev1.Pod{}, false, preconditions,
		storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("unexpected object: %#v", obj)
			}
			return p, bind(p, b)
		}), dryRun, nil)
	if err == nil {
		return nil
	}
	pods := corev1.Resource("pods")
	err = storageerr.InterpretUpdateError(storageerr.InterpretGetError(err, pods, b.Name), pods, b.Name)
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		err = apierrors.NewConflict(corev1.Resource("pods/binding"), b.Name, err)
	}
	return err
}

// bind puts an unassigned pod on the binding's node.
func bind(p *corev1.Pod, b *corev1.Binding) error {
	switch {
	case p.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", p.Name)
	case p.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", p.Name, p.Spec.NodeName)
	case len(p.Spec.SchedulingGates) > 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", p.Name)
	}
	p.Spec.NodeName = b.Target.Name
	p.Status.NominatedNodeName = ""
	p.Annotations = merged(p.Annotations, b.Annotations)
	p.Labels = merged(p.Labels, b.Labels)
	setCondition(&p.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	return nil
}

func merged(to, from map[string]string) map[string]string {
	if len(from) == 0 {
		return to
	}
	if to == nil {
		to = make(map[string]string, len(from))
	}
	maps.Copy(to, from)
	return to
}

type legacyBinding struct{ bindingREST }

var _ rest.Creater = &legacyBinding{}

func (r *legacyBinding) GetSingularName() string { return "binding" }

func (r *legacyBinding) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	options *metav1.CreateOptions) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	return r.bindingREST.Create(ctx, m.GetName(), obj, validate, options)
}
