package volume

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxTokenAge is when a token is renewed at the latest.
const maxTokenAge = 24 * time.Hour

// A token of a coordinator whose clock is more than aheadMost ahead of this node's is good
// for nothing once that is set right, and is renewed each aheadWait until then.
const (
	aheadMost = time.Minute
	aheadWait = 5 * time.Minute
)

// silentWait is when a token is tried to be renewed again.
const silentWait = time.Minute

// SavedToken is a token with its times.
type SavedToken struct {
	Token string `json:"token"`
	// Issued is by this node's clock, Expires by the coordinator's.
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
}

// PodTokens are the tokens of one pod by audience and lifetime.
type PodTokens map[string]SavedToken

// Saved keeps the tokens of pods, by UID, over restarts.
type Saved interface {
	Get(uid string) (*PodTokens, error)
	Put(uid string, t *PodTokens) error
	Delete(uid string) error
}

// TokenCache gets tokens from the API and keeps each until it grows old. A
// token that cannot be renewed stays in use: the API may be away.
type TokenCache struct {
	Request func(ctx context.Context, namespace, account string,
		r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Saved Saved
	// Silent tells that it is in vain to ask the API; nil: it never is.
	Silent func() bool

	mu sync.Mutex
}

// Token implements Tokens.
func (c *TokenCache) Token(
	ctx context.Context, p *corev1.Pod, s *corev1.ServiceAccountTokenProjection,
) (string, time.Time, error) {
	t, at, err := c.token(ctx, p, s.Audience, s.ExpirationSeconds)
	return t.Token, at, err
}

// Bound implements Tokens.
func (c *TokenCache) Bound(ctx context.Context, p *corev1.Pod, audience string, seconds *int64) (SavedToken, error) {
	t, _, err := c.token(ctx, p, audience, seconds)
	return t, err
}

func (c *TokenCache) token(ctx context.Context, p *corev1.Pod, audience string, lifetime *int64) (
	SavedToken, time.Time, error) {
	seconds := int64(3600)
	if lifetime != nil {
		seconds = *lifetime
	}
	key := fmt.Sprintf("%s/%d", audience, seconds)
	old, known := c.load(string(p.UID))[key]
	now := time.Now().Round(0) // the age is told by what the clock says, before and after it was set
	life := time.Duration(seconds) * time.Second
	if at := renewAt(old, life); known && now.Before(at) && !now.Before(old.Issued) {
		return old, at, nil // else it is old, or the clock was set back: nobody knows how old
	}
	again := now.Add(silentWait)
	if now.Before(old.Issued) {
		again = now // nobody takes it: the coordinator's certificates may just be made again
	}
	if known && c.Silent != nil && c.Silent() {
		return old, again, nil
	}
	got, err := c.Request(ctx, p.Namespace, account(p), request(p, audience, seconds))
	if err != nil {
		if known && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			return old, again, nil
		}
		return SavedToken{}, time.Time{}, fmt.Errorf("failed to fetch token: %w", err)
	}
	t := SavedToken{Token: got.Status.Token, Issued: now, Expires: got.Status.ExpirationTimestamp.Time}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.read(string(p.UID))
	all[key] = t
	if err := c.Saved.Put(string(p.UID), &all); err != nil {
		return SavedToken{}, time.Time{}, err
	}
	return t, renewAt(t, life), nil
}

func request(p *corev1.Pod, audience string, seconds int64) *authenticationv1.TokenRequest {
	r := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name,
			UID: p.UID},
	}}
	if audience != "" {
		r.Spec.Audiences = []string{audience}
	}
	return r
}

func account(p *corev1.Pod) string {
	if p.Spec.ServiceAccountName == "" {
		return "default"
	}
	return p.Spec.ServiceAccountName
}

func (c *TokenCache) load(uid string) PodTokens {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.read(uid)
}

// read returns what is kept; what is damaged counts as missing.
func (c *TokenCache) read(uid string) PodTokens {
	t, err := c.Saved.Get(uid)
	if err != nil || t == nil || *t == nil {
		return PodTokens{}
	}
	return *t
}

// Forget removes the tokens of a pod.
func (c *TokenCache) Forget(uid string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Saved.Delete(uid)
}

// renewAt is when four fifths of the token's life, or a day, are over; a
// little earlier by chance, so that not all are renewed at once. asked is the life that it
// was asked for.
func renewAt(t SavedToken, asked time.Duration) time.Time {
	has := t.Expires.Sub(t.Issued)
	life := min(asked*4/5, maxTokenAge)
	switch {
	case has > asked+aheadMost:
		life = min(life, aheadWait)
	case has > 0: // else this clock is ahead by more than the token's life
		life = min(life, has*4/5)
	}
	spread := time.Duration(rand.Int64N(int64(life)/50 + 1))
	return t.Issued.Add(life - spread)
}
