package auth

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/auth/identity"
	"github.com/shoal-project/shoal/coordinator/auth/issuer"
	"github.com/shoal-project/shoal/coordinator/auth/mode"
	"github.com/shoal-project/shoal/coordinator/auth/node"
	"github.com/shoal-project/shoal/coordinator/auth/policy"
	"github.com/shoal-project/shoal/coordinator/auth/rbac"
	"github.com/shoal-project/shoal/coordinator/auth/token"
	"github.com/shoal-project/shoal/coordinator/config"
)

// DefaultIssuer is the issuer, and the audience, of service account tokens.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// tokenCacheTTL is upstream's: how long a token's holder is believed without a
// new look at the objects it is bound to.
const tokenCacheTTL = 10 * time.Second

// refusedTTL is the longest that a token is remembered which the service of
// authenticationTokenWebhookConfigFile refused: anybody can invent some.
const refusedTTL = 10 * time.Second

// reloadPeriod is how often a configuration file is looked at, where there is one.
const reloadPeriod = 5 * time.Second

// Config is what New needs.
type Config struct {
	// ClientCAs sign client certificates; FrontProxyCAs those of proxies that
	// may speak for others by X-Remote-User headers (nil: none may).
	ClientCAs     *x509.CertPool
	FrontProxyCAs *x509.CertPool
	// FrontProxyNames are the common names that such a proxy may have; empty: any.
	FrontProxyNames []string
	// Issuer of service account tokens; empty: DefaultIssuer.
	Issuer string
	// SigningKey signs service account tokens; VerifyKeys are further keys that
	// are accepted (keys of the past, and of the future). SetServiceAccountKeys
	// replaces both.
	SigningKey crypto.Signer
	VerifyKeys []crypto.PublicKey
	// ExternalHost is the host:port that OpenID discovery tells.
	ExternalHost string
	// Authentication and Authorization are the operator's; their zero values add
	// nobody, and ask Node and RBAC.
	Authentication config.Authentication
	Authorization  config.Authorization
	// Log is told of changed files; nil: slog.Default().
	Log *slog.Logger
}

// Auth is the coordinator's authentication and authorization.
type Auth struct {
	Authenticator authenticator.Request
	// Token checks bearer tokens alone (TokenReview).
	Token authenticator.Token
	// Audiences are the API server's own.
	Audiences  authenticator.Audiences
	Authorizer *Authorizer
	Issuer     *token.Issuer
	// Discovery is OpenID's, by path.
	Discovery map[string]http.Handler

	objects *objects
	issuers *issuer.Issuers
	keys    *token.Keys
	clients *certificates // nil: there are none
}

// New returns an Auth that knows certificates and nothing of the cluster's
// objects: call Connect before the informers start.
func New(c Config) (*Auth, error) {
	if c.Issuer == "" {
		c.Issuer = DefaultIssuer
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.SigningKey == nil {
		return nil, fmt.Errorf("auth: no service account signing key")
	}
	a := &Auth{Audiences: authenticator.Audiences{c.Issuer}, objects: &objects{}}
	var err error
	if a.keys, err = token.NewKeys(c.SigningKey, c.VerifyKeys...); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	a.Issuer = token.NewIssuer(token.IssuerConfig{
		Issuer: c.Issuer, Audiences: a.Audiences, Keys: a.keys, NodeUID: a.objects.nodeUID,
	})
	a.Discovery = token.Discovery(c.Issuer, c.ExternalHost, a.keys)
	serviceAccounts := token.NewAuthenticator(token.AuthenticatorConfig{
		Issuer: c.Issuer, Audiences: a.Audiences, Keys: a.keys, Objects: a.objects,
	})
	legacy := token.NewLegacyAuthenticator(token.LegacyConfig{
		Audiences: a.Audiences, Keys: a.keys, Objects: a.objects, Log: c.Log,
	})
	if a.issuers, err = issuer.New(
		issuer.Config{Authentication: c.Authentication, Audiences: a.Audiences, Disallowed: []string{c.Issuer},
			Log: c.Log}); err != nil {
		return nil, err
	}
	tokens := []authenticator.Token{
		serviceAccounts,
		legacy,
		authenticator.WrapAudienceAgnosticToken(a.Audiences, token.Bootstrap{Secret: a.objects.knownSecret}),
		a.issuers,
	}
	if c.Authentication.AuthenticationTokenWebhookConfigFile != "" {
		reviewer, err := newTokenWebhook(c.Authentication, a.Audiences)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, reviewer)
	}
	a.Token = token.Bounded{Token: cache.New(tokenunion.New(tokens...), false, tokenCacheTTL, 0)}
	if c.ClientCAs != nil {
		a.clients = newCertificates(c.ClientCAs)
	}
	a.Authenticator = newRequestAuthenticator(c, a.clients, a.Audiences, a.Token,
		a.anonymous(c.Authentication.AnonymousAuth))
	if a.Authorizer, err = newAuthorizer(c); err != nil {
		return nil, err
	}
	return a, nil
}

// SetServiceAccountKeys has tokens signed with another key, and those accepted that are
// signed with it or one of the others.
func (a *Auth) SetServiceAccountKeys(signer crypto.Signer, others ...crypto.PublicKey) error {
	if err := a.keys.Set(signer, others...); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	return nil
}

// SetClientCAs has client certificates accepted that these have signed, and no others.
func (a *Auth) SetClientCAs(pool *x509.CertPool) {
	if a.clients != nil {
		a.clients.trust(pool)
	}
}

// Shown returns whom the client certificate of a request names, if one of the CAs of now
// has signed it: whatever else the request says of who it is from.
func (a *Auth) Shown(req *http.Request) (user.Info, bool) {
	if a.clients == nil || req.TLS == nil || len(req.TLS.PeerCertificates) > maxChain {
		return nil, false
	}
	r, ok, err := a.clients.AuthenticateRequest(req)
	if err != nil || !ok {
		return nil, false
	}
	return r.User, true
}

// newTokenWebhook asks a service who a token's holder is.
func newTokenWebhook(c config.Authentication, audiences authenticator.Audiences) (authenticator.Token, error) {
	file := c.AuthenticationTokenWebhookConfigFile
	client, err := utilwebhook.LoadKubeconfig(file, nil)
	if err != nil {
		return nil, fmt.Errorf("authenticationTokenWebhookConfigFile %s: %w", file, err)
	}
	reviewer, err := webhook.New(client, c.AuthenticationTokenWebhookVersion, audiences, *webhook.DefaultRetryBackoff())
	if err != nil {
		return nil, fmt.Errorf("authenticationTokenWebhookConfigFile %s: %w", file, err)
	}
	ttl := time.Duration(c.AuthenticationTokenWebhookCacheTTL)
	return cache.New(reviewer, false, ttl, min(ttl, refusedTTL)), nil
}

// anonymous says which requests without a credential are let in, nil: none. What
// they may is the authorizers' to say.
func (a *Auth) anonymous(field *bool) authenticator.Request {
	c := a.issuers.Anonymous()
	switch {
	case c != nil && !c.Enabled, c == nil && field != nil && !*field:
		return nil
	case c != nil:
		return anonymous.NewAuthenticator(c.Conditions)
	}
	return anonymous.NewAuthenticator(nil)
}

// FollowIssuers fetches the keys of issuers of tokens, and takes changes of their
// file over, until ctx ends.
func (a *Auth) FollowIssuers(ctx context.Context) { a.issuers.Run(ctx, reloadPeriod) }

// FollowAuthorizers takes changes of the authorizers' file over until ctx ends.
func (a *Auth) FollowAuthorizers(ctx context.Context) { a.Authorizer.chain.Run(ctx, reloadPeriod) }

// newRequestAuthenticator joins the ways to say who one is. A bad credential is
// an error, never anonymous.
func newRequestAuthenticator(c Config, clients *certificates, audiences authenticator.Audiences,
	tokens authenticator.Token, anonymous authenticator.Request) authenticator.Request {
	var chain []authenticator.Request
	if c.FrontProxyCAs != nil {
		chain = append(chain, authenticator.WrapAudienceAgnosticRequest(audiences, frontProxy(c)))
	}
	if clients != nil {
		chain = append(chain, clients)
	}
	chain = append(chain, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	known := group.NewAuthenticatedGroupAdder(union.New(chain...))
	if anonymous == nil {
		return shortChains(known)
	}
	return shortChains(union.NewFailOnError(known, anonymous))
}

// maxChain is how many certificates a client may show. Go looks for a way from the
// first to a CA among all of them, for each request, with up to a hundred checks
// of signatures that the client chooses.
const maxChain = 4

var errLongChain = fmt.Errorf("the client shows more than %d certificates", maxChain)

func shortChains(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if req.TLS != nil && len(req.TLS.PeerCertificates) > maxChain {
			return nil, false, errLongChain
		}
		return next.AuthenticateRequest(req)
	})
}

// frontProxy reads upstream's default header names. A request without them is
// left to the others before anything is verified.
func frontProxy(c Config) authenticator.Request {
	proxy := headerrequest.NewDynamicVerifyOptionsSecure(
		verifier(c.FrontProxyCAs),
		headerrequest.StaticStringSlice(c.FrontProxyNames),
		headerrequest.StaticStringSlice{"X-Remote-User"},
		headerrequest.StaticStringSlice{"X-Remote-Uid"},
		headerrequest.StaticStringSlice{"X-Remote-Group"},
		headerrequest.StaticStringSlice{"X-Remote-Extra-"},
	)
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if req.Header.Get("X-Remote-User") == "" {
			return nil, false, nil
		}
		return proxy.AuthenticateRequest(req)
	})
}

func verifier(roots *x509.CertPool) x509request.VerifyOptionFunc {
	options := x509request.DefaultVerifyOptions()
	options.Roots = roots
	return x509request.StaticVerifierFn(options)
}

// Connect gives the authenticators and authorizers the cluster's objects. Call
// it before the factory starts; until the informers have synced, only
// certificates and the group system:masters count.
func (a *Auth) Connect(client kubernetes.Interface, f informers.SharedInformerFactory) error {
	a.objects.connect(client, f)
	if err := a.Authorizer.rbac.Connect(f); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	if err := a.Authorizer.node.Connect(client, f); err != nil {
		return fmt.Errorf("auth: %w", err)
	}
	return nil
}

// EnsureBootstrapPolicy creates and repairs upstream's default roles and bindings,
// and makes the administrators' once.
func EnsureBootstrapPolicy(ctx context.Context, client kubernetes.Interface) error {
	p, err := policy.Default()
	if err != nil {
		return err
	}
	if err := p.Ensure(ctx, client); err != nil {
		return err
	}
	return policy.EnsureAdmins(ctx, client)
}

// Authorizer lets system:masters pass, then asks the configured authorizers: Node and RBAC, when nothing else is said.
type Authorizer struct {
	node  *node.Authorizer
	rbac  *rbac.Authorizer
	chain *mode.Chain
}

func newAuthorizer(c Config) (*Authorizer, error) {
	p, err := policy.Default()
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	a := &Authorizer{node: node.New(node.Config{Allows: rbac.AllowsAny, Rules: p.Rules("system:node")}), rbac: rbac.New()}
	a.chain, err = mode.New(mode.Config{Authorization: c.Authorization, Node: a.node, RBAC: a.rbac, Log: c.Log})
	return a, err
}

// HasSynced says whether all roles and bindings are known.
func (a *Authorizer) HasSynced() bool { return a.rbac.HasSynced() }

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := attrs.GetUser(); u != nil {
		for _, g := range u.GetGroups() {
			if g == user.SystemPrivilegedGroup {
				return authorizer.DecisionAllow, "", nil
			}
		}
	}
	return a.chain.Authorize(ctx, attrs)
}

// RulesFor lists the RBAC rules that apply to a user (kind.RuleResolver). What
// other authorizers allow cannot be listed: that is an error with valid rules.
func (a *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	rules, err := a.rbac.RulesFor(ctx, u, namespace)
	if _, isNode := identity.Node(u); isNode && err == nil {
		err = errors.New("node authorizer does not support user rule resolution")
	}
	if a.chain.Has("Webhook") && err == nil {
		err = errors.New("webhook authorizer does not support user rule resolution")
	}
	return rules, err
}
