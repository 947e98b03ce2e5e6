package networking

import (
	"context"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// maxControllerLength is of IngressClass.spec.controller, in bytes.
const maxControllerLength = 250

func ingressClass() kind.Kind {
	type T = networkingv1.IngressClass
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "ingressclasses", Singular: "ingressclass", ClusterScoped: true,
			List: &networkingv1.IngressClassList{},
		},
		Default: func(c *T) {
			if p := c.Spec.Parameters; p != nil && p.Scope == nil {
				scope := networkingv1.IngressClassParametersReferenceScopeCluster
				p.Scope = &scope
			}
		},
		Validate: func(_ context.Context, c *T) field.ErrorList { return validateClass(&c.Spec) },
		ValidateUpdate: func(_ context.Context, c, old *T) field.ErrorList {
			errs := apivalidation.ValidateImmutableField(c.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))
			return append(errs, validateClass(&c.Spec)...)
		},
		Spec: func(c *T) any { return &c.Spec },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Controller", "string", "Controller that is responsible for handling this class"),
			kind.Column("Parameters", "string", "A reference to a resource with additional parameters"),
			kind.AgeColumn(),
		},
		Row: func(c *T) []any {
			name := c.Name
			if c.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
				name += " (default)"
			}
			return []any{name, c.Spec.Controller, parametersCell(c.Spec.Parameters), kind.Age(c.CreationTimestamp)}
		},
	}.Kind()
}

func parametersCell(r *networkingv1.IngressClassParametersReference) string {
	if r == nil {
		return "<none>"
	}
	cell := r.Kind
	if r.APIGroup != nil {
		cell += "." + *r.APIGroup
	}
	return cell + "/" + r.Name
}

func validateClass(spec *networkingv1.IngressClassSpec) (errs field.ErrorList) {
	p := field.NewPath("spec")
	if len(spec.Controller) > maxControllerLength {
		errs = append(errs, field.TooLong(p.Child("controller"), "", maxControllerLength))
	}
	errs = append(errs, validation.IsDomainPrefixedPath(p.Child("controller"), spec.Controller)...)
	if spec.Parameters == nil {
		return errs
	}
	return append(errs, validateParameters(spec.Parameters, p.Child("parameters"))...)
}

func validateParameters(r *networkingv1.IngressClassParametersReference, p *field.Path) (errs field.ErrorList) {
	if r.APIGroup != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("apiGroup"), *r.APIGroup, validation.IsDNS1123Subdomain(*r.APIGroup))...)
	}
	errs = append(errs, validateSegment(r.Kind, p.Child("kind"))...)
	errs = append(errs, validateSegment(r.Name, p.Child("name"))...)
	if r.Scope == nil {
		return append(errs, field.Required(p.Child("scope"), ""))
	}
	const cluster, namespace = networkingv1.IngressClassParametersReferenceScopeCluster,
		networkingv1.IngressClassParametersReferenceScopeNamespace
	switch {
	case *r.Scope != cluster && *r.Scope != namespace:
		return append(errs, field.NotSupported(p.Child("scope"), *r.Scope, []string{cluster, namespace}))
	case *r.Scope == cluster && r.Namespace != nil:
		return append(errs, field.Forbidden(p.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
	case *r.Scope == namespace && r.Namespace == nil:
		return append(errs, field.Required(p.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
	case *r.Scope == namespace:
		return append(errs,
			fieldrule.Invalid(p.Child("namespace"), *r.Namespace,
				apivalidation.ValidateNamespaceName(*r.Namespace, false))...)
	}
	return errs
}
