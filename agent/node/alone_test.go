package node

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestAlone: only who renews the node's Lease keeps a copy of its machine from starting.
func TestAlone(t *testing.T) {
	lease := func(ago time.Duration) *coordinationv1.Lease {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", Namespace: leases}}
		seconds := int32(40)
		at := metav1.NewMicroTime(time.Now().Add(-ago))
		l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &seconds, &at
		return l
	}
	const s = time.Second
	for name, c := range map[string]struct {
		// renewed is how long ago somebody renewed the Lease; -1: there is none.
		renewed time.Duration
		// renews is how often somebody does, fails for how long no coordinator answers.
		renews, fails time.Duration
		want          error
		least, most   time.Duration // how long it takes
	}{
		"no lease":       {renewed: -1},
		"gone":           {renewed: time.Hour, least: 15 * s, most: 20 * s},
		"wrong clock":    {renewed: 1000 * time.Hour, renews: 10 * s, want: ErrTwin, least: 2 * s, most: 13 * s},
		"lives":          {renews: 10 * s, want: ErrTwin, least: 2 * s, most: 13 * s},
		"nobody answers": {renewed: time.Hour, fails: time.Hour, least: 3615 * s, most: 3620 * s},
		"never answers": {renewed: time.Hour, fails: 10 * time.Hour, want: context.DeadlineExceeded,
			least: 7200 * s, most: 7210 * s},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset()
				began := time.Now()
				if c.renewed >= 0 {
					if err := client.Tracker().Add(lease(c.renewed)); err != nil {
						t.Fatal(err)
					}
				}
				client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					since := time.Since(began)
					if since < c.fails {
						return true, nil, errors.New("connection refused")
					}
					if c.renews > 0 {
						return true, lease(c.renewed + since%c.renews), nil
					}
					return false, nil, nil
				})
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				defer cancel()
				err := Alone(ctx, client.CoordinationV1().Leases(leases), "n", slog.New(slog.DiscardHandler))
				if took := time.Since(began); !errors.Is(err, c.want) || took < c.least || took > c.most {
					t.Errorf("%v after %s, want %v after %s to %s", err, took, c.want, c.least, c.most)
				}
			})
		})
	}
}
