package mode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/load"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	authzmetrics "k8s.io/apiserver/pkg/authorization/metrics"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/shoal-project/shoal/coordinator/auth/abac"
	"github.com/shoal-project/shoal/coordinator/auth/follow"
	"github.com/shoal-project/shoal/coordinator/config"
)

// Config is what New needs.
type Config struct {
	config.Authorization
	// Node and RBAC are the cluster's own.
	Node, RBAC authorizer.Authorizer
	Log        *slog.Logger
}

// Chain asks authorizers in order; the first opinion counts.
type Chain struct {
	Config
	authorizers atomic.Pointer[[]named]
	seen        []byte // the file's content at the start
}

// named is an authorizer with its type.
type named struct {
	kind string
	authorizer.Authorizer
}

// known are the types of authorizers; only webhooks may be there more than once.
var known = sets.New("Node", "RBAC", "Webhook", "ABAC")

// New makes the chain, or says what is wrong with what it is made of.
func New(c Config) (*Chain, error) {
	chain := &Chain{Config: c}
	if c.AuthorizationConfig == "" {
		list, err := chain.build(chain.fromFlags())
		if err != nil {
			return nil, err
		}
		chain.authorizers.Store(&list)
		return chain, nil
	}
	var err error
	if chain.seen, err = os.ReadFile(c.AuthorizationConfig); err != nil {
		return nil, fmt.Errorf("authorizationConfig: %w", err)
	}
	return chain, chain.load(chain.seen)
}

// fromFlags is the configuration that the single fields stand for.
func (c *Chain) fromFlags() *apiserver.AuthorizationConfiguration {
	modes := c.AuthorizationMode
	if len(modes) == 0 {
		modes = []string{"Node", "RBAC"}
	}
	out := &apiserver.AuthorizationConfiguration{}
	for _, mode := range modes {
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(mode), Name: strings.ToLower(mode)}
		if mode == "Webhook" {
			a.Webhook = &apiserver.WebhookConfiguration{
				AuthorizedTTL: metav1.Duration{
					Duration: time.Duration(c.AuthorizationWebhookCacheAuthorizedTTL)},
				CacheAuthorizedRequests: true,
				UnauthorizedTTL: metav1.Duration{
					Duration: time.Duration(c.AuthorizationWebhookCacheUnauthorizedTTL)},
				CacheUnauthorizedRequests: true,
				// Upstream's, for a webhook that is named by flags.
				Timeout:                                  metav1.Duration{Duration: 30 * time.Second},
				FailurePolicy:                            apiserver.FailurePolicyNoOpinion,
				SubjectAccessReviewVersion:               c.AuthorizationWebhookVersion,
				MatchConditionSubjectAccessReviewVersion: "v1",
				ConnectionInfo: apiserver.WebhookConnectionInfo{
					Type:           apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
					KubeConfigFile: &c.AuthorizationWebhookConfigFile},
			}
		}
		out.Authorizers = append(out.Authorizers, a)
	}
	return out
}

func (c *Chain) load(data []byte) error {
	parsed, err := load.LoadFromData(data)
	if err != nil {
		return fmt.Errorf("authorizationConfig %s: %w", c.AuthorizationConfig, err)
	}
	list, err := c.build(parsed)
	if err != nil {
		return fmt.Errorf("authorizationConfig %s: %w", c.AuthorizationConfig, err)
	}
	c.authorizers.Store(&list)
	return nil
}

func (c *Chain) build(parsed *apiserver.AuthorizationConfiguration) ([]named, error) {
	webhooks := slices.ContainsFunc(parsed.Authorizers,
		func(a apiserver.AuthorizerConfiguration) bool { return a.Type == apiserver.TypeWebhook })
	var compiler authorizationcel.Compiler // it is expensive to make
	if webhooks {
		compiler = authorizationcel.NewDefaultCompiler()
	}
	if errs := validation.ValidateAuthorizationConfiguration(compiler, nil, parsed, known,
		sets.New("Webhook")); len(errs) > 0 {
		return nil, fmt.Errorf("authorization: %w", errs.ToAggregate())
	}
	var out []named
	for _, a := range parsed.Authorizers {
		one, err := c.authorizer(a, compiler)
		if err != nil {
			return nil, fmt.Errorf("authorizer %s: %w", a.Name, err)
		}
		out = append(out, named{string(a.Type), authzmetrics.InstrumentedAuthorizer(string(a.Type), a.Name, one)})
	}
	return out, nil
}

func (c *Chain) authorizer(a apiserver.AuthorizerConfiguration,
	compiler authorizationcel.Compiler) (authorizer.Authorizer, error) {
	switch a.Type {
	case "Node":
		return c.Node, nil
	case "RBAC":
		return c.RBAC, nil
	case "ABAC":
		if c.AuthorizationPolicyFile == "" {
			return nil, errors.New("authorizationPolicyFile is missing, it holds the policies of ABAC")
		}
		return abac.Load(c.AuthorizationPolicyFile)
	default:
		return newWebhook(a, compiler)
	}
}

func newWebhook(a apiserver.AuthorizerConfiguration, compiler authorizationcel.Compiler) (authorizer.Authorizer, error) {
	w := a.Webhook
	if w.ConnectionInfo.Type != apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile {
		return nil, fmt.Errorf("connectionInfo.type %s: give KubeConfigFile, the API server does not ask itself",
			w.ConnectionInfo.Type)
	}
	client, err := utilwebhook.LoadKubeconfig(*w.ConnectionInfo.KubeConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("kubeConfigFile %s: %w", *w.ConnectionInfo.KubeConfigFile, err)
	}
	client.Timeout = w.Timeout.Duration
	onError := authorizer.DecisionNoOpinion
	if w.FailurePolicy == apiserver.FailurePolicyDeny {
		onError = authorizer.DecisionDeny
	}
	ttl := func(cache bool, d metav1.Duration) time.Duration {
		if !cache {
			return 0
		}
		return d.Duration
	}
	return webhook.New(client, w.SubjectAccessReviewVersion, ttl(w.CacheAuthorizedRequests, w.AuthorizedTTL),
		ttl(w.CacheUnauthorizedRequests, w.UnauthorizedTTL),
		*webhook.DefaultRetryBackoff(), onError, w.MatchConditions, a.Name, metrics.NoopAuthorizerMetrics{}, compiler)
}

// Authorize implements authorizer.Authorizer.
func (c *Chain) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	var reasons []string
	var errs []error
	for _, a := range *c.authorizers.Load() {
		decision, reason, err := a.Authorize(ctx, attrs)
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
		if err != nil {
			errs = append(errs, err)
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
	}
	return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

// Has tells whether an authorizer of a type is asked.
func (c *Chain) Has(kind string) bool {
	return slices.ContainsFunc(*c.authorizers.Load(), func(a named) bool { return a.kind == kind })
}

// Run follows the file until ctx ends.
func (c *Chain) Run(ctx context.Context, every time.Duration) {
	if c.AuthorizationConfig == "" {
		return
	}
	follow.File{Path: c.AuthorizationConfig, What: "authorization configuration", Seen: c.seen, Take: c.load,
		Log: c.Log}.Run(ctx, every)
}
