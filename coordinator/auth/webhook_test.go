package auth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/shoal-project/shoal/coordinator/config"
)

// A service reviews tokens, each once while its answer is remembered.
func TestTokenWebhook(t *testing.T) {
	asked := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked++
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User = authenticationv1.UserInfo{Username: "anna", Groups: []string{"ops"}}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer service.Close()
	c := config.Default().Authentication
	c.AuthenticationTokenWebhookVersion = "v1"
	c.AuthenticationTokenWebhookConfigFile = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(
		`{"clusters": [{"name": "a", "cluster": {"server": %q}}], "contexts": [{"name": "a", "context": {"cluster": "a"}}], "current-context": "a"}`,
		service.URL)
	if err := os.WriteFile(c.AuthenticationTokenWebhookConfigFile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := newTokenWebhook(c, authenticator.Audiences{"api"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		resp, ok, err := tokens.AuthenticateToken(context.Background(), "good")
		if err != nil || !ok || resp.User.GetName() != "anna" || len(resp.User.GetGroups()) != 1 {
			t.Errorf("good: %v, %v, %v", resp, ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(context.Background(), "bad"); ok || err != nil {
			t.Errorf("bad: %v, %v", ok, err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times, want 2", asked)
	}
}
