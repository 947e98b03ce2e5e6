package leader_test

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/shoal-project/shoal/coordinator/leader"
)

// A leader whose renewals hang stops before anybody else may lead, however long
// each of them takes.
func TestLeaderStopsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var hang atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !hang.Load() {
				return false, nil, nil
			}
			time.Sleep(5 * time.Second)
			return true, nil, apierrors.NewTimeoutError("the store is away", 1)
		})
		elector := leader.Elector{Client: client, Identity: "a", Log: slog.New(slog.DiscardHandler)}
		ctx, stop := context.WithCancel(t.Context())
		lost := make(chan struct{})
		var once sync.Once
		ended := make(chan error)
		go func() {
			ended <- elector.Run(ctx, func(ctx context.Context) error {
				<-ctx.Done()
				once.Do(func() { close(lost) })
				return nil
			})
		}()
		time.Sleep(9 * time.Second) // two renewals, at 4 s and 8 s
		hang.Store(true)
		select {
		case <-lost:
		case <-time.After(13 * time.Second): // 14 s after the last that succeeded
			t.Error("it still leads when the next one may begin")
		}
		hang.Store(false)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
