package volume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxTokenAge is when a token is renewed at the latest.
const maxTokenAge = 24 * time.Hour

// SavedToken is a token with its times, as it is kept over restarts.
type SavedToken struct {
	Token   string    `json:"token"`
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
}

// Saved keeps tokens by key over restarts.
type Saved interface {
	Get(key string) (*SavedToken, error)
	Put(key string, t *SavedToken) error
	Delete(key string) error
}

// TokenCache gets tokens from the API and keeps each until it grows old. A
// token that cannot be renewed stays in use: the API may be away.
type TokenCache struct {
	Request func(ctx context.Context, namespace, account string, r *authv1.TokenRequest) (*authv1.TokenRequest, error)
	Saved   Saved

	mu sync.Mutex
}

// Token implements Tokens.
func (c *TokenCache) Token(ctx context.Context, p *v1.Pod, s *v1.ServiceAccountTokenProjection) (string, time.Time, error) {
	seconds := int64(3600)
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	key := fmt.Sprintf("%s_%s_%d", p.UID, s.Audience, seconds)
	c.mu.Lock()
	old, err := c.Saved.Get(key)
	c.mu.Unlock()
	if err != nil {
		old = nil // damaged: ask for another
	}
	now := time.Now()
	if old != nil && now.Before(renewAt(old)) {
		return old.Token, renewAt(old), nil
	}
	r := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
	}}
	if s.Audience != "" {
		r.Spec.Audiences = []string{s.Audience}
	}
	account := p.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	got, err := c.Request(ctx, p.Namespace, account, r)
	if err != nil {
		if old != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			return old.Token, now.Add(time.Minute), nil
		}
		return "", time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	t := &SavedToken{Token: got.Status.Token, Issued: now, Expires: got.Status.ExpirationTimestamp.Time}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Saved.Put(key, t); err != nil {
		return "", time.Time{}, err
	}
	return t.Token, renewAt(t), nil
}

// Forget removes the tokens of a pod; keys are those that are kept.
func (c *TokenCache) Forget(keys []string, uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if strings.HasPrefix(k, uid+"_") {
			if err := c.Saved.Delete(k); err != nil {
				return // expires by itself
			}
		}
	}
}

// renewAt is when four fifths of the token's life, or a day, are over; a
// little earlier by chance, so that not all are renewed at once.
func renewAt(t *SavedToken) time.Time {
	life := min(t.Expires.Sub(t.Issued)*4/5, maxTokenAge)
	if life <= 0 {
		return t.Issued
	}
	spread := time.Duration(rand.Int64N(int64(life)/50 + 1))
	return t.Issued.Add(life - spread)
}
