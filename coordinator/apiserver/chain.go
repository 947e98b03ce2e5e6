package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// chain wraps the API in the filters that each request passes, the last line
// first. It is upstream's chain without tracing, CORS and the goroutine that
// enforces the timeout: the request's deadline does.
func (s *Server) chain(api http.Handler, c *genericapiserver.Config) http.Handler {
	h := api
	h = filters.WithAuthorization(h, c.Authorization.Authorizer, c.Serializer)
	h = s.flow.wrap(h, c)
	h = impersonation.WithConstrainedImpersonation(h, c.Authorization.Authorizer, c.Serializer)
	h = filters.WithAudit(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	failed := filters.WithFailedAuthenticationAudit(filters.Unauthorized(c.Serializer), c.AuditBackend, c.AuditPolicyRuleEvaluator)
	h = filters.WithAuthentication(h, c.Authentication.Authenticator, failed, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	h = filters.WithWarningRecorder(h)
	h = filters.WithRequestDeadline(h, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	h = genericfilters.WithWaitGroup(h, c.LongRunningFunc, c.NonLongRunningRequestWaitGroup)
	h = filters.WithCacheControl(h)
	h = filters.WithLatencyTrackers(h)
	h = filters.WithRequestInfo(h, c.RequestInfoResolver)
	h = filters.WithRequestReceivedTimestamp(h)
	h = filters.WithMuxAndDiscoveryComplete(h, s.discoveryDone)
	h = genericfilters.WithPanicRecovery(h, c.RequestInfoResolver)
	return filters.WithAuditInit(h)
}
