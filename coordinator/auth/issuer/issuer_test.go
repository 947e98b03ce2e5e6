package issuer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/shoal-project/shoal/coordinator/config"
)

// provider is an OpenID Connect issuer.
type provider struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &provider{key: key}
	mux := http.NewServeMux()
	answer := func(path string, what func() any) {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(what())
		})
	}
	answer("/.well-known/openid-configuration", func() any {
		return map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}}
	})
	answer("/keys", func() any {
		return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}}
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *provider) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw}))
}

// token signs claims, which replace the usual ones.
func (p *provider) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": p.URL, "aud": "shoal", "sub": "1234", "name": "anna", "teams": []string{"ops"},
		"exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		all[k] = v
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "1"}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(all).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// run starts an authenticator and waits until a good token is believed.
func run(t *testing.T, c config.Authentication, good string) *Issuers {
	t.Helper()
	i, err := New(
		Config{Authentication: c, Audiences: authenticator.Audiences{"api"},
			Disallowed: []string{"https://own.example"}, Log: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); i.Run(ctx, 10*time.Millisecond) }()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, func() bool { _, ok, _ := i.AuthenticateToken(ctx, good); return ok })
	return i
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in 30 s")
		}
	}
}

// While a changed file's issuers do not answer, those of before are believed.
func TestAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		began := time.Now()
		up := func() error {
			if time.Since(began) < 10*time.Second {
				return down
			}
			return nil
		}
		if err := await(t.Context(), []func() error{up}, patience); err != nil || time.Since(began) < 10*time.Second {
			t.Errorf("an issuer that comes up: %v after %v", err, time.Since(began))
		}
		if err := await(t.Context(), []func() error{func() error { return down }}, patience); !errors.Is(err,
			errSilent) || !errors.Is(err, down) {
			t.Errorf("an issuer that stays away: %v", err)
		}
	})
}

// refused tells why a token is not believed.
func refused(t *testing.T, i *Issuers, token string) string {
	t.Helper()
	resp, ok, err := i.AuthenticateToken(context.Background(), token)
	if ok {
		t.Errorf("believed: %+v", resp.User)
	}
	return fmt.Sprint(err)
}

// A user comes from claims, by flags: upstream's prefixes keep issuers apart.
func TestFlags(t *testing.T) {
	p := newProvider(t)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte(p.ca()), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default().Authentication
	c.OIDCIssuerURL, c.OIDCClientID, c.OIDCCAFile, c.OIDCSigningAlgs = p.URL, "shoal", ca, []string{"ES256"}
	c.OIDCGroupsClaim, c.OIDCGroupsPrefix, c.OIDCRequiredClaim = "teams", "oidc:", map[string]string{"name": "anna"}
	i := run(t, c, p.token(t, nil))
	resp, _, err := i.AuthenticateToken(context.Background(), p.token(t, nil))
	if err != nil || resp.User.GetName() != p.URL+"#1234" || strings.Join(resp.User.GetGroups(), ",") != "oidc:ops" {
		t.Errorf("got %+v, %v", resp, err)
	}
	for want, claims := range map[string]map[string]any{
		"expected audience":   {"aud": "other"},
		"expired":             {"exp": time.Now().Add(-time.Hour).Unix()},
		"required claim name": {"name": "bert"},
	} {
		if why := refused(t, i, p.token(t, claims)); !strings.Contains(why, want) {
			t.Errorf("%v: %s, want %q", claims, why, want)
		}
	}
	other := newProvider(t)
	other.URL = p.URL // its key is not the issuer's
	if why := refused(t, i, other.token(t, nil)); !strings.Contains(why, "failed to verify") {
		t.Errorf("forged: %s", why)
	}
	if why := refused(t, i, "no.jwt.here"); why != "<nil>" {
		t.Errorf("another's token: %s", why)
	}
}

const structured = `
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}]}
jwt:
- issuer: {url: %q, audiences: [%s], certificateAuthority: %q}
  claimValidationRules:
  - {expression: "claims.?banned.orValue(false) == false", message: banned}
  claimMappings:
    username: {expression: "'corp:' + claims.name"}
    groups: {expression: "claims.teams"}
  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: reserved}
`

// The file's CEL rules count, and its changes do, without a restart.
func TestFile(t *testing.T) {
	p := newProvider(t)
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	write := func(text string) {
		t.Helper()
		// Renamed, as an editor does: a reader sees the old or the new one.
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(structured, p.URL, "shoal", p.ca()))
	c := config.Default().Authentication
	c.AuthenticationConfig = file
	good := p.token(t, nil)
	i := run(t, c, good)
	if a := i.Anonymous(); a == nil || !a.Enabled || a.Conditions[0].Path != "/livez" {
		t.Errorf("anonymous: %+v", a)
	}
	resp, _, err := i.AuthenticateToken(context.Background(), good)
	if err != nil || resp.User.GetName() != "corp:anna" || strings.Join(resp.User.GetGroups(), ",") != "ops" {
		t.Errorf("got %+v, %v", resp, err)
	}
	if why := refused(t, i, p.token(t, map[string]any{"banned": true})); !strings.Contains(why, "banned") {
		t.Errorf("banned: %s", why)
	}
	write("kind: nonsense")
	write(fmt.Sprintf(structured, p.URL, "second", p.ca()))
	second := p.token(t, map[string]any{"aud": "second"})
	eventually(t, func() bool { _, ok, _ := i.AuthenticateToken(context.Background(), second); return ok })
	refused(t, i, good)
}

func TestBadConfiguration(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"":          "it is empty",
		"kind: Pod": "",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njtw: []":                        "unknown field",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: []":                 "give an AuthenticationConfiguration",
		fmt.Sprintf(structured, "https://own.example", "a", ""):                                                     "issuer.url",
		fmt.Sprintf(structured, "http://plain.example", "a", ""):                                                    "URL scheme must be https",
		strings.Replace(fmt.Sprintf(structured, "https://a.example", "a", ""), "claims.teams", "claims.teams +", 1): "groups.expression",
		strings.Replace(fmt.Sprintf(structured, "https://a.example", "a", ""), "issuer: {",
			"issuer: {egressSelectorType: cluster, ", 1): "egressSelectorType \"cluster\": there is no egress configuration",
	} {
		file := filepath.Join(dir, "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := config.Default().Authentication
		c.AuthenticationConfig = file
		if _, err := New(Config{Authentication: c, Disallowed: []string{"https://own.example"}}); err == nil ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "authenticationConfig "+file) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// What no issuer could be believed for stops the start.
func TestBadAlgorithm(t *testing.T) {
	c := config.Default().Authentication
	c.OIDCIssuerURL, c.OIDCClientID, c.OIDCSigningAlgs = "https://a.example", "shoal", []string{"RS256", "HS256"}
	if _, err := New(Config{Authentication: c}); err == nil || !strings.Contains(err.Error(), `"HS256" is not supported`) {
		t.Errorf("HS256: %v", err)
	}
}
