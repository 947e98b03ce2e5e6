package apiserver

import (
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filterlatency"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"github.com/shoal-project/shoal/agent/process"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// chain wraps the API in the filters that each request passes, the last line
// first. It is upstream's chain without CORS and the goroutine that enforces the
// timeout: the request's deadline does. Where nothing is traced it has no tracing.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	timed := func(name string, inner http.Handler, wrap func(http.Handler) http.Handler) http.Handler {
		return filterlatency.TrackStarted(wrap(filterlatency.TrackCompleted(inner)), c.TracerProvider, name)
	}
	api = kind.WithCommand(withPatchErrors(api, c.Serializer))
	h := timed("authorization", api, func(h http.Handler) http.Handler {
		return filters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	})
	h = timed("priorityandfairness", h, func(h http.Handler) http.Handler { return s.flow.wrap(h, c) })
	h = timed("constrainedimpersonation", h, func(h http.Handler) http.Handler {
		return impersonation.WithConstrainedImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	})
	h = hurriedStrangers(h, c.LongRunningFunc)
	h = timed("audit", h, func(h http.Handler) http.Handler {
		return filters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	})
	if s.tracer != nil { // after authentication: who is known may say that a request is traced
		h = filters.WithTracing(h, s.tracer)
	}
	failed := filterlatency.TrackCompleted(filters.WithFailedAuthenticationAudit(
		hurried(filters.Unauthorized(c.Serializer)), c.AuditBackend, c.AuditPolicyRuleEvaluator))
	h = timed("authentication", h, func(h http.Handler) http.Handler {
		return filters.WithAuthentication(h, c.Authentication.Authenticator, failed, c.Authentication.APIAudiences,
			c.Authentication.RequestHeaderConfig)
	})
	h = filters.WithWarningRecorder(h)
	h = filters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc,
		c.Serializer, c.RequestTimeout)
	h = genericfilters.WithWaitGroup(h, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
	h = filters.WithCacheControl(h)
	h = filters.WithLatencyTrackers(h)
	h = filters.WithRequestInfo(h, c.RequestInfoResolver)
	h = filters.WithRequestReceivedTimestamp(h)
	h = filters.WithMuxAndDiscoveryComplete(h, s.discoveryDone)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	h = filters.WithAuditInit(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		process.GrowStack()
		h.ServeHTTP(w, r)
	})
}

// refusalWait is how long a client that is not known may take for the rest of its
// request, and for the answer.
const refusalWait = 5 * time.Second

func hurried(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		process.Hurry(w, r, refusalWait)
		h.ServeHTTP(w, r)
	})
}

// hurriedStrangers treats who has no credential as who has a wrong one, but for
// requests that the operator lets last.
func hurriedStrangers(h http.Handler, longRunning request.LongRunningRequestCheck) http.Handler {
	short := hurried(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context())
		info, _ := request.RequestInfoFrom(r.Context())
		if u != nil && u.GetName() == user.Anonymous && info != nil && !longRunning(r, info) {
			short.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}
