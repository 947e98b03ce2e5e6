package token

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// tracked is memory that keeps the patches of its Secret.
type tracked struct {
	*memory
	patches []string
	refused error
}

func (m *tracked) PatchSecret(_ context.Context, namespace, name string, patch []byte) error {
	m.patches = append(m.patches, namespace+"/"+name+" "+string(patch))
	return m.refused
}

func newLegacyPair(t *testing.T, m *tracked) (*Issuer, *LegacyAuthenticator) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewKeys(key)
	if err != nil {
		t.Fatal(err)
	}
	return NewIssuer(IssuerConfig{Issuer: issuer, Audiences: []string{issuer}, Keys: keys}),
		NewLegacyAuthenticator(LegacyConfig{
			Audiences: []string{issuer}, Keys: keys, Objects: m, Log: slog.New(slog.DiscardHandler),
		})
}

func TestLegacyToken(t *testing.T) {
	now := time.Date(2026, 3, 31, 23, 0, 0, 0, time.UTC)
	note := `ns/secret {"metadata":{"uid":"secret-1","labels":{"kubernetes.io/legacy-token-last-used":"2026-03-31"}}}`
	label := func(key, value string) func(*tracked) {
		return func(m *tracked) { m.secret.Labels = map[string]string{key: value} }
	}
	listed := func(m *tracked) { m.sa.Secrets = []corev1.ObjectReference{{Name: "secret"}} }
	for name, tt := range map[string]struct {
		change    func(*tracked)
		audiences authenticator.Audiences
		err       string
		note      bool
	}{
		"good":         {note: true},
		"used_before":  {change: label(LastUsedLabel, "2026-03-30"), note: true},
		"used_today":   {change: label(LastUsedLabel, "2026-03-31")},
		"clock_ahead":  {change: label(LastUsedLabel, "2026-04-01")},
		"auto_made":    {change: listed, note: true},
		"unwritable":   {change: func(m *tracked) { m.refused = errors.New("read only") }, note: true},
		"other_reader": {audiences: authenticator.Audiences{"vault"}, err: `token audiences ["` + issuer + `"] is invalid for the target audiences ["vault"]`},
		"marked_invalid": {change: label(InvalidSinceLabel, "2026-01-01"), note: true,
			err: "the token in secret ns/secret for service account ns/sa has been marked invalid. " +
				"Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the " +
				"'kubernetes.io/legacy-token-invalid-since' label from the secret to temporarily allow use of this token"},
		"secret_gone":      {change: func(m *tracked) { m.secret = nil }, err: "Token has been invalidated"},
		"secret_deleted":   {change: func(m *tracked) { m.secret.DeletionTimestamp = &metav1.Time{} }, err: "Token has been invalidated"},
		"secret_rewritten": {change: func(m *tracked) { m.secret.Data["token"] = []byte("x") }, err: "Token does not match server's copy"},
		"account_gone":     {change: func(m *tracked) { m.sa = nil }, err: `x "x" not found`},
		"account_deleted":  {change: func(m *tracked) { m.sa.DeletionTimestamp = &metav1.Time{} }, err: "ServiceAccount ns/sa has been deleted"},
		"account_new":      {change: func(m *tracked) { m.sa.UID = "sa-2" }, err: "ServiceAccount UID (sa-2) does not match claim (sa-1)"},
	} {
		t.Run(name, func(t *testing.T) {
			m := &tracked{memory: newMemory()}
			i, a := newLegacyPair(t, m)
			token, err := i.IssueLegacy(m.sa, m.secret)
			if err != nil {
				t.Fatal(err)
			}
			m.secret.Data = map[string][]byte{"token": []byte(token)}
			if tt.change != nil {
				tt.change(m)
			}
			ctx := t.Context()
			if tt.audiences != nil {
				ctx = authenticator.WithAudiences(ctx, tt.audiences)
			}
			resp, ok, err := a.authenticate(ctx, token, now)
			if got := strings.Join(m.patches, ";"); tt.note && got != note || !tt.note && got != "" {
				t.Errorf("notes %q", got)
			}
			if tt.err != "" {
				if ok || err == nil || err.Error() != tt.err {
					t.Fatalf("got %v %v, want %s", ok, err, tt.err)
				}
				return
			}
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if u := resp.User; u.GetName() != "system:serviceaccount:ns:sa" || u.GetUID() != "sa-1" ||
				strings.Join(u.GetGroups(), " ") != "system:serviceaccounts system:serviceaccounts:ns" {
				t.Errorf("user %+v", u)
			}
		})
	}
}

// A Secret's token says what upstream's say, and does not end.
func TestLegacyClaims(t *testing.T) {
	m := newMemory()
	i, _ := newLegacyPair(t, &tracked{memory: m})
	token, err := i.IssueLegacy(m.sa, m.secret)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		t.Fatal(err)
	}
	var claims map[string]any
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(claims)
	want := `{"iss":"kubernetes/serviceaccount","kubernetes.io/serviceaccount/namespace":"ns",` +
		`"kubernetes.io/serviceaccount/secret.name":"secret","kubernetes.io/serviceaccount/service-account.name":"sa",` +
		`"kubernetes.io/serviceaccount/service-account.uid":"sa-1","sub":"system:serviceaccount:ns:sa"}`
	if err != nil || string(got) != want {
		t.Errorf("claims %s, %v", got, err)
	}
}

// Tokens of others, and those that another key signed, are not this one's.
func TestForeignLegacyTokens(t *testing.T) {
	m := &tracked{memory: newMemory()}
	ours, a := newLegacyPair(t, m)
	others, _ := newLegacyPair(t, m)
	bound, _, err := ours.Issue(m.sa, nil, 600, m.secret)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := others.IssueLegacy(m.sa, m.secret)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		token string
		fails bool
	}{"bound": {bound, false}, "garbage": {"x.y.z", false}, "forged": {forged, true}} {
		t.Run(name, func(t *testing.T) {
			_, ok, err := a.AuthenticateToken(t.Context(), tt.token)
			if ok || (err != nil) != tt.fails {
				t.Errorf("got %v %v", ok, err)
			}
		})
	}
}

func TestLegacyClaimsMissing(t *testing.T) {
	full := legacyClaims{ServiceAccountName: "sa", ServiceAccountUID: "1", SecretName: "s", Namespace: "ns"}
	for name, tt := range map[string]struct {
		subject string
		change  func(*legacyClaims)
		err     string
	}{
		"sub":       {change: func(*legacyClaims) {}, err: "sub claim is missing"},
		"namespace": {"system:serviceaccount:ns:sa", func(c *legacyClaims) { c.Namespace = "" }, "namespace claim is missing"},
		"secret":    {"system:serviceaccount:ns:sa", func(c *legacyClaims) { c.SecretName = "" }, "secretName claim is missing"},
		"account": {"system:serviceaccount:ns:sa", func(c *legacyClaims) { c.ServiceAccountName = "" },
			"serviceAccountName claim is missing"},
		"uid": {"system:serviceaccount:ns:sa", func(c *legacyClaims) { c.ServiceAccountUID = "" },
			"serviceAccountUID claim is missing"},
		"other_namespace": {"system:serviceaccount:x:sa", func(*legacyClaims) {}, "sub claim is invalid"},
		"other_account":   {"system:serviceaccount:ns:x", func(*legacyClaims) {}, "sub claim is invalid"},
		"no_account":      {"system:admin", func(*legacyClaims) {}, "sub claim is invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			c := full
			tt.change(&c)
			if err := c.check(tt.subject); err == nil || err.Error() != tt.err {
				t.Errorf("got %v, want %s", err, tt.err)
			}
		})
	}
}
