package server

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/agent/process"
)

// How long answers of the API server are kept, as the kubelet does it. That a
// token is bad is not kept: whoever invents tokens would fill the memory.
const (
	tokenTTL   = 2 * time.Minute
	allowedTTL = 5 * time.Minute
	deniedTTL  = 30 * time.Second
	maxAnswers = 1000
)

const (
	// maxChain is how many certificates a caller may show: Go looks for a way from
	// the first to a CA among all of them, for each request.
	maxChain = 4
	// maxToken is the longest token that the API server is asked about.
	maxToken = 16 << 10
	// maxQuestions is how many questions the API server has at once from here;
	// a caller waits questionWait for its turn.
	maxQuestions = 16
	questionWait = 10 * time.Second
	// answerWait is how long the API server may take for an answer: one that hangs
	// must not hold up all callers after it comes back.
	answerWait = 10 * time.Second
	// refusalWait is how long a caller that is refused may take for the rest of its
	// request, and for the answer.
	refusalWait = 5 * time.Second
)

// Auth asks the API server who a caller is (TokenReview) and what they may
// (SubjectAccessReview), unless a client certificate tells the first.
type Auth struct {
	// Client is nil without an API: then certificates of system:masters are
	// all that counts.
	Client   kubernetes.Interface
	NodeName string

	// clientCAs are of callers' certificates.
	clientCAs atomic.Pointer[x509.CertPool]

	once      sync.Once
	questions chan struct{}
	tokens    answers[*user]
	allowed   answers[bool]
}

type user struct {
	name, uid string
	groups    []string
	certified bool // by a certificate
	extra     map[string][]string
}

type userKey struct{}

// identify lets only callers pass that say who they are.
func (a *Auth) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := a.who(r)
		if errors.Is(err, errBusy) {
			refuse(w, r, err.Error(), http.StatusTooManyRequests)
			return
		}
		if err != nil {
			refuse(w, r, "Unauthorized", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, u)))
	})
}

// allow lets callers pass who may do what the method says with any one of a
// node's subresources (KEP-2862).
func (a *Auth) allow(next http.HandlerFunc, subresources ...string) http.Handler {
	return a.check(next, func(r *http.Request) string { return verb(r.Method) }, subresources)
}

// allowEntry is allow for what runs something in a container, or reaches into it.
// A WebSocket begins with GET: that takes the same right as a POST, and who may
// only read of a node does not enter its containers.
func (a *Auth) allowEntry(next http.HandlerFunc) http.Handler {
	return a.check(next, func(*http.Request) string { return "create" }, []string{"proxy"})
}

func (a *Auth) check(next http.HandlerFunc, verbOf func(*http.Request) string, subresources []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok := r.Context().Value(userKey{}).(*user)
		if !ok {
			refuse(w, r, "Unauthorized", http.StatusUnauthorized)
			return
		}
		verb := verbOf(r)
		for _, resource := range subresources {
			ok, err := a.may(r.Context(), u, verb, resource)
			if errors.Is(err, errBusy) {
				refuse(w, r, err.Error(), http.StatusTooManyRequests)
				return
			}
			if err != nil {
				refuse(w, r,
					"Authorization error (user="+u.name+", verb="+verb+", resource=nodes, subresource="+resource+")",
					http.StatusInternalServerError)
				return
			}
			if ok {
				next(w, r)
				return
			}
		}
		refuse(w, r,
			"Forbidden (user="+u.name+", verb="+verb+", resource=nodes, subresource(s)=["+
				strings.Join(subresources, " ")+"])", http.StatusForbidden)
	})
}

// allowNodes lets pass only who shows a certificate of a node. Nobody is asked: nodes get
// on with each other without the API.
func (a *Auth) allowNodes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, ok := r.Context().Value(userKey{}).(*user)
		if !ok || !u.certified || !strings.HasPrefix(u.name, "system:node:") || !slices.Contains(u.groups, "system:nodes") {
			refuse(w, r, "Forbidden: this is for nodes", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// refuse answers who may not go on.
func refuse(w http.ResponseWriter, r *http.Request, why string, code int) {
	process.Hurry(w, r, refusalWait)
	http.Error(w, why, code)
}

var (
	errUnknown = errors.New("unknown caller")
	errBusy    = errors.New("too many callers that are not known yet, try again later")
)

func (a *Auth) who(r *http.Request) (*user, error) {
	if u := a.certified(r); u != nil {
		return u, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" || len(token) > maxToken || a.Client == nil {
		return nil, errUnknown
	}
	return a.review(r.Context(), token)
}

// certified is who the caller's certificate says, nil without a good one.
func (a *Auth) certified(r *http.Request) *user {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || len(r.TLS.PeerCertificates) > maxChain {
		return nil
	}
	roots := a.clientCAs.Load()
	if roots == nil {
		return nil
	}
	certs := r.TLS.PeerCertificates
	middle := x509.NewCertPool()
	for _, c := range certs[1:] {
		middle.AddCert(c)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil || certs[0].Subject.CommonName == "" {
		return nil
	}
	return &user{name: certs[0].Subject.CommonName, certified: true,
		groups: append(slices.Clone(certs[0].Subject.Organization), "system:authenticated")}
}

// ask waits for its turn to ask the API server something.
func (a *Auth) ask(ctx context.Context) (done func(), err error) {
	a.once.Do(func() { a.questions = make(chan struct{}, maxQuestions) })
	select {
	case a.questions <- struct{}{}:
		return func() { <-a.questions }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(questionWait):
		return nil, errBusy
	}
}

func (a *Auth) review(ctx context.Context, token string) (*user, error) {
	if u, ok := a.tokens.get([]byte(token)); ok {
		return u, nil
	}
	done, err := a.ask(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	got, err := a.Client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if !got.Status.Authenticated {
		return nil, errUnknown
	}
	s := got.Status.User
	u := &user{name: s.Username, uid: s.UID, groups: s.Groups, extra: map[string][]string{}}
	for k, v := range s.Extra {
		u.extra[k] = v
	}
	a.tokens.put([]byte(token), u, tokenTTL)
	return u, nil
}

func (a *Auth) may(ctx context.Context, u *user, verb, subresource string) (bool, error) {
	if a.Client == nil {
		return slices.Contains(u.groups, "system:masters"), nil
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for k, v := range u.extra {
		extra[k] = v
	}
	spec := authorizationv1.SubjectAccessReviewSpec{User: u.name, UID: u.uid, Groups: u.groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb,
			Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.NodeName}}
	question, err := json.Marshal(spec)
	if err != nil {
		return false, err
	}
	if ok, known := a.allowed.get(question); known {
		return ok, nil
	}
	done, err := a.ask(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	got, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx,
		&authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	ttl := deniedTTL
	if got.Status.Allowed {
		ttl = allowedTTL
	}
	a.allowed.put(question, got.Status.Allowed, ttl)
	return got.Status.Allowed, nil
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
