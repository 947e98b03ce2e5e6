package admissionregistration

import (
	"context"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// A policy shows its parameters to those whom it refuses something. So only who
// may read these objects may have a policy or a binding read them (KEP-3488).

// guardPolicy asks for "get" on all objects of the policy's parameter kind.
func guardPolicy(paramKind func(runtime.Object) *admissionregistrationv1.ParamKind) func(*kind.Env,
	*genericregistry.Store) {
	return func(env *kind.Env, store *genericregistry.Store) {
		kind.Guard(store, func(ctx context.Context, obj, old runtime.Object) error {
			k := paramKind(obj)
			if k == nil || old != nil && equality.Semantic.DeepEqual(k, paramKind(old)) {
				return nil
			}
			a := readOf(env, k)
			a.Verb, a.Name, a.Namespace = "get", "*", "*"
			if env.May(ctx, a) {
				return nil
			}
			return refused(ctx, env, obj, field.NewPath("spec", "paramKind"), a.Verb,
				fmt.Sprintf("on all objects of the referenced paramKind (kind=%s, apiVersion=%s)", k.Kind, k.APIVersion))
		})
	}
}

// reference is what a binding says of its policy and parameters; policyKind
// finds the parameter kind of the policy of that name.
type reference struct {
	policy     string
	params     *admissionregistrationv1.ParamRef
	policyKind func(ctx context.Context, name string) (*admissionregistrationv1.ParamKind, error)
}

// guardBinding asks for "get" on the parameter that the binding names, or for
// "list" where it selects them. While the policy is not there, that is asked for
// every kind.
func guardBinding(of func(*kind.Env, runtime.Object) reference) func(*kind.Env, *genericregistry.Store) {
	return func(env *kind.Env, store *genericregistry.Store) {
		kind.Guard(store, func(ctx context.Context, obj, old runtime.Object) error {
			b := of(env, obj)
			if b.params == nil {
				return nil
			}
			if old != nil {
				if before := of(env, old); before.policy == b.policy &&
					equality.Semantic.DeepEqual(before.params, b.params) {
					return nil
				}
			}
			k, err := b.policyKind(ctx, b.policy)
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			a := readOf(env, k)
			a.Verb, a.Name, a.Namespace = "get", b.params.Name, b.params.Namespace
			if a.Name == "" {
				a.Verb = "list"
			}
			if env.May(ctx, a) {
				return nil
			}
			what := "on the object referenced by paramRef"
			if a.Resource == "*" {
				what = fmt.Sprintf(
					"for all resources, and policy %q does not tell yet of which kind its parameters are", b.policy)
			}
			return refused(ctx, env, obj, field.NewPath("spec", "paramRef"), a.Verb, what)
		})
	}
}

// readOf is the access to a parameter kind's resource, to all resources as far
// as the kind is not known.
func readOf(env *kind.Env, k *admissionregistrationv1.ParamKind) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{ResourceRequest: true, APIGroup: "*", APIVersion: "*", Resource: "*"}
	if k == nil {
		return a
	}
	gv, err := schema.ParseGroupVersion(k.APIVersion)
	if err != nil {
		return a
	}
	a.APIGroup, a.APIVersion = gv.Group, gv.Version
	served, err := env.Client.Discovery().ServerResourcesForGroupVersion(k.APIVersion)
	if err != nil {
		return a
	}
	for _, r := range served.APIResources {
		if r.Kind == k.Kind && !strings.Contains(r.Name, "/") {
			a.Resource = r.Name
		}
	}
	return a
}

// refused names the permission that the user lacks.
func refused(ctx context.Context, env *kind.Env, obj runtime.Object, at *field.Path, verb, on string) error {
	name := ""
	if u, ok := request.UserFrom(ctx); ok {
		name = u.GetName()
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	kinds, _, err := env.Scheme.ObjectKinds(obj)
	if err != nil {
		return err
	}
	return apierrors.NewInvalid(kinds[0].GroupKind(), m.GetName(),
		field.ErrorList{field.Forbidden(at, fmt.Sprintf("user %q must have %q permission %s", name, verb, on))})
}

func validatingReference(env *kind.Env, obj runtime.Object) reference {
	b := obj.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
	return reference{b.Spec.PolicyName, b.Spec.ParamRef,
		func(ctx context.Context, name string) (*admissionregistrationv1.ParamKind, error) {
			p, err := env.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx,
				name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return p.Spec.ParamKind, nil
		}}
}

func mutatingReference(env *kind.Env, obj runtime.Object) reference {
	b := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding)
	return reference{b.Spec.PolicyName, b.Spec.ParamRef,
		func(ctx context.Context, name string) (*admissionregistrationv1.ParamKind, error) {
			p, err := env.Client.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			return p.Spec.ParamKind, nil
		}}
}
