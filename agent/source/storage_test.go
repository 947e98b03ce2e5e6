package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func csiDriver(name string, attach bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSIDriverSpec{AttachRequired: &attach}}
}

// TestCSIDriversAreFollowed: from the first question on, and not before.
func TestCSIDriversAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(csiDriver("a", true))
		w := watch.NewRaceFreeFake()
		client.PrependWatchReactor("csidrivers", clienttesting.DefaultWatchReactor(w, nil))
		ctx, cancel := context.WithCancel(t.Context())
		var changes atomic.Int32
		s := &Storage{Client: client, Changed: func() { changes.Add(1) }, Log: slog.New(slog.DiscardHandler)}
		s.Start(ctx)
		synctest.Wait()
		if n := len(client.Actions()); n > 0 {
			t.Errorf("%d requests before anybody asks", n)
		}
		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() {}, "true none"},
			{func() { w.Modify(csiDriver("a", false)) }, "false none"},
			{func() { w.Add(csiDriver("b", true)) }, "false true"},
			{func() { w.Delete(csiDriver("a", false)) }, "none true"},
		} {
			step.do()
			synctest.Wait()
			if got := attaches(t, s, "a") + " " + attaches(t, s, "b"); got != step.want {
				t.Errorf("got %s, want %s", got, step.want)
			}
		}
		if n := changes.Load(); n != 4 {
			t.Errorf("told of %d changes", n)
		}
		cancel()
		s.wg.Wait()
	})
}

func attaches(t *testing.T, s *Storage, name string) string {
	t.Helper()
	d, err := s.CSIDriver(t.Context(), name)
	switch {
	case err != nil:
		return err.Error()
	case d == nil:
		return "none"
	}
	return fmt.Sprint(*d.Spec.AttachRequired)
}

// TestCSIDriversOfASilentAPI: the question is answered by an error at once.
func TestCSIDriversOfASilentAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("list", "csidrivers", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
		ctx, cancel := context.WithCancel(t.Context())
		s := &Storage{Client: client, Log: slog.New(slog.DiscardHandler)}
		s.Start(ctx)
		if got := attaches(t, s, "a"); got != "connection refused" {
			t.Errorf("got %s", got)
		}
		s.Silent = func() bool { return true }
		asked := len(client.Actions())
		for name, ask := range map[string]func() error{
			"CSIDriver":  func() error { _, err := s.CSIDriver(t.Context(), "a"); return err },
			"Attachment": func() error { _, err := s.Attachment(t.Context(), "a"); return err },
			"Claim":      func() error { _, err := s.Claim(t.Context(), "ns", "a"); return err },
		} {
			if err := ask(); !errors.Is(err, errSilent) || len(client.Actions()) != asked {
				t.Errorf("%s of an API that is silent: %v, and %d requests", name, err, len(client.Actions())-asked)
			}
		}
		cancel()
		s.wg.Wait()
		if _, err := (&Storage{}).CSIDriver(t.Context(), "a"); !errors.Is(err, errNoAPI) {
			t.Errorf("without an API: %v", err)
		}
	})
}
