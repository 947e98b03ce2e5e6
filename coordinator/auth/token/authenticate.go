package token

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	jwtinfo "k8s.io/apiserver/pkg/authentication/token/jwt"
)

// Objects reads what a token may be bound to. It must be no staler than the
// moment at which the token was issued.
type Objects interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Node(ctx context.Context, name string) (*corev1.Node, error)
}

// AuthenticatorConfig is what NewAuthenticator needs.
type AuthenticatorConfig struct {
	Issuer    string
	Audiences []string // the API server's
	Keys      *Keys
	Objects   Objects
}

// Authenticator checks service account tokens: signature, time, audience, and
// that every object the token is bound to still exists.
type Authenticator struct {
	AuthenticatorConfig
}

// NewAuthenticator returns an authenticator for tokens signed with any of the keys.
func NewAuthenticator(c AuthenticatorConfig) *Authenticator { return &Authenticator{c} }

// AuthenticateToken implements authenticator.Token. Tokens of other issuers are
// left to others: not ok and no error.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return a.authenticate(ctx, token, time.Now())
}

func (a *Authenticator) authenticate(ctx context.Context, token string,
	now time.Time) (*authenticator.Response, bool, error) {
	public, private := &jwt.Claims{}, &claims{}
	audiences, ok, err := a.open(ctx, token, public, private)
	if !ok {
		return nil, false, err
	}
	if err := checkTime(public, now); err != nil {
		return nil, false, err
	}
	info, err := a.checkBound(ctx, &private.Kubernetes, now)
	if err != nil {
		return nil, false, err
	}
	w := private.Kubernetes.WarnAfter
	switch {
	case w == nil || *w == 0:
	case !now.After(w.Time()):
		validTokens.Inc()
	default:
		staleTokens.Inc()
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %d", public.Subject, now.Unix()-w.Time().Unix()))
	}
	info.CredentialID = jwtinfo.CredentialIDForJTI(public.ID)
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

// open reads the claims of a token of a.Issuer whose signature and audiences are
// right; it is not ok without an error for tokens of others.
func (a *Authenticator) open(ctx context.Context, token string, public *jwt.Claims,
	private any) (authenticator.Audiences, bool, error) {
	if !issuedBy(token, a.Issuer) {
		return nil, false, nil
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, false, nil
	}
	if err := a.verify(parsed, public, private); err != nil {
		return nil, false, err
	}
	if public.Issuer != a.Issuer {
		return nil, false, fmt.Errorf("token issuer %q is invalid", public.Issuer)
	}
	audiences, err := a.acceptedAudiences(ctx, authenticator.Audiences(public.Audience))
	return audiences, err == nil, err
}

// verify tries the key that the token names.
func (a *Authenticator) verify(parsed *jwt.JSONWebToken, out ...any) error {
	known := a.Keys.public()
	keys := known.Keys
	if id := parsed.Headers[0].KeyID; id != "" {
		keys = known.Key(id)
	}
	err := errors.New("invalid signature, no keys found")
	for i := range keys {
		if err = parsed.Claims(&keys[i], out...); err == nil {
			return nil
		}
	}
	return err
}

func (a *Authenticator) acceptedAudiences(ctx context.Context,
	has authenticator.Audiences) (authenticator.Audiences, error) {
	want, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		want = a.Audiences
	}
	if len(has) == 0 {
		has = a.Audiences
	}
	both := has.Intersect(want)
	if len(both) == 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", has, want)
	}
	return both, nil
}

func checkTime(public *jwt.Claims, now time.Time) error {
	switch err := public.Validate(jwt.Expected{Time: now}); {
	case err == nil:
		return nil
	case errors.Is(err, jwt.ErrExpired):
		return errors.New("service account token has expired")
	case errors.Is(err, jwt.ErrNotValidYet):
		return errors.New("service account token is not valid yet")
	case errors.Is(err, jwt.ErrIssuedInTheFuture):
		return errors.New("service account token is issued in the future")
	default:
		return fmt.Errorf("service account token claims could not be validated: %w", err)
	}
}

var errInvalidated = errors.New("service account token has been invalidated")

// checkBound reads every object that the token is bound to.
func (a *Authenticator) checkBound(ctx context.Context, s *subject,
	now time.Time) (*serviceaccount.ServiceAccountInfo, error) {
	deadline := now.Add(-jwt.DefaultLeeway)
	sa, err := a.Objects.ServiceAccount(ctx, s.Namespace, s.ServiceAccount.Name)
	if err != nil {
		return nil, err
	}
	if string(sa.UID) != s.ServiceAccount.UID {
		return nil, fmt.Errorf("service account UID (%s) does not match claim (%s)", sa.UID, s.ServiceAccount.UID)
	}
	if deletedBefore(sa.DeletionTimestamp, deadline) {
		return nil, fmt.Errorf("service account %s/%s has been deleted", s.Namespace, s.ServiceAccount.Name)
	}
	info := &serviceaccount.ServiceAccountInfo{Namespace: s.Namespace, Name: sa.Name, UID: string(sa.UID)}
	if s.Secret != nil {
		secret, err := a.Objects.Secret(ctx, s.Namespace, s.Secret.Name)
		if err != nil || deletedBefore(secret.DeletionTimestamp, deadline) {
			return nil, errInvalidated
		}
		if err := sameUID("secret", secret.UID, s.Secret.UID); err != nil {
			return nil, err
		}
	}
	if s.Pod != nil {
		pod, err := a.Objects.Pod(ctx, s.Namespace, s.Pod.Name)
		if err != nil || deletedBefore(pod.DeletionTimestamp, deadline) {
			return nil, errInvalidated
		}
		if err := sameUID("pod", pod.UID, s.Pod.UID); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = s.Pod.Name, s.Pod.UID
	}
	if s.Node != nil {
		// A pod's token only tells its node; it does not die with it.
		if s.Pod == nil {
			if err := a.checkNode(ctx, s.Node, deadline); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = s.Node.Name, s.Node.UID
	}
	return info, nil
}

func (a *Authenticator) checkNode(ctx context.Context, claim *ref, deadline time.Time) error {
	node, err := a.Objects.Node(ctx, claim.Name)
	if err != nil || deletedBefore(node.DeletionTimestamp, deadline) {
		return errInvalidated
	}
	return sameUID("node", node.UID, claim.UID)
}

func sameUID(kind string, is types.UID, claim string) error {
	if string(is) == claim {
		return nil
	}
	return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", kind, is, kind, claim)
}

func deletedBefore(at *metav1.Time, deadline time.Time) bool {
	return at != nil && at.Time.Before(deadline)
}

// issuedBy reads the issuer before any signature is checked, to leave other
// issuers' tokens to other authenticators cheaply.
func issuedBy(token, issuer string) bool {
	_, rest, ok := strings.Cut(token, ".")
	payload, signature, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || strings.Contains(signature, ".") {
		return false
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return false
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	return json.Unmarshal(raw, &unverified) == nil && unverified.Issuer == issuer
}
