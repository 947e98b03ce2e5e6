package issuer

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/config"
)

// parse reads and checks an AuthenticationConfiguration.
func parse(data []byte, disallowed []string) (*apiserver.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("it is empty")
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it holds a %T, give an AuthenticationConfiguration of apiserver.config.k8s.io/v1", obj)
	}
	return c, check(c, disallowed)
}

func check(c *apiserver.AuthenticationConfiguration, disallowed []string) error {
	for _, jwt := range c.JWT {
		if t := jwt.Issuer.EgressSelectorType; t != "" {
			return fmt.Errorf("issuer %s: egressSelectorType %q: there is no egress configuration here, remove the field",
				jwt.Issuer.URL, t)
		}
	}
	return validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), c,
		disallowed).ToAggregate()
}

// checkAlgorithms refuses names that no issuer would be believed for.
func checkAlgorithms(names []string) error {
	known := oidc.AllValidSigningAlgorithms()
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("oidcSigningAlgs: %q is not supported, give some of %s", name, strings.Join(known, ", "))
		}
	}
	return nil
}

// fromFlags is the issuer that the oidc fields stand for.
func fromFlags(c config.Authentication) (*apiserver.AuthenticationConfiguration, error) {
	if c.OIDCIssuerURL == "" {
		return &apiserver.AuthenticationConfiguration{}, nil
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: c.OIDCIssuerURL, Audiences: []string{c.OIDCClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: c.OIDCUsernameClaim, Prefix: ptr.To(usernamePrefix(c))},
		},
	}
	if c.OIDCCAFile != "" {
		ca, err := os.ReadFile(c.OIDCCAFile)
		if err != nil {
			return nil, fmt.Errorf("oidcCAFile: %w", err)
		}
		jwt.Issuer.CertificateAuthority = string(ca)
	}
	if c.OIDCGroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: c.OIDCGroupsClaim,
			Prefix: ptr.To(c.OIDCGroupsPrefix)}
	}
	for claim, value := range c.OIDCRequiredClaim {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules,
			apiserver.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	return &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}, nil
}

// usernamePrefix keeps names of two issuers apart, and from the cluster's own:
// by default it is the issuer, unless names are mail addresses.
func usernamePrefix(c config.Authentication) string {
	switch {
	case c.OIDCUsernamePrefix == "-":
		return ""
	case c.OIDCUsernamePrefix == "" && c.OIDCUsernameClaim != "email":
		return c.OIDCIssuerURL + "#"
	}
	return c.OIDCUsernamePrefix
}
