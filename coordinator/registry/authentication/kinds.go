// Package authentication declares the API group authentication.k8s.io/v1: who a
// token, or the asking user, is. TokenRequest is a subresource of ServiceAccount.
package authentication

import (
	"context"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind {
	return []kind.Kind{
		kind.Of[authenticationv1.TokenReview]{
			Names: kind.Names{
				GroupVersion: authenticationv1.SchemeGroupVersion, Resource: "tokenreviews",
				Singular: "tokenreview", ClusterScoped: true,
			},
			Rest: func(env *kind.Env, _ kind.Stores) rest.Storage { return &tokenReview{tokens: env.AuthenticateToken} },
		}.Kind(),
		kind.Of[authenticationv1.SelfSubjectReview]{
			Names: kind.Names{
				GroupVersion: authenticationv1.SchemeGroupVersion, Resource: "selfsubjectreviews",
				Singular: "selfsubjectreview", ClusterScoped: true,
			},
			Rest: func(*kind.Env, kind.Stores) rest.Storage { return selfSubjectReview{} },
		}.Kind(),
	}
}

type tokenReview struct{ tokens authenticator.Token }

func (*tokenReview) New() runtime.Object     { return &authenticationv1.TokenReview{} }
func (*tokenReview) Destroy()                {}
func (*tokenReview) NamespaceScoped() bool   { return false }
func (*tokenReview) GetSingularName() string { return "tokenreview" }

// Create answers who the token's holder is. That the token is bad is an answer
// too, in status.error.
func (t *tokenReview) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	review, ok := obj.(*authenticationv1.TokenReview)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenReview: %#v", obj))
	}
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	if t.tokens == nil {
		return review, nil
	}
	wanted := authenticator.Audiences(review.Spec.Audiences)
	resp, ok, err := authenticate(ctx, t.tokens, review.Spec.Token, wanted)
	review.Status.Authenticated = ok
	if err != nil {
		review.Status.Error = err.Error()
	}
	if resp == nil || resp.User == nil {
		return review, nil
	}
	if len(wanted) > 0 && len(wanted.Intersect(resp.Audiences)) == 0 {
		return nil,
			apierrors.NewInternalError(fmt.Errorf("error validating audience. want=%q got=%q", wanted, resp.Audiences))
	}
	review.Status.User = userInfo(resp.User)
	review.Status.Audiences = resp.Audiences
	return review, nil
}

// authenticate asks as a request with nothing but the token would.
func authenticate(ctx context.Context, tokens authenticator.Token, token string,
	audiences authenticator.Audiences) (*authenticator.Response, bool, error) {
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	probe := (&http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}).WithContext(ctx)
	return group.NewAuthenticatedGroupAdder(bearertoken.New(tokens)).AuthenticateRequest(probe)
}

type selfSubjectReview struct{}

func (selfSubjectReview) New() runtime.Object     { return &authenticationv1.SelfSubjectReview{} }
func (selfSubjectReview) Destroy()                {}
func (selfSubjectReview) NamespaceScoped() bool   { return false }
func (selfSubjectReview) GetSingularName() string { return "selfsubjectreview" }

// Create answers who is asking (kubectl auth whoami).
func (selfSubjectReview) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	u, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return &authenticationv1.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now())},
		Status:     authenticationv1.SelfSubjectReviewStatus{UserInfo: userInfo(u)},
	}, nil
}

func userInfo(u user.Info) authenticationv1.UserInfo {
	out := authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for k, v := range u.GetExtra() {
		if out.Extra == nil {
			out.Extra = map[string]authenticationv1.ExtraValue{}
		}
		out.Extra[k] = v
	}
	return out
}
