// Package authorization declares the API group authorization.k8s.io/v1: may
// someone do something (kubectl auth can-i).
package authorization

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind {
	names := func(resource, singular string, clusterScoped bool) kind.Names {
		return kind.Names{GroupVersion: authorizationv1.SchemeGroupVersion, Resource: resource, Singular: singular,
			ClusterScoped: clusterScoped}
	}
	return []kind.Kind{
		kind.Of[authorizationv1.SubjectAccessReview]{
			Names: names("subjectaccessreviews", "subjectaccessreview", true),
			Rest: func(env *kind.Env, _ kind.Stores) rest.Storage {
				return newReview("subjectaccessreview", true, env,
					func() runtime.Object { return &authorizationv1.SubjectAccessReview{} })
			},
		}.Kind(),
		kind.Of[authorizationv1.SelfSubjectAccessReview]{
			Names: names("selfsubjectaccessreviews", "selfsubjectaccessreview", true),
			Rest: func(env *kind.Env, _ kind.Stores) rest.Storage {
				return newReview("selfsubjectaccessreview", true, env,
					func() runtime.Object { return &authorizationv1.SelfSubjectAccessReview{} })
			},
		}.Kind(),
		kind.Of[authorizationv1.LocalSubjectAccessReview]{
			Names: names("localsubjectaccessreviews", "localsubjectaccessreview", false),
			Rest: func(env *kind.Env, _ kind.Stores) rest.Storage {
				return newReview("localsubjectaccessreview", false, env,
					func() runtime.Object { return &authorizationv1.LocalSubjectAccessReview{} })
			},
		}.Kind(),
		kind.Of[authorizationv1.SelfSubjectRulesReview]{
			Names: names("selfsubjectrulesreviews", "selfsubjectrulesreview", true),
			Rest: func(env *kind.Env, _ kind.Stores) rest.Storage {
				return newReview("selfsubjectrulesreview", true, env,
					func() runtime.Object { return &authorizationv1.SelfSubjectRulesReview{} })
			},
		}.Kind(),
	}
}

// review answers the four kinds.
type review struct {
	singular      string
	clusterScoped bool
	env           *kind.Env
	newObject     func() runtime.Object
}

func newReview(singular string, clusterScoped bool, env *kind.Env, newObject func() runtime.Object) *review {
	return &review{singular: singular, clusterScoped: clusterScoped, env: env, newObject: newObject}
}

func (r *review) New() runtime.Object     { return r.newObject() }
func (r *review) Destroy()                {}
func (r *review) NamespaceScoped() bool   { return !r.clusterScoped }
func (r *review) GetSingularName() string { return r.singular }

// Create checks the question, lets admission see it, and answers in its status.
func (r *review) Create(ctx context.Context, obj runtime.Object, admit rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	if err := check(ctx, obj); err != nil {
		return nil, err
	}
	if admit != nil {
		if err := admit(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	switch o := obj.(type) {
	case *authorizationv1.SubjectAccessReview:
		o.Status = r.decide(ctx, attributesOf(&o.Spec))
	case *authorizationv1.LocalSubjectAccessReview:
		o.Status = r.decide(ctx, attributesOf(&o.Spec))
	case *authorizationv1.SelfSubjectAccessReview:
		u, ok := request.UserFrom(ctx)
		if !ok {
			return nil, apierrors.NewBadRequest("no user present on request")
		}
		o.Status = r.decide(ctx, attributes(u, o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes))
	case *authorizationv1.SelfSubjectRulesReview:
		u, ok := request.UserFrom(ctx)
		if !ok {
			return nil, apierrors.NewBadRequest("no user present on request")
		}
		if r.env.Rules == nil {
			return nil, apierrors.NewInternalError(errNoRules)
		}
		rules, err := r.env.Rules.RulesFor(ctx, u, o.Spec.Namespace)
		return &authorizationv1.SelfSubjectRulesReview{Status: listRules(rules, err)}, nil
	}
	return obj, nil
}

func (r *review) decide(ctx context.Context,
	attrs authorizer.AttributesRecord) authorizationv1.SubjectAccessReviewStatus {
	decision, reason, err := r.env.Authorizer.Authorize(ctx, attrs)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed:         decision == authorizer.DecisionAllow,
		Denied:          decision == authorizer.DecisionDeny,
		Reason:          reason,
		EvaluationError: evaluationError(err, &attrs),
	}
}

// check validates a review and, for the local kind, its namespace.
func check(ctx context.Context, obj runtime.Object) error {
	var errs field.ErrorList
	switch o := obj.(type) {
	case *authorizationv1.SubjectAccessReview:
		errs = append(validateSpec(&o.Spec), emptyMeta(o.ObjectMeta)...)
	case *authorizationv1.SelfSubjectAccessReview:
		errs = append(validateAttributes(o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes),
			emptyMeta(o.ObjectMeta)...)
	case *authorizationv1.LocalSubjectAccessReview:
		errs = validateLocal(o)
	case *authorizationv1.SelfSubjectRulesReview:
		if o.Spec.Namespace == "" {
			return apierrors.NewBadRequest("no namespace on request")
		}
	}
	if len(errs) > 0 {
		// Of the kind's name, upstream tells nothing.
		return apierrors.NewInvalid(authorizationv1.SchemeGroupVersion.WithKind("").GroupKind(), "", errs)
	}
	if o, ok := obj.(*authorizationv1.LocalSubjectAccessReview); ok && o.Namespace != request.NamespaceValue(ctx) {
		return apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " +
			request.NamespaceValue(ctx))
	}
	return nil
}

func listRules(rules []rbacv1.PolicyRule, err error) authorizationv1.SubjectRulesReviewStatus {
	status := authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    []authorizationv1.ResourceRule{},
		NonResourceRules: []authorizationv1.NonResourceRule{},
	}
	for _, r := range rules {
		if len(r.Resources) > 0 {
			status.ResourceRules = append(status.ResourceRules, authorizationv1.ResourceRule{
				Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames,
			})
		}
		if len(r.NonResourceURLs) > 0 {
			status.NonResourceRules = append(status.NonResourceRules, authorizationv1.NonResourceRule{
				Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs,
			})
		}
	}
	if err != nil {
		status.EvaluationError = err.Error()
		status.Incomplete = true
	}
	return status
}
