package volume

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTokensOfASilentAPI: a token that grew old is used without a question where
// nobody would answer; it is renewed when the API is back.
func TestTokensOfASilentAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, silent := 0, false
		c := &TokenCache{
			Saved:  TokenTimes{InMemory{}},
			Silent: func() bool { return silent },
			Request: func(context.Context, string, string,
				*authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
				if asked++; silent {
					return nil, errors.New("no route to host")
				}
				ends := metav1.NewTime(time.Now().Add(time.Hour))
				return &authenticationv1.TokenRequest{
					Status: authenticationv1.TokenRequestStatus{Token: "t", ExpirationTimestamp: ends}}, nil
			},
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
		for _, step := range []struct {
			silent bool
			after  time.Duration
			asked  int
		}{{false, 0, 1}, {true, time.Hour, 1}, {false, time.Minute, 2}, {false, time.Minute, 2}} {
			silent = step.silent
			time.Sleep(step.after)
			if _, err := c.Bound(t.Context(), p, "", nil); err != nil || asked != step.asked {
				t.Errorf("%+v: %d requests, %v", step, asked, err)
			}
		}
		silent = true
		if _, err := c.Bound(t.Context(), p, "another", nil); err == nil || asked != 3 {
			t.Errorf("one that is not there: %v, %d requests", err, asked)
		}
	})
}
