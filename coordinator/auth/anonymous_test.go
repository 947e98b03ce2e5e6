package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/config"
)

// Without a credential one is system:anonymous, where the operator says nothing
// else; a bad credential is never anonymous.
func TestAnonymous(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true, conditions: [{path: /apis}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config       config.Authentication
		health, apis bool
	}{
		"default":   {config.Authentication{}, true, true},
		"on":        {config.Authentication{AnonymousAuth: ptr.To(true)}, true, true},
		"off":       {config.Authentication{AnonymousAuth: ptr.To(false)}, false, false},
		"from_file": {config.Authentication{AuthenticationConfig: file}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(Config{SigningKey: key, Authentication: c.config})
			if err != nil {
				t.Fatal(err)
			}
			for path, want := range map[string]bool{"/livez": c.health, "/apis": c.apis} {
				if _, ok, err := a.Authenticator.AuthenticateRequest(
					httptest.NewRequest("GET", path, nil)); ok != want || err != nil {
					t.Errorf("%s: %v, %v, want %v", path, ok, err, want)
				}
				bad := httptest.NewRequest("GET", path, nil)
				bad.Header.Set("Authorization", "Bearer guess")
				if _, ok, err := a.Authenticator.AuthenticateRequest(bad); ok || err == nil {
					t.Errorf("%s with a bad token: %v, %v", path, ok, err)
				}
			}
		})
	}
	_, err = New(
		Config{SigningKey: key,
			Authentication: config.Authentication{AuthenticationConfig: file, AnonymousAuth: ptr.To(true)}})
	if err == nil || !strings.Contains(err.Error(), "remove the field anonymousAuth") {
		t.Errorf("both: %v", err)
	}
}
