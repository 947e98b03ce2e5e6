package controller_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/coordinator/controller"
)

func TestLoopRetriesAndRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := controller.New("test", 2, slog.New(slog.DiscardHandler))
		var calls atomic.Int32
		l.Reconciler = controller.Func(func(context.Context, string) (time.Duration, error) {
			switch calls.Add(1) {
			case 1:
				return 0, errors.New("first fails")
			case 2:
				return time.Minute, nil
			}
			return 0, nil
		})
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Add("a")
		time.Sleep(time.Second)
		if n := calls.Load(); n != 2 {
			t.Errorf("after the failure: %d calls, want a second one within its back-off", n)
		}
		time.Sleep(time.Minute)
		if n := calls.Load(); n != 3 {
			t.Errorf("after a minute: %d calls, want the one asked for", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestLoopOutlivesPanics: one object's panic is its own retries and a line in the log; others
// are reconciled on.
func TestLoopOutlivesPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer // read when the loop has ended
		l := controller.New("test", 1, slog.New(slog.NewTextHandler(&out, nil)))
		var odd, other atomic.Int32
		l.Reconciler = controller.Func(func(_ context.Context, key string) (time.Duration, error) {
			if key == "odd" && odd.Add(1) < 3 {
				var none *corev1.Pod
				return 0, errors.New(none.Name)
			}
			other.Add(1)
			return 0, nil
		})
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		l.Add("odd")
		l.Add("other")
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if odd.Load() != 3 || other.Load() != 2 {
			t.Errorf("%d tries of the odd one, %d that went well", odd.Load(), other.Load())
		}
		if n := strings.Count(out.String(), "key=odd"); n != 2 || !strings.Contains(out.String(), "TestLoopOutlivesPanics") {
			t.Errorf("logged %d times:\n%s", n, out.String())
		}
	})
}

func TestExpectations(t *testing.T) {
	now := time.Unix(1000, 0)
	e := controller.NewExpectations()
	shown := func(m map[types.UID]bool) func() map[types.UID]bool { return func() map[types.UID]bool { return m } }
	e.Created("k", "new", now)
	e.Deleted("k", "old", now)
	if met, wait := e.Met("k", shown(map[types.UID]bool{"old": false}), now); met || wait != 30*time.Second {
		t.Errorf("nothing shown: met %v, wait %v", met, wait)
	}
	if met, _ := e.Met("k", shown(map[types.UID]bool{"old": true}), now); met {
		t.Error("the created one is not shown, yet met")
	}
	e.Gone("k", "new")
	if met, _ := e.Met("k", shown(nil), now); !met {
		t.Error("created and gone again, yet not met")
	}
	e.Created("k", "lost", now)
	if met, _ := e.Met("k", shown(nil), now.Add(31*time.Second)); !met {
		t.Error("a write that never shows is waited for without end")
	}
}

func TestClaim(t *testing.T) {
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner", UID: "1"}}
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	yes := true
	owned := func(uid types.UID) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: uid, Controller: &yes}}
	}
	app := map[string]string{"app": "a"}
	pods := []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "mine", Labels: app, OwnerReferences: owned("1")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: app, OwnerReferences: owned("2")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "orphan", Labels: app}},
		{ObjectMeta: metav1.ObjectMeta{Name: "strayed", OwnerReferences: owned("1")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
	}
	var patched []string
	got, err := controller.Claim(t.Context(), &controller.Claimer{
		Owner: owner, Kind: kind, Selector: labels.SelectorFromSet(app),
		Live:  func(context.Context) (metav1.Object, error) { return owner, nil },
		Patch: func(_ context.Context, name string, _ []byte) error { patched = append(patched, name); return nil },
	}, pods)
	if err != nil || len(got) != 2 || got[0].Name != "mine" || got[1].Name != "orphan" {
		t.Errorf("claimed %v, %v", got, err)
	}
	if len(patched) != 2 || patched[0] != "orphan" || patched[1] != "strayed" {
		t.Errorf("patched %v, want the orphan adopted and the strayed one released", patched)
	}
}

func TestSlowStartStopsAtAnError(t *testing.T) {
	var calls atomic.Int32
	ok, err := controller.SlowStart(t.Context(), 100, func(context.Context, int) error {
		if calls.Add(1) > 3 {
			return errors.New("quota")
		}
		return nil
	})
	if ok != 3 || err == nil || calls.Load() != 7 {
		t.Errorf("%d of %d calls succeeded, err %v; want 3 of 7 (batches 1, 2, 4)", ok, calls.Load(), err)
	}
}

func TestWrites(t *testing.T) {
	w := controller.NewWrites()
	w.Wrote("k", "10")
	if !w.Behind("k", "9") || w.Behind("k", "10") || w.Behind("other", "1") || w.Behind("k", "") {
		t.Error("wrong versions are behind")
	}
	w.Forget("k")
	if w.Behind("k", "1") {
		t.Error("not forgotten")
	}
}
