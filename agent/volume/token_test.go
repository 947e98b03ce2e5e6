package volume

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestTokensAndClocks: how long a token of an hour is used, by when it was asked for and what
// the coordinator's clock was then.
func TestTokensAndClocks(t *testing.T) {
	for name, c := range map[string]struct {
		issued, coordinator time.Duration // from now, from issued
		least, most         time.Duration // until it is renewed
	}{
		"all_clocks_are_right":                        {0, 0, 47 * time.Minute, 48 * time.Minute},
		"half_an_hour_later":                          {-30 * time.Minute, 0, 17 * time.Minute, 18 * time.Minute},
		"the_coordinator_is_a_little_ahead":           {0, 50 * time.Second, 47 * time.Minute, 48 * time.Minute},
		"the_coordinator_is_a_day_ahead":              {0, 24 * time.Hour, 4 * time.Minute, aheadWait},
		"this_one_is_20_minutes_ahead":                {0, -20 * time.Minute, 31 * time.Minute, 32 * time.Minute},
		"this_one_is_a_day_ahead":                     {0, -24 * time.Hour, 47 * time.Minute, 48 * time.Minute},
		"this_one_was_a_day_ahead_and_was_set_back":   {24 * time.Hour, -24 * time.Hour, 0, 0},
		"all_were_a_day_ahead_and_were_set_back":      {24 * time.Hour, 0, 0, 0},
		"all_were_a_day_behind_and_were_set_right":    {-24 * time.Hour, 0, 0, 0},
		"this_one_was_years_behind_and_was_set_right": {-3e4 * time.Hour, 3e4 * time.Hour, 0, 0},
		"it_was_set_back_by_less_than_the_token_life": {20 * time.Minute, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked := 0
				tokens := &TokenCache{Saved: InMemory{}, Request: func(context.Context, string, string,
					*authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
					asked++
					ends := metav1.NewTime(time.Now().Add(time.Hour))
					return &authenticationv1.TokenRequest{
						Status: authenticationv1.TokenRequestStatus{Token: "new", ExpirationTimestamp: ends}}, nil
				}}
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
				issued := time.Now().Add(c.issued).Round(0)
				old := SavedToken{Token: "old", Issued: issued, Expires: issued.Add(c.coordinator + time.Hour)}
				if err := tokens.Saved.Put("u", &PodTokens{"/3600": old}); err != nil {
					t.Fatal(err)
				}
				_, at, err := tokens.Token(t.Context(), p, &corev1.ServiceAccountTokenProjection{})
				if renewed := asked > 0; err != nil || renewed != (c.most == 0) {
					t.Errorf("%s: renewed: %v, %v", name, renewed, err)
				}
				if wait := time.Until(at); c.most > 0 && (wait < c.least || wait > c.most) {
					t.Errorf("%s: renewed after %v", name, wait)
				}
			})
		})
	}
}

// TestTokenOfALaterClockIsTriedSoon: one that cannot be renewed is used, and one that nobody
// takes, as the clock was set back since, is tried again as soon as may be.
func TestTokenOfALaterClockIsTriedSoon(t *testing.T) {
	for ahead, want := range map[time.Duration]time.Duration{time.Hour: 0, -2 * time.Hour: silentWait} {
		tokens := &TokenCache{Saved: InMemory{}, Request: func(context.Context, string, string,
			*authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
			return nil, apierrors.NewUnauthorized("the certificate has ended")
		}}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
		issued := time.Now().Add(ahead)
		old := SavedToken{Token: "old", Issued: issued, Expires: issued.Add(time.Hour)}
		if err := tokens.Saved.Put("u", &PodTokens{"/3600": old}); err != nil {
			t.Fatal(err)
		}
		text, at, err := tokens.Token(t.Context(), p, &corev1.ServiceAccountTokenProjection{})
		if wait := time.Until(at); err != nil || text != "old" || wait > want || wait < want-10*time.Second {
			t.Errorf("issued %v from now: %q again after %v, want %v; %v", ahead, text, wait, want, err)
		}
	}
}

// TestClockSetWakesTokens: what waits for its time is looked at, and nothing else.
func TestClockSetWakesTokens(t *testing.T) {
	now := time.Now()
	waits := &entry{pod: &corev1.Pod{}, made: true, due: now.Add(24 * time.Hour)}
	never := &entry{pod: &corev1.Pod{}, made: true}
	m := &Manager{pods: map[types.UID]*entry{"a": waits, "b": never}}
	if due, _ := m.takeDue(now); len(due) > 0 {
		t.Fatalf("%d are due before", len(due))
	}
	m.ClockSet()
	if due, _ := m.takeDue(time.Now()); len(due) != 1 || due[0] != waits {
		t.Errorf("%d are due", len(due))
	}
	select {
	case <-m.woken():
	default:
		t.Error("nobody is woken")
	}
}
