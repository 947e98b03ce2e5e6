package members

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	bootstrap "k8s.io/cluster-bootstrap/token/api"

	"github.com/shoal-project/shoal/coordinator/joining"
)

// Tokens are the Secrets of bootstrap tokens.
type Tokens struct{ Client kubernetes.Interface }

// spendTries is how often the Secret may have changed meanwhile.
const spendTries = 5

func (t Tokens) secret(ctx context.Context, user string) (*corev1.Secret, error) {
	id, ok := strings.CutPrefix(user, bootstrap.BootstrapUserPrefix)
	if !ok {
		return nil, errors.New("not a token")
	}
	return t.Client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, bootstrap.BootstrapTokenSecretPrefix+id,
		metav1.GetOptions{})
}

// Secret is that of the token that a user came with.
func (t Tokens) Secret(ctx context.Context, user string) (string, error) {
	s, err := t.secret(ctx, user)
	if err != nil {
		return "", err
	}
	return string(s.Data[bootstrap.BootstrapTokenSecretKey]), nil
}

// Spend counts a use of the token, but once for each newcomer, which may ask again.
func (t Tokens) Spend(ctx context.Context, user, peerURL string) error {
	for range spendTries {
		s, err := t.secret(ctx, user)
		if err != nil {
			return err
		}
		if joining.UsedUp(s) && !joining.Counted(s, peerURL) {
			return errors.New("the token has been used by as many machines as it is for: make another with `shoal token create --coordinator`")
		}
		next := joining.CountUse(s, peerURL, time.Now())
		if next == nil {
			return nil
		}
		_, err = t.Client.CoreV1().Secrets(s.Namespace).Update(ctx, next, metav1.UpdateOptions{})
		if err == nil || !apierrors.IsConflict(err) {
			return err
		}
	}
	return fmt.Errorf("the token was written to by others %d times meanwhile: try again", spendTries)
}
