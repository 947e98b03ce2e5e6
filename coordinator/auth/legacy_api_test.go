package auth_test

import (
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/auth"
	"github.com/shoal-project/shoal/coordinator/auth/token"
)

// A Secret's token is its account's, its use is noted in the Secret, and a mark
// takes it out of use.
func TestSecretToken(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	c.namespace(t, "robots")
	sa, err := c.admin.CoreV1().ServiceAccounts("robots").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, create)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := c.Keys.ServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := token.NewKeys(signer)
	if err != nil {
		t.Fatal(err)
	}
	issuer := token.NewIssuer(token.IssuerConfig{Issuer: auth.DefaultIssuer, Keys: keys})
	secrets := c.admin.CoreV1().Secrets("robots")
	add := func(name string, labels map[string]string) string {
		t.Helper()
		secret, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: labels, Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"},
			},
			Type: corev1.SecretTypeServiceAccountToken,
		}, create)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := issuer.IssueLegacy(sa, secret)
		if err != nil {
			t.Fatal(err)
		}
		secret.Data = map[string][]byte{corev1.ServiceAccountTokenKey: []byte(signed)}
		if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return signed
	}
	review := func(signed string) authenticationv1.TokenReviewStatus {
		t.Helper()
		r, err := c.admin.AuthenticationV1().TokenReviews().Create(ctx,
			&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: signed}}, create)
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	signed := add("key", nil)
	eventually(t, "the token is good", func() bool { return review(signed).Authenticated })
	if u := review(signed).User; u.Username != "system:serviceaccount:robots:robot" || u.UID != string(sa.UID) {
		t.Errorf("user %+v", u)
	}
	who, err := c.bearer(t, signed).AuthenticationV1().SelfSubjectReviews().
		Create(ctx, &authenticationv1.SelfSubjectReview{}, create)
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:robots:robot" {
		t.Errorf("its holder is %+v, %v", who, err)
	}
	used, err := secrets.Get(ctx, "key", get)
	if err != nil {
		t.Fatal(err)
	}
	if day, err := time.Parse(time.DateOnly, used.Labels[token.LastUsedLabel]); err != nil ||
		time.Since(day) > 48*time.Hour {
		t.Errorf("last used %q", used.Labels[token.LastUsedLabel])
	}
	marked := add("marked", map[string]string{token.InvalidSinceLabel: "2020-01-01"})
	eventually(t, "the mark counts", func() bool {
		status := review(marked)
		return !status.Authenticated && strings.Contains(status.Error, "has been marked invalid")
	})
}
