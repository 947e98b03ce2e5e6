package token

import (
	"context"
	"crypto/subtle"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrap "k8s.io/cluster-bootstrap/token/api"
	bootstraptoken "k8s.io/cluster-bootstrap/token/util"
	bootstrapsecret "k8s.io/cluster-bootstrap/util/secrets"
)

// Bootstrap authenticates bootstrap tokens ("id.secret") against the Secrets
// bootstrap-token-ID of kube-system.
type Bootstrap struct {
	Secret func(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// AuthenticateToken implements authenticator.Token.
func (b Bootstrap) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if !bootstraptoken.IsValidBootstrapToken(token) {
		return nil, false, nil
	}
	id, secretPart := token[:6], token[7:]
	secret, err := b.Secret(ctx, metav1.NamespaceSystem, bootstraptoken.BootstrapTokenSecretName(id))
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	if !matches(secret, id, secretPart) || bootstrapsecret.HasExpired(secret, time.Now()) {
		return nil, false, nil
	}
	groups, err := bootstrapsecret.GetGroups(secret)
	if err != nil {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: bootstrap.BootstrapUserPrefix + id, Groups: groups}},
		true, nil
}

func matches(s *corev1.Secret, id, secretPart string) bool {
	get := func(key string) string { return bootstrapsecret.GetData(s, key) }
	return s.DeletionTimestamp == nil &&
		s.Type == bootstrap.SecretTypeBootstrapToken &&
		subtle.ConstantTimeCompare([]byte(get(bootstrap.BootstrapTokenSecretKey)), []byte(secretPart)) == 1 &&
		get(bootstrap.BootstrapTokenIDKey) == id &&
		get(bootstrap.BootstrapTokenUsageAuthentication) == "true"
}
