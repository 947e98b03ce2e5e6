package token

import (
	"context"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// MaxBytes is the longest token that is looked at. Tokens of service accounts
// take about 1 KiB, those of identity providers with hundreds of groups some tens.
const MaxBytes = 64 << 10

// Bounded refuses tokens that are longer than MaxBytes before they are hashed,
// parsed or sent anywhere.
type Bounded struct{ authenticator.Token }

// AuthenticateToken implements authenticator.Token.
func (b Bounded) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if len(token) > MaxBytes {
		return nil, false, nil
	}
	return b.Token.AuthenticateToken(ctx, token)
}
