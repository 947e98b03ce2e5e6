package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/shoal-project/shoal/coordinator/auth/token"
)

// TestStrangersCostNoRead: bearers of unknown tokens, of bootstrap tokens most of
// all, do not make the server read its store.
func TestStrangersCostNoRead(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{SigningKey: key})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"}, Type: "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"),
			"usage-bootstrap-authentication": []byte("true")},
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	if err := a.Connect(client, factory); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	client.ClearActions()
	for _, c := range []struct {
		name, token string
		known       bool
	}{
		{"known", "abcdef.0123456789abcdef", true},
		{"wrong_secret", "abcdef.0123456789abcdeg", false},
		{"unknown", "zzzzzz.0123456789abcdef", false},
		{"no_token", "abc", false},
		{"too_long", "a." + strings.Repeat("b", token.MaxBytes) + ".c", false},
	} {
		if _, ok, _ := a.Token.AuthenticateToken(t.Context(), c.token); ok != c.known {
			t.Errorf("%s: known is %v, want %v", c.name, ok, c.known)
		}
	}
	for _, action := range client.Actions() {
		if verb := action.GetVerb(); verb != "watch" { // those of the informers may come late
			t.Errorf("request: %s %s", verb, action.GetResource().Resource)
		}
	}
}

// TestLongTokensAreNotParsed: the limit holds before anything looks at a token.
func TestLongTokensAreNotParsed(t *testing.T) {
	asked := false
	b := token.Bounded{
		Token: authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) {
			asked = true
			return nil, false, nil
		})}
	if _, _, err := b.AuthenticateToken(t.Context(), strings.Repeat("a", token.MaxBytes+1)); err != nil || asked {
		t.Errorf("asked %v, error %v", asked, err)
	}
	if _, _, err := b.AuthenticateToken(t.Context(), strings.Repeat("a", token.MaxBytes)); err != nil || !asked {
		t.Errorf("asked %v, error %v", asked, err)
	}
}
