package bootstraptoken

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The signature is what kubeadm's library computes and verifies: this one is the
// vector of its own test.
func TestSignature(t *testing.T) {
	got := signature("Hello from the other side. I must have called a thousand times.", "joshua", "my voice is my passcode")
	if want := "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestSigner(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		name   string
		change map[string]string // "" takes a key away
		want   bool
	}{
		"good":           {want: true},
		"in_time":        {change: map[string]string{"expiration": "2026-01-01T00:00:01Z"}, want: true},
		"expired":        {change: map[string]string{"expiration": "2025-12-31T23:59:59Z"}},
		"bad_expiration": {change: map[string]string{"expiration": "tomorrow"}},
		"not_to_sign":    {change: map[string]string{"usage-bootstrap-signing": "false"}},
		"says_nothing":   {change: map[string]string{"usage-bootstrap-signing": ""}},
		"no_id":          {change: map[string]string{"token-id": ""}},
		"other_id":       {change: map[string]string{"token-id": "fedcba"}},
		"no_secret":      {change: map[string]string{"token-secret": ""}},
		"other_name":     {name: "my-token"},
		"short_name":     {name: "bootstrap-token-abc"},
	} {
		t.Run(name, func(t *testing.T) {
			data := map[string]string{
				"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true",
			}
			maps.Copy(data, tt.change)
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Data: map[string][]byte{}}
			if tt.name != "" {
				s.Name = tt.name
			}
			for k, v := range data {
				if v != "" {
					s.Data[k] = []byte(v)
				}
			}
			if id, secret, ok := signer(s, now); ok != tt.want ||
				ok && (id != "abcdef" || secret != "0123456789abcdef") {
				t.Errorf("got %s.%s %v", id, secret, ok)
			}
		})
	}
}
