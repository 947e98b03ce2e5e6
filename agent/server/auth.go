package server

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	authnv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// How long answers of the API server are kept, as the kubelet does it.
const (
	tokenTTL   = 2 * time.Minute
	allowedTTL = 5 * time.Minute
	deniedTTL  = 30 * time.Second
	maxAnswers = 1000
)

// Auth asks the API server who a caller is (TokenReview) and what they may
// (SubjectAccessReview), unless a client certificate tells the first.
type Auth struct {
	// Client is nil without an API: then certificates of system:masters are
	// all that counts.
	Client    kubernetes.Interface
	ClientCAs *x509.CertPool
	NodeName  string

	mu      sync.Mutex
	tokens  map[string]answer[*user]
	allowed map[string]answer[bool]
}

type answer[T any] struct {
	value T
	until time.Time
}

type user struct {
	name, uid string
	groups    []string
	extra     map[string][]string
}

func (a *Auth) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := a.who(r)
		if err != nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		for _, resource := range subresources(r.URL.Path) {
			ok, err := a.may(r.Context(), u, verb(r.Method), resource)
			if err != nil {
				http.Error(w, "Authorization error (user="+u.name+", verb="+verb(r.Method)+", resource=nodes, subresource="+resource+")", http.StatusInternalServerError)
				return
			}
			if ok {
				next.ServeHTTP(w, r)
				return
			}
		}
		http.Error(w, "Forbidden (user="+u.name+", verb="+verb(r.Method)+", resource=nodes, subresource(s)=["+
			strings.Join(subresources(r.URL.Path), " ")+"])", http.StatusForbidden)
	})
}

var errUnknown = errors.New("unknown caller")

func (a *Auth) who(r *http.Request) (*user, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && a.ClientCAs != nil {
		certs := r.TLS.PeerCertificates
		middle := x509.NewCertPool()
		for _, c := range certs[1:] {
			middle.AddCert(c)
		}
		_, err := certs[0].Verify(x509.VerifyOptions{Roots: a.ClientCAs, Intermediates: middle,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if err == nil {
			return &user{name: certs[0].Subject.CommonName, groups: append(certs[0].Subject.Organization, "system:authenticated")}, nil
		}
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" || a.Client == nil {
		return nil, errUnknown
	}
	return a.review(r.Context(), token)
}

func (a *Auth) review(ctx context.Context, token string) (*user, error) {
	a.mu.Lock()
	known, ok := a.tokens[token]
	a.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		if known.value == nil {
			return nil, errUnknown
		}
		return known.value, nil
	}
	got, err := a.Client.AuthenticationV1().TokenReviews().Create(ctx,
		&authnv1.TokenReview{Spec: authnv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	var u *user
	if got.Status.Authenticated {
		s := got.Status.User
		u = &user{name: s.Username, uid: s.UID, groups: s.Groups, extra: map[string][]string{}}
		for k, v := range s.Extra {
			u.extra[k] = v
		}
	}
	a.mu.Lock()
	if a.tokens == nil || len(a.tokens) > maxAnswers {
		a.tokens = map[string]answer[*user]{}
	}
	a.tokens[token] = answer[*user]{u, time.Now().Add(tokenTTL)}
	a.mu.Unlock()
	if u == nil {
		return nil, errUnknown
	}
	return u, nil
}

func (a *Auth) may(ctx context.Context, u *user, verb, subresource string) (bool, error) {
	if a.Client == nil {
		for _, g := range u.groups {
			if g == "system:masters" {
				return true, nil
			}
		}
		return false, nil
	}
	key := strings.Join(append([]string{u.name, u.uid, verb, subresource}, u.groups...), "\x00")
	a.mu.Lock()
	known, ok := a.allowed[key]
	a.mu.Unlock()
	if ok && time.Now().Before(known.until) {
		return known.value, nil
	}
	extra := map[string]authzv1.ExtraValue{}
	for k, v := range u.extra {
		extra[k] = v
	}
	got, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authzv1.SubjectAccessReview{
		Spec: authzv1.SubjectAccessReviewSpec{User: u.name, UID: u.uid, Groups: u.groups, Extra: extra,
			ResourceAttributes: &authzv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.NodeName}},
	}, metav1.CreateOptions{})
	if err != nil {
		return known.value && ok, err
	}
	ttl := deniedTTL
	if got.Status.Allowed {
		ttl = allowedTTL
	}
	a.mu.Lock()
	if a.allowed == nil || len(a.allowed) > maxAnswers {
		a.allowed = map[string]answer[bool]{}
	}
	a.allowed[key] = answer[bool]{got.Status.Allowed, time.Now().Add(ttl)}
	a.mu.Unlock()
	return got.Status.Allowed, nil
}

// subresources of nodes that a path needs: any one is enough (KEP-2862).
func subresources(path string) []string {
	under := func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") }
	switch {
	case under("/stats"):
		return []string{"stats"}
	case under("/metrics"):
		return []string{"metrics"}
	case under("/logs"):
		return []string{"log"}
	case under("/healthz"):
		return []string{"healthz", "proxy"}
	case under("/configz"):
		return []string{"configz", "proxy"}
	case under("/pods"), under("/runningpods"):
		return []string{"pods", "proxy"}
	}
	return []string{"proxy"}
}

func verb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return "get"
}
