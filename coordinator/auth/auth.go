package auth

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/auth/identity"
	"github.com/shoal-project/shoal/coordinator/auth/node"
	"github.com/shoal-project/shoal/coordinator/auth/policy"
	"github.com/shoal-project/shoal/coordinator/auth/rbac"
	"github.com/shoal-project/shoal/coordinator/auth/token"
)

// DefaultIssuer is the issuer, and the audience, of service account tokens.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// healthPaths may be read by anyone, with or without a name.
var healthPaths = []string{"/healthz", "/livez", "/readyz", "/version"}

// tokenCacheTTL is upstream's: how long a token's holder is believed without a
// new look at the objects it is bound to.
const tokenCacheTTL = 10 * time.Second

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
	// are accepted (keys of the past, and of the future).
	SigningKey crypto.Signer
	VerifyKeys []crypto.PublicKey
	// ExternalHost is the host:port that OpenID discovery tells.
	ExternalHost string
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
}

// New returns an Auth that knows certificates and nothing of the cluster's
// objects: call Connect before the informers start.
func New(c Config) (*Auth, error) {
	if c.Issuer == "" {
		c.Issuer = DefaultIssuer
	}
	if c.SigningKey == nil {
		return nil, fmt.Errorf("auth: no service account signing key")
	}
	a := &Auth{Audiences: authenticator.Audiences{c.Issuer}, objects: &objects{}}
	keys := append([]crypto.PublicKey{c.SigningKey.Public()}, c.VerifyKeys...)
	var err error
	if a.Issuer, err = token.NewIssuer(token.IssuerConfig{
		Issuer: c.Issuer, Audiences: a.Audiences, Key: c.SigningKey, NodeUID: a.objects.nodeUID,
	}); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	if a.Discovery, err = token.Discovery(c.Issuer, c.ExternalHost, keys); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	serviceAccounts, err := token.NewAuthenticator(token.AuthenticatorConfig{
		Issuer: c.Issuer, Audiences: a.Audiences, Keys: keys, Objects: a.objects,
	})
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	a.Token = cache.New(tokenunion.New(
		serviceAccounts,
		authenticator.WrapAudienceAgnosticToken(a.Audiences, token.Bootstrap{Secret: a.objects.Secret}),
	), false, tokenCacheTTL, 0)
	a.Authenticator = newRequestAuthenticator(c, a.Audiences, a.Token)
	if a.Authorizer, err = newAuthorizer(); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return a, nil
}

// newRequestAuthenticator joins the ways to say who one is. A bad credential is
// an error, never anonymous.
func newRequestAuthenticator(c Config, audiences authenticator.Audiences, tokens authenticator.Token) authenticator.Request {
	var chain []authenticator.Request
	if c.FrontProxyCAs != nil {
		chain = append(chain, authenticator.WrapAudienceAgnosticRequest(audiences, frontProxy(c)))
	}
	if c.ClientCAs != nil {
		chain = append(chain, newCertificates(c.ClientCAs))
	}
	chain = append(chain, bearertoken.New(tokens), websocket.NewProtocolAuthenticator(tokens))
	var conditions []apiserver.AnonymousAuthCondition
	for _, p := range healthPaths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: p})
	}
	return union.NewFailOnError(
		group.NewAuthenticatedGroupAdder(union.New(chain...)),
		anonymous.NewAuthenticator(conditions),
	)
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

// Authorizer asks, in this order: system:masters, health paths, Node, RBAC.
type Authorizer struct {
	node *node.Authorizer
	rbac *rbac.Authorizer
}

func newAuthorizer() (*Authorizer, error) {
	p, err := policy.Default()
	if err != nil {
		return nil, err
	}
	nodes := node.New(node.Config{Allows: rbac.AllowsAny, Rules: p.Rules("system:node")})
	return &Authorizer{node: nodes, rbac: rbac.New()}, nil
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
	if isHealthRead(attrs) {
		return authorizer.DecisionAllow, "", nil
	}
	decision, nodeReason, err := a.node.Authorize(ctx, attrs)
	if decision != authorizer.DecisionNoOpinion {
		return decision, nodeReason, err
	}
	decision, reason, err := a.rbac.Authorize(ctx, attrs)
	if decision == authorizer.DecisionNoOpinion && nodeReason != "" {
		if reason != "" {
			nodeReason += "\n" + reason
		}
		reason = nodeReason
	}
	return decision, reason, err
}

func isHealthRead(attrs authorizer.Attributes) bool {
	if attrs.IsResourceRequest() || attrs.GetVerb() != "get" {
		return false
	}
	for _, p := range healthPaths {
		if attrs.GetPath() == p {
			return true
		}
	}
	return false
}

// RulesFor lists the RBAC rules that apply to a user (kind.RuleResolver). What
// a node may do beside them cannot be listed: that is an error with valid rules.
func (a *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	rules, err := a.rbac.RulesFor(ctx, u, namespace)
	if _, isNode := identity.Node(u); isNode && err == nil {
		err = errors.New("node authorizer does not support user rule resolution")
	}
	return rules, err
}
