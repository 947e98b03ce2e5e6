package config

import (
	"time"

	"github.com/spf13/pflag"
)

// Authentication says who is believed beside the cluster's own certificates and
// tokens. Names and meanings are those of upstream's flags.
type Authentication struct {
	// AuthenticationConfig is an AuthenticationConfiguration of
	// apiserver.config.k8s.io/v1; it excludes the oidc fields and, when it has a
	// part on anonymous requests, AnonymousAuth.
	AuthenticationConfig string `json:"authenticationConfig,omitempty"`
	// AnonymousAuth lets requests without a credential in, wherever the authorizers
	// let system:anonymous: unset or true; false, nowhere.
	AnonymousAuth *bool `json:"anonymousAuth,omitempty"`

	OIDCIssuerURL      string            `json:"oidcIssuerURL,omitempty"`
	OIDCClientID       string            `json:"oidcClientID,omitempty"`
	OIDCCAFile         string            `json:"oidcCAFile,omitempty"`
	OIDCUsernameClaim  string            `json:"oidcUsernameClaim,omitempty"`
	OIDCUsernamePrefix string            `json:"oidcUsernamePrefix,omitempty"`
	OIDCGroupsClaim    string            `json:"oidcGroupsClaim,omitempty"`
	OIDCGroupsPrefix   string            `json:"oidcGroupsPrefix,omitempty"`
	OIDCSigningAlgs    []string          `json:"oidcSigningAlgs,omitempty"`
	OIDCRequiredClaim  map[string]string `json:"oidcRequiredClaim,omitempty"`

	// AuthenticationTokenWebhookConfigFile is a kubeconfig of a service that
	// reviews tokens.
	AuthenticationTokenWebhookConfigFile string   `json:"authenticationTokenWebhookConfigFile,omitempty"`
	AuthenticationTokenWebhookVersion    string   `json:"authenticationTokenWebhookVersion,omitempty"`
	AuthenticationTokenWebhookCacheTTL   Duration `json:"authenticationTokenWebhookCacheTTL,omitempty"`
}

func defaultAuthentication() Authentication {
	return Authentication{
		OIDCUsernameClaim:                  "sub",
		OIDCSigningAlgs:                    []string{"RS256"},
		AuthenticationTokenWebhookVersion:  "v1beta1",
		AuthenticationTokenWebhookCacheTTL: Duration(2 * time.Minute),
	}
}

func (a *Authentication) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.AuthenticationConfig, "authentication-config", a.AuthenticationConfig, "AuthenticationConfiguration file: issuers of JWTs, anonymous requests; read again when it changes")
	fs.Var(optionalBool{&a.AnonymousAuth}, "anonymous-auth", "let requests without a credential in as system:anonymous (default true)")
	fs.Lookup("anonymous-auth").NoOptDefVal = "true"
	fs.StringVar(&a.OIDCIssuerURL, "oidc-issuer-url", a.OIDCIssuerURL, "URL of the OpenID Connect issuer, https")
	fs.StringVar(&a.OIDCClientID, "oidc-client-id", a.OIDCClientID, "audience that tokens must have")
	fs.StringVar(&a.OIDCCAFile, "oidc-ca-file", a.OIDCCAFile, "CA of the issuer (default: the machine's)")
	fs.StringVar(&a.OIDCUsernameClaim, "oidc-username-claim", a.OIDCUsernameClaim, "claim that holds the user's name")
	fs.StringVar(&a.OIDCUsernamePrefix, "oidc-username-prefix", a.OIDCUsernamePrefix, `what stands before user names; "-": nothing (default: the issuer and "#", unless the claim is email)`)
	fs.StringVar(&a.OIDCGroupsClaim, "oidc-groups-claim", a.OIDCGroupsClaim, "claim that holds the user's groups")
	fs.StringVar(&a.OIDCGroupsPrefix, "oidc-groups-prefix", a.OIDCGroupsPrefix, "what stands before groups")
	fs.StringSliceVar(&a.OIDCSigningAlgs, "oidc-signing-algs", a.OIDCSigningAlgs, "signature algorithms that are accepted")
	fs.StringToStringVar(&a.OIDCRequiredClaim, "oidc-required-claim", a.OIDCRequiredClaim, "claims that tokens must have, key=value")
	fs.StringVar(&a.AuthenticationTokenWebhookConfigFile,
		"authentication-token-webhook-config-file", a.AuthenticationTokenWebhookConfigFile, "kubeconfig of a service that reviews tokens")
	fs.StringVar(&a.AuthenticationTokenWebhookVersion,
		"authentication-token-webhook-version", a.AuthenticationTokenWebhookVersion, "version of TokenReview that it speaks: v1 or v1beta1")
	fs.Var(&a.AuthenticationTokenWebhookCacheTTL, "authentication-token-webhook-cache-ttl", "how long its answers are remembered")
}

func (a *Authentication) validate(bad func(field, value, remedy string)) {
	if a.AuthenticationConfig != "" && a.OIDCIssuerURL != "" {
		bad("oidcIssuerURL", a.OIDCIssuerURL, "give it as an issuer in the file of authenticationConfig")
	}
	if (a.OIDCIssuerURL == "") != (a.OIDCClientID == "") {
		bad("oidcClientID", a.OIDCClientID, "give oidcIssuerURL and oidcClientID together")
	}
	checkVersion("authenticationTokenWebhookVersion", a.AuthenticationTokenWebhookVersion, bad)
}

func checkVersion(field, version string, bad func(field, value, remedy string)) {
	if version != "v1" && version != "v1beta1" {
		bad(field, version, "give v1 or v1beta1")
	}
}

// Authorization says who decides, in which order, what a user may.
type Authorization struct {
	// AuthorizationConfig is an AuthorizationConfiguration of
	// apiserver.config.k8s.io/v1; it excludes all other fields.
	AuthorizationConfig string `json:"authorizationConfig,omitempty"`
	// AuthorizationMode are of Node, RBAC, Webhook, ABAC; empty: Node, RBAC.
	AuthorizationMode       []string `json:"authorizationMode,omitempty"`
	AuthorizationPolicyFile string   `json:"authorizationPolicyFile,omitempty"`

	AuthorizationWebhookConfigFile           string   `json:"authorizationWebhookConfigFile,omitempty"`
	AuthorizationWebhookVersion              string   `json:"authorizationWebhookVersion,omitempty"`
	AuthorizationWebhookCacheAuthorizedTTL   Duration `json:"authorizationWebhookCacheAuthorizedTTL,omitempty"`
	AuthorizationWebhookCacheUnauthorizedTTL Duration `json:"authorizationWebhookCacheUnauthorizedTTL,omitempty"`
}

func defaultAuthorization() Authorization {
	return Authorization{
		AuthorizationWebhookVersion:              "v1beta1",
		AuthorizationWebhookCacheAuthorizedTTL:   Duration(5 * time.Minute),
		AuthorizationWebhookCacheUnauthorizedTTL: Duration(30 * time.Second),
	}
}

func (a *Authorization) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.AuthorizationConfig, "authorization-config", a.AuthorizationConfig, "AuthorizationConfiguration file: authorizers in order; read again when it changes")
	fs.StringSliceVar(&a.AuthorizationMode, "authorization-mode", a.AuthorizationMode, "authorizers in order, of Node, RBAC, Webhook, ABAC (default Node,RBAC)")
	fs.StringVar(&a.AuthorizationPolicyFile, "authorization-policy-file", a.AuthorizationPolicyFile, "policy of ABAC, one JSON object a line")
	fs.StringVar(&a.AuthorizationWebhookConfigFile,
		"authorization-webhook-config-file", a.AuthorizationWebhookConfigFile, "kubeconfig of the service of Webhook")
	fs.StringVar(&a.AuthorizationWebhookVersion, "authorization-webhook-version", a.AuthorizationWebhookVersion, "version of SubjectAccessReview that it speaks: v1 or v1beta1")
	fs.Var(&a.AuthorizationWebhookCacheAuthorizedTTL, "authorization-webhook-cache-authorized-ttl", "how long it is remembered that something is allowed")
	fs.Var(&a.AuthorizationWebhookCacheUnauthorizedTTL, "authorization-webhook-cache-unauthorized-ttl", "how long it is remembered that something is not allowed")
}

func (a *Authorization) validate(bad func(field, value, remedy string)) {
	if a.AuthorizationConfig != "" && (len(a.AuthorizationMode) > 0 || a.AuthorizationWebhookConfigFile != "") {
		bad("authorizationConfig", a.AuthorizationConfig, "remove authorizationMode and authorizationWebhookConfigFile: the file says the authorizers")
	}
	checkVersion("authorizationWebhookVersion", a.AuthorizationWebhookVersion, bad)
}
