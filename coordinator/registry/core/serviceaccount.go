package core

import (
	"context"
	"fmt"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func serviceAccount() kind.Kind {
	return kind.Of[corev1.ServiceAccount]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "serviceaccounts", Singular: "serviceaccount",
			ShortNames: []string{"sa"}, List: &corev1.ServiceAccountList{},
		},
		Create:        func(_ context.Context, s *corev1.ServiceAccount) { keepSecretNames(s) },
		Update:        func(_ context.Context, s, _ *corev1.ServiceAccount) { keepSecretNames(s) },
		Warnings:      accountWarnings,
		ReturnDeleted: true,
		Columns:       []metav1.TableColumnDefinition{kind.NameColumn(), kind.AgeColumn()},
		Row:           func(s *corev1.ServiceAccount) []any { return []any{s.Name, kind.Age(s.CreationTimestamp)} },
		Subresources: func(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"token": &tokenREST{tokens: env.Tokens, stores: stores}}
		},
	}.Kind()
}

// keepSecretNames: a secret of an account is in its namespace, and has no more of a
// reference than a name.
func keepSecretNames(s *corev1.ServiceAccount) {
	for i := range s.Secrets {
		s.Secrets[i] = corev1.ObjectReference{Name: s.Secrets[i].Name}
	}
}

const enforceMountableSecrets = "kubernetes.io/enforce-mountable-secrets"

func accountWarnings(_ context.Context, s, old *corev1.ServiceAccount) []string {
	if old != nil {
		if _, was := old.Annotations[enforceMountableSecrets]; was {
			return nil
		}
	}
	if _, ok := s.Annotations[enforceMountableSecrets]; !ok {
		return nil
	}
	return []string{"metadata.annotations[" + enforceMountableSecrets + "]: deprecated in v1.32+; " +
		"prefer separate namespaces to isolate access to mounted secrets"}
}

// tokenREST serves TokenRequest (KEP-1205).
type tokenREST struct {
	tokens kind.TokenIssuer
	stores kind.Stores
}

var (
	_ rest.NamedCreater                   = &tokenREST{}
	_ rest.GroupVersionKindProvider       = &tokenREST{}
	_ rest.SubresourceObjectMetaPreserver = &tokenREST{}
)

var tokenRequestKind = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

func (r *tokenREST) New() runtime.Object { return &authenticationv1.TokenRequest{} }
func (r *tokenREST) Destroy()            {}

func (r *tokenREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return tokenRequestKind
}

func (r *tokenREST) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

func (r *tokenREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc,
	_ *metav1.CreateOptions) (runtime.Object, error) {
	req, ok := obj.(*authenticationv1.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest object: %T", obj))
	}
	if r.tokens == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts/token"), name)
	}
	if err := matchRequest(ctx, req, name); err != nil {
		return nil, err
	}
	stored, err := r.read(ctx, "/serviceaccounts", name, "")
	if err != nil {
		return nil, err
	}
	account := stored.(*corev1.ServiceAccount)
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = r.tokens.Audiences()
	}
	if err := completeRequest(req, account); err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, req.DeepCopy()); err != nil {
			return nil, err
		}
	}
	bound, err := r.boundObject(ctx, account, req.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	// A dry run gets a token too: it changes nothing that is stored.
	token, expires, err := r.tokens.Issue(account, req.Spec.Audiences, *req.Spec.ExpirationSeconds, bound)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	req.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
	return req, nil
}

// read takes an object from the watch cache, and from etcd only if the cache
// lacks it: each pod that starts asks for a token, and the object may be newer
// than the cache. That it may be gone already is seen when the token is used.
func (r *tokenREST) read(ctx context.Context, resource, name string, uid types.UID) (runtime.Object, error) {
	// What is not found is named after the request, which is for the account's token.
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1",
		Resource: strings.TrimPrefix(resource, "/"), Namespace: request.NamespaceValue(ctx), Name: name})
	obj, err := r.stores[resource].Get(ctx, name, &metav1.GetOptions{ResourceVersion: "0"})
	if m, ok := obj.(metav1.Object); err == nil && ok && (uid == "" || m.GetUID() == uid) {
		return obj, nil
	}
	return r.stores[resource].Get(ctx, name, &metav1.GetOptions{})
}

// matchRequest refuses a request that names another account than its address does.
func matchRequest(ctx context.Context, req *authenticationv1.TokenRequest, name string) error {
	at := field.NewPath("metadata")
	var err *field.Error
	if ns := request.NamespaceValue(ctx); req.Name != "" && req.Name != name {
		err = field.Invalid(at.Child("name"), req.Name, "must match the service account name if specified")
	} else if req.Namespace != "" && req.Namespace != ns {
		err = field.Invalid(at.Child("namespace"), req.Namespace, "must match the service account namespace if specified")
	} else {
		return nil
	}
	return apierrors.NewInvalid(tokenRequestKind.GroupKind(), name, field.ErrorList{err})
}

// completeRequest checks a request for the account and fills it.
func completeRequest(req *authenticationv1.TokenRequest, account *corev1.ServiceAccount) error {
	var errs field.ErrorList
	if req.UID != "" && req.UID != account.UID {
		return apierrors.NewConflict(
			schema.GroupResource{Group: tokenRequestKind.Group, Resource: tokenRequestKind.Kind}, account.Name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID,
				account.UID))
	}
	req.Name, req.Namespace, req.UID = account.Name, account.Namespace, account.UID
	req.CreationTimestamp = metav1.NewTime(time.Now())
	req.Status = authenticationv1.TokenRequestStatus{}
	if req.Spec.ExpirationSeconds == nil {
		hour := int64(3600)
		req.Spec.ExpirationSeconds = &hour
	}
	at := field.NewPath("spec", "expirationSeconds")
	if seconds := *req.Spec.ExpirationSeconds; seconds < 600 {
		errs = append(errs, field.Invalid(at, seconds, "may not specify a duration less than 10 minutes"))
	} else if seconds > 1<<32 {
		errs = append(errs, field.Invalid(at, seconds, "may not specify a duration larger than 2^32 seconds"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(tokenRequestKind.GroupKind(), "", errs)
	}
	return nil
}

// boundObject finds what the token shall die with: a pod of the account, a
// secret, a node; nil when nothing is asked for.
func (r *tokenREST) boundObject(ctx context.Context, account *corev1.ServiceAccount,
	ref *authenticationv1.BoundObjectReference) (runtime.Object, error) {
	if ref == nil {
		return nil, nil
	}
	gvk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	resource, ok := map[string]string{"Pod": "/pods", "Secret": "/secrets", "Node": "/nodes"}[gvk.Kind]
	if !ok || gvk.Group != "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if gvk.Kind == "Node" {
		ctx = request.WithNamespace(ctx, "")
	}
	obj, err := r.read(ctx, resource, ref.Name, ref.UID)
	if apierrors.IsNotFound(err) { // the handler would say that it is an account
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource[1:]}, ref.Name)
	}
	if err != nil {
		return nil, err
	}
	if p, ok := obj.(*corev1.Pod); ok && p.Spec.ServiceAccountName != account.Name {
		return nil,
			apierrors.NewBadRequest(
				fmt.Sprintf(
					"cannot bind token for serviceaccount %q to pod running with different serviceaccount name.",
					account.Name))
	}
	if m, ok := obj.(metav1.Object); ok && ref.UID != "" && m.GetUID() != ref.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, ref.Name,
			fmt.Errorf(
				"the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated",
				ref.UID))
	}
	return obj, nil
}
