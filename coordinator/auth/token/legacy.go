package token

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/warning"
)

const (
	// LegacyIssuer is the issuer of the tokens that Secrets of the type
	// kubernetes.io/service-account-token hold.
	LegacyIssuer = "kubernetes/serviceaccount"

	// LastUsedLabel has the day on which a Secret's token was used last,
	// InvalidSinceLabel that since which it is refused. Days are those of UTC,
	// in the layout time.DateOnly.
	LastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	InvalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
)

// legacyClaims are the private claims of a Secret's token.
type legacyClaims struct {
	ServiceAccountName string `json:"kubernetes.io/serviceaccount/service-account.name"`
	ServiceAccountUID  string `json:"kubernetes.io/serviceaccount/service-account.uid"`
	SecretName         string `json:"kubernetes.io/serviceaccount/secret.name"`
	Namespace          string `json:"kubernetes.io/serviceaccount/namespace"`
}

// IssueLegacy signs the token of a Secret. It has no end: it is good as long as
// the Secret holds it and the account exists.
func (i *Issuer) IssueLegacy(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	token, err := jwt.Signed(i.keys.signer()).Claims(legacyClaims{
		ServiceAccountName: sa.Name,
		ServiceAccountUID:  string(sa.UID),
		SecretName:         secret.Name,
		Namespace:          sa.Namespace,
	}).Claims(jwt.Claims{
		Issuer:  LegacyIssuer,
		Subject: serviceaccount.MakeUsername(sa.Namespace, sa.Name),
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign token of secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return token, nil
}

// LegacyObjects reads what a Secret's token is bound to, and notes its use.
type LegacyObjects interface {
	Objects
	// PatchSecret changes a Secret by a merge patch.
	PatchSecret(ctx context.Context, namespace, name string, patch []byte) error
}

// LegacyConfig is what NewLegacyAuthenticator needs.
type LegacyConfig struct {
	Audiences []string // the API server's
	Keys      *Keys
	Objects   LegacyObjects
	Log       *slog.Logger
}

// LegacyAuthenticator checks the tokens of Secrets, and keeps the day of their
// last use in a label of theirs (KEP-2799).
type LegacyAuthenticator struct {
	tokens  *Authenticator
	objects LegacyObjects
	log     *slog.Logger
}

// NewLegacyAuthenticator returns an authenticator for tokens signed with any of
// the keys.
func NewLegacyAuthenticator(c LegacyConfig) *LegacyAuthenticator {
	registerLegacyMetrics()
	tokens := NewAuthenticator(AuthenticatorConfig{
		Issuer: LegacyIssuer, Audiences: c.Audiences, Keys: c.Keys, Objects: c.Objects,
	})
	return &LegacyAuthenticator{tokens: tokens, objects: c.Objects, log: c.Log}
}

// AuthenticateToken implements authenticator.Token. Tokens of other issuers are
// left to others: not ok and no error.
func (a *LegacyAuthenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return a.authenticate(ctx, token, time.Now())
}

func (a *LegacyAuthenticator) authenticate(ctx context.Context, token string,
	now time.Time) (*authenticator.Response, bool, error) {
	public, private := &jwt.Claims{}, &legacyClaims{}
	audiences, ok, err := a.tokens.open(ctx, token, public, private)
	if !ok {
		return nil, false, err
	}
	if len(public.Audience) == 0 {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token", public.Subject)
		legacyTokens.WithContext(ctx).Inc()
	}
	if err := private.check(public.Subject); err != nil {
		return nil, false, err
	}
	secret, sa, err := a.bound(ctx, token, private)
	if err != nil {
		return nil, false, err
	}
	if err := a.track(ctx, secret, sa, now); err != nil {
		return nil, false, err
	}
	info := serviceaccount.ServiceAccountInfo{Namespace: sa.Namespace, Name: sa.Name, UID: string(sa.UID)}
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

// check says which claim is missing or contradicts the subject.
func (c *legacyClaims) check(subject string) error {
	for _, claim := range []struct{ name, value string }{
		{"sub", subject},
		{"namespace", c.Namespace},
		{"secretName", c.SecretName},
		{"serviceAccountName", c.ServiceAccountName},
		{"serviceAccountUID", c.ServiceAccountUID},
	} {
		if claim.value == "" {
			return errors.New(claim.name + " claim is missing")
		}
	}
	namespace, name, err := serviceaccount.SplitUsername(subject)
	if err != nil || namespace != c.Namespace || name != c.ServiceAccountName {
		return errors.New("sub claim is invalid")
	}
	return nil
}

// bound reads the Secret, which must hold this very token, and the account.
func (a *LegacyAuthenticator) bound(ctx context.Context, token string,
	c *legacyClaims) (*corev1.Secret, *corev1.ServiceAccount, error) {
	secret, err := a.objects.Secret(ctx, c.Namespace, c.SecretName)
	if err != nil || secret.DeletionTimestamp != nil {
		return nil, nil, errors.New("Token has been invalidated")
	}
	if subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) == 0 {
		return nil, nil, errors.New("Token does not match server's copy")
	}
	sa, err := a.objects.ServiceAccount(ctx, c.Namespace, c.ServiceAccountName)
	switch {
	case err != nil:
		return nil, nil, err
	case sa.DeletionTimestamp != nil:
		return nil, nil, fmt.Errorf("ServiceAccount %s/%s has been deleted", c.Namespace, c.ServiceAccountName)
	case string(sa.UID) != c.ServiceAccountUID:
		return nil, nil, fmt.Errorf("ServiceAccount UID (%s) does not match claim (%s)", sa.UID, c.ServiceAccountUID)
	}
	return secret, sa, nil
}

// track notes a use, and refuses the token of a Secret that is marked invalid.
func (a *LegacyAuthenticator) track(ctx context.Context, secret *corev1.Secret, sa *corev1.ServiceAccount,
	now time.Time) error {
	defer a.noteUse(ctx, secret, now)
	if secret.Labels[InvalidSinceLabel] != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated",
			secret.Name+"/"+secret.Namespace)
		invalidLegacyTokens.WithContext(ctx).Inc()
		return fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid. "+
			"Use tokens from the TokenRequest API or manually created secret-based tokens, "+
			"or remove the '%s' label from the secret to temporarily allow use of this token",
			secret.Namespace, secret.Name, sa.Namespace, sa.Name, InvalidSinceLabel)
	}
	if Referenced(sa, secret.Name) {
		warning.AddWarning(ctx, "", "Use tokens from the TokenRequest API or manually created secret-based tokens "+
			"instead of auto-generated secret-based tokens.")
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-autogenerated-secret", secret.Name)
		generatedLegacyTokens.WithContext(ctx).Inc()
		return nil
	}
	audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-manual-secret", secret.Name)
	manualLegacyTokens.WithContext(ctx).Inc()
	return nil
}

// Referenced tells whether the account lists the Secret, as it did those that
// Kubernetes made for it before v1.24.
func Referenced(sa *corev1.ServiceAccount, secret string) bool {
	for _, ref := range sa.Secrets {
		if ref.Name == secret {
			return true
		}
	}
	return false
}

// noteUse labels the Secret with today's date. A server whose clock is ahead may
// have written tomorrow's already. That it cannot be written refuses nobody.
func (a *LegacyAuthenticator) noteUse(ctx context.Context, secret *corev1.Secret, now time.Time) {
	today := now.UTC().Format(time.DateOnly)
	tomorrow := now.UTC().AddDate(0, 0, 1).Format(time.DateOnly)
	if used := secret.Labels[LastUsedLabel]; used == today || used == tomorrow {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": metav1.ObjectMeta{
		UID: secret.UID, Labels: map[string]string{LastUsedLabel: today},
	}})
	if err == nil {
		err = a.objects.PatchSecret(ctx, secret.Namespace, secret.Name, patch)
	}
	if err != nil {
		a.log.Warn("the last use of a service account token cannot be noted in its secret",
			"secret", secret.Namespace+"/"+secret.Name, "err", err)
	}
}
