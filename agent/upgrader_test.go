package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/upgrade"
)

// TestUpgrader: a wish is started once and, until the Node tells of its end, now and
// then again; what is no wish, or over, never.
func TestUpgrader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started atomic.Int32
		u := newUpgrader(slog.New(slog.DiscardHandler))
		u.start = func(context.Context) error { started.Add(1); return errors.New("no") }
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = u.Run(ctx) }()
		node := func(wish, result string) {
			n := &corev1.Node{}
			n.Annotations = map[string]string{upgrade.WishAnnotation: wish, upgrade.ResultAnnotation: result}
			u.Heed(n)
			synctest.Wait()
		}
		expect := func(want int, when string) {
			t.Helper()
			if got := int(started.Load()); got != want {
				t.Errorf("%s: started %d times, not %d", when, got, want)
			}
		}
		wish := func(id string) string {
			return `{"id":"` + id + `","digest":"` + strings.Repeat("a", 64) + `","format":"deb","version":"1.36.4"}`
		}
		node("", "")
		node(`{"id":"x"}`, "")
		expect(0, "no wish")
		node(wish("one"), "")
		node(wish("one"), "")
		expect(1, "told twice")
		time.Sleep(firstAgain)
		synctest.Wait()
		expect(2, "later")
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := started.Swap(0); got < 10 || got > 30 {
			t.Errorf("started %d times within an hour", got)
		}
		node(wish("one"), `{"id":"one","phase":"returned"}`)
		time.Sleep(time.Hour)
		synctest.Wait()
		expect(0, "over")
		node(wish("two"), `{"id":"one","phase":"returned"}`)
		expect(1, "another wish")
	})
}
