package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storageerr "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func namespace() kind.Kind {
	return kind.Of[corev1.Namespace]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "namespaces", Singular: "namespace", ShortNames: []string{"ns"},
			ClusterScoped: true, NameRule: apivalidation.NameIsDNSLabel, List: &corev1.NamespaceList{},
		},
		Default: func(n *corev1.Namespace) {
			nameLabel(n)
			if n.Status.Phase == "" {
				n.Status.Phase = corev1.NamespaceActive
			}
		},
		Create: func(_ context.Context, n *corev1.Namespace) {
			nameLabel(n) // a generated name is known by now
			n.Status = corev1.NamespaceStatus{Phase: corev1.NamespaceActive}
			if !slices.Contains(n.Spec.Finalizers, corev1.FinalizerKubernetes) {
				n.Spec.Finalizers = append(n.Spec.Finalizers, corev1.FinalizerKubernetes)
			}
		},
		Update: func(_ context.Context, n, old *corev1.Namespace) {
			n.Spec.Finalizers = old.Spec.Finalizers
			nameLabel(n)
		},
		Validate: func(_ context.Context, n *corev1.Namespace) field.ErrorList { return validateFinalizers(n) },
		ValidateUpdate: func(_ context.Context, n, _ *corev1.Namespace) field.ErrorList {
			return validateFinalizers(n)
		},
		Status: &kind.StatusOf[corev1.Namespace]{
			Copy: func(to, from *corev1.Namespace) { to.Status = from.Status },
			Validate: func(_ context.Context, n, _ *corev1.Namespace) field.ErrorList {
				return validatePhase(n)
			},
		},
		Fields: func(n *corev1.Namespace) fields.Set {
			return fields.Set{"status.phase": string(n.Status.Phase)}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(), kind.Column("Status", "string", "The status of the namespace"), kind.AgeColumn(),
		},
		Row: func(n *corev1.Namespace) []any {
			return []any{n.Name, string(n.Status.Phase), kind.Age(n.CreationTimestamp)}
		},
		ReturnDeleted: true,
		Store: func(_ *kind.Env, store *genericregistry.Store) {
			store.ShouldDeleteDuringUpdate = func(ctx context.Context, key string, obj, existing runtime.Object) bool {
				n, ok := obj.(*corev1.Namespace)
				return ok && len(n.Spec.Finalizers) == 0 &&
					genericregistry.ShouldDeleteDuringUpdate(ctx, key, obj, existing)
			}
		},
		Main: func(_ *kind.Env, _ kind.Stores, main *kind.REST) rest.Storage {
			return &namespaceREST{namespaceVerbs: main, store: main.Store}
		},
		Subresources: func(_ *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"finalize": newFinalize(stores["/namespaces"])}
		},
	}.Kind()
}

func nameLabel(n *corev1.Namespace) {
	if n.Name == "" {
		return
	}
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	n.Labels[corev1.LabelMetadataName] = n.Name
}

func validateFinalizers(n *corev1.Namespace) (errs field.ErrorList) {
	for _, f := range n.Spec.Finalizers {
		errs = append(errs, validateFinalizer(string(f), field.NewPath("spec", "finalizers"))...)
	}
	return errs
}

func validateFinalizer(name string, p *field.Path) field.ErrorList {
	errs := apivalidation.ValidateFinalizerName(name, p)
	standard := []string{string(corev1.FinalizerKubernetes), metav1.FinalizerOrphanDependents,
		metav1.FinalizerDeleteDependents}
	if !strings.Contains(name, "/") && !slices.Contains(standard, name) {
		errs = append(errs, field.Invalid(p, name, "name is neither a standard finalizer name nor is it fully qualified"))
	}
	return errs
}

func validatePhase(n *corev1.Namespace) field.ErrorList {
	at := field.NewPath("status", "Phase")
	switch {
	case n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceActive:
		return field.ErrorList{field.Invalid(at, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")}
	case !n.DeletionTimestamp.IsZero() && n.Status.Phase != corev1.NamespaceTerminating:
		return field.ErrorList{field.Invalid(at, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")}
	}
	return nil
}

// namespaceVerbs are what namespaces share with other kinds: all but deletion,
// that of collections included, which would not wait for the finalizers.
type namespaceVerbs interface {
	rest.Storage
	rest.Getter
	rest.Lister
	rest.Creater
	rest.Updater
	rest.Watcher
	rest.Scoper
	rest.SingularNameProvider
	rest.ShortNamesProvider
	rest.StorageVersionProvider
	rest.ResetFieldsStrategy
}

// namespaceREST deletes in two steps: the first request marks the namespace
// Terminating, the removal of the last of spec.finalizers ends it.
type namespaceREST struct {
	namespaceVerbs
	store *genericregistry.Store
}

var _ rest.GracefulDeleter = &namespaceREST{}

func (r *namespaceREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, err := r.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	n := obj.(*corev1.Namespace)
	if options == nil {
		options = metav1.NewDeleteOptions(0)
	}
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	if options.Preconditions.UID == nil {
		options.Preconditions.UID = &n.UID
	}
	if err := checkPreconditions(n, options.Preconditions); err != nil {
		return nil, false, err
	}
	if n.DeletionTimestamp.IsZero() {
		out, err := r.terminate(ctx, name, validate, options)
		return out, false, err
	}
	if len(n.Spec.Finalizers) > 0 {
		return n, false, nil
	}
	return r.store.Delete(ctx, name, validate, options)
}

func checkPreconditions(n *corev1.Namespace, p *metav1.Preconditions) error {
	if *p.UID != n.UID {
		return apierrors.NewConflict(corev1.Resource("namespaces"), n.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, n.UID))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != n.ResourceVersion {
		return apierrors.NewConflict(corev1.Resource("namespaces"), n.Name,
			fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v",
				*p.ResourceVersion, n.ResourceVersion))
	}
	return nil
}

func (r *namespaceREST) terminate(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := r.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}
	out := &corev1.Namespace{}
	preconditions := &storage.Preconditions{UID: options.Preconditions.UID,
		ResourceVersion: options.Preconditions.ResourceVersion}
	err = r.store.Storage.GuaranteedUpdate(ctx, key, out, false, preconditions,
		storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
			n := existing.(*corev1.Namespace)
			if err := validate(ctx, n); err != nil {
				return nil, err
			}
			if n.DeletionTimestamp.IsZero() {
				now := metav1.Now()
				n.DeletionTimestamp = &now
			}
			n.Status.Phase = corev1.NamespaceTerminating
			propagate(n, options)
			return n, nil
		}), dryrun.IsDryRun(options.DryRun), nil)
	if err == nil {
		return out, nil
	}
	err = storageerr.InterpretUpdateError(storageerr.InterpretGetError(err, corev1.Resource("namespaces"), name),
		corev1.Resource("namespaces"), name)
	if _, ok := err.(apierrors.APIStatus); !ok {
		err = apierrors.NewInternalError(err)
	}
	return nil, err
}

// propagate sets the garbage collector's finalizers as the options ask.
func propagate(n *corev1.Namespace, options *metav1.DeleteOptions) {
	want := func(name string, policy metav1.DeletionPropagation, orphan bool) {
		has := slices.Contains(n.Finalizers, name)
		should := has
		if options.OrphanDependents != nil {
			should = *options.OrphanDependents == orphan
		} else if options.PropagationPolicy != nil {
			should = *options.PropagationPolicy == policy
		}
		switch {
		case should && !has:
			n.Finalizers = append(n.Finalizers, name)
		case !should && has:
			n.Finalizers = slices.DeleteFunc(n.Finalizers, func(f string) bool { return f == name })
		}
	}
	want(metav1.FinalizerOrphanDependents, metav1.DeletePropagationOrphan, true)
	want(metav1.FinalizerDeleteDependents, metav1.DeletePropagationForeground, false)
}

// finalizeREST is for PUT alone: a part that could be read could be patched.
type finalizeREST struct{ putter }

type putter interface {
	rest.Storage
	rest.Updater
	rest.ResetFieldsFilterStrategy
}

// newFinalize serves /finalize: the namespace controller writes what is left of
// spec.finalizers there.
func newFinalize(main *genericregistry.Store) rest.Storage {
	return finalizeREST{newPart(main, part[corev1.Namespace]{
		keep: func(n, old *corev1.Namespace) { n.Status = old.Status },
		validate: func(n, old *corev1.Namespace) field.ErrorList {
			errs := apivalidation.ValidateObjectMetaUpdate(&n.ObjectMeta, &old.ObjectMeta, field.NewPath("metadata"))
			errs = append(errs, kind.ValidateFinalizers(n)...)
			for i, f := range n.Spec.Finalizers {
				errs = append(errs, validateFinalizer(string(f), field.NewPath("spec", "finalizers").Index(i))...)
			}
			return errs
		},
	})}
}
