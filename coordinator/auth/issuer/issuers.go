package issuer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/shoal-project/shoal/coordinator/auth/follow"
	"github.com/shoal-project/shoal/coordinator/config"
)

// Config is what New needs.
type Config struct {
	config.Authentication
	Audiences authenticator.Audiences
	// Disallowed issuers are the cluster's own.
	Disallowed []string
	Log        *slog.Logger
}

// Issuers authenticates tokens of the configured issuers while it runs.
type Issuers struct {
	Config
	parsed *apiserver.AuthenticationConfiguration
	seen   []byte // the file's content at the start
	token  atomic.Pointer[authenticator.Token]
	// stop ends what fetches the keys of the present issuers.
	stop context.CancelFunc
}

// New reads the configuration, or says what is wrong with it.
func New(c Config) (*Issuers, error) {
	i := &Issuers{Config: c, stop: func() {}}
	if c.AuthenticationConfig == "" {
		parsed, err := fromFlags(c.Authentication)
		if err == nil && len(parsed.JWT) > 0 {
			err = errors.Join(check(parsed, c.Disallowed), checkAlgorithms(c.OIDCSigningAlgs))
		}
		if err != nil {
			return nil, fmt.Errorf("oidcIssuerURL %s: %w", c.OIDCIssuerURL, err)
		}
		i.parsed = parsed
		return i, nil
	}
	data, err := os.ReadFile(c.AuthenticationConfig)
	if err != nil {
		return nil, fmt.Errorf("authenticationConfig: %w", err)
	}
	if i.parsed, err = parse(data, c.Disallowed); err != nil {
		return nil, fmt.Errorf("authenticationConfig %s: %w", c.AuthenticationConfig, err)
	}
	if i.parsed.Anonymous != nil && c.AnonymousAuth != nil {
		return nil, fmt.Errorf("authenticationConfig %s: anonymous is set, remove the field anonymousAuth",
			c.AuthenticationConfig)
	}
	i.seen = data
	return i, nil
}

// Anonymous says which requests without a credential are let in; nil: the
// configuration does not say.
func (i *Issuers) Anonymous() *apiserver.AnonymousAuthConfig { return i.parsed.Anonymous }

// AuthenticateToken implements authenticator.Token. Tokens of other issuers are
// left to others.
func (i *Issuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	t := i.token.Load()
	if t == nil {
		return nil, false, nil
	}
	return (*t).AuthenticateToken(ctx, token)
}

// Run fetches the issuers' keys and follows the file until ctx ends.
func (i *Issuers) Run(ctx context.Context, every time.Duration) {
	if err := i.start(ctx, i.parsed, 0); err != nil {
		i.Log.Error("issuers of tokens are not believed", "err", err)
	}
	defer func() { i.stop() }()
	if i.AuthenticationConfig == "" {
		<-ctx.Done()
		return
	}
	follow.File{
		Path: i.AuthenticationConfig,
		What: "authentication configuration",
		Seen: i.seen,
		Take: func(data []byte) error { return i.change(ctx, data) },
		Log:  i.Log,
	}.Run(ctx, every)
}

func (i *Issuers) change(ctx context.Context, data []byte) error {
	parsed, err := parse(data, i.Disallowed)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(parsed.Anonymous, i.parsed.Anonymous) {
		return errors.New("anonymous cannot change while the server runs, restart it")
	}
	if err := i.start(ctx, parsed, patience); err != nil {
		return err
	}
	i.parsed = parsed
	return nil
}

// errSilent is of an issuer whose keys could not be fetched in time.
var errSilent = fmt.Errorf("an issuer does not answer: %w", follow.ErrLater)

// patience is how long a changed file's issuers may take to answer. Until all do,
// those of before are believed.
const patience = time.Minute

// start replaces the issuers that are believed, once the new ones have answered
// or at once when there is no patience.
func (i *Issuers) start(ctx context.Context, c *apiserver.AuthenticationConfiguration, patience time.Duration) error {
	own, stop := context.WithCancel(ctx)
	algorithms := oidc.AllValidSigningAlgorithms()
	if i.AuthenticationConfig == "" {
		algorithms = i.OIDCSigningAlgs
	}
	var all []authenticator.Token
	var checks []func() error
	for _, jwt := range c.JWT {
		options := oidc.Options{JWTAuthenticator: jwt, SupportedSigningAlgs: algorithms, DisallowedIssuers: i.Disallowed}
		if jwt.Issuer.CertificateAuthority != "" {
			options.CAContentProvider = authority(jwt.Issuer.CertificateAuthority)
		}
		one, err := oidc.New(own, options)
		if err != nil {
			stop()
			return fmt.Errorf("issuer %s: %w", jwt.Issuer.URL, err)
		}
		all = append(all, authenticator.WrapAudienceAgnosticToken(i.Audiences, one))
		checks = append(checks, one.HealthCheck)
	}
	if err := await(own, checks, patience); err != nil {
		stop()
		return err
	}
	token := tokenunion.New(all...)
	i.token.Store(&token)
	i.stop()
	i.stop = stop
	return nil
}

// await returns when no check fails any more, or with what fails at the end.
func await(ctx context.Context, checks []func() error, patience time.Duration) error {
	for began := time.Now(); patience > 0; {
		var errs []error
		for _, check := range checks {
			errs = append(errs, check())
		}
		err := errors.Join(errs...)
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%w: %w", errSilent, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// authority is a CA that does not change.
type authority string

// CurrentCABundleContent implements oidc.CAContentProvider.
func (a authority) CurrentCABundleContent() []byte { return []byte(a) }
