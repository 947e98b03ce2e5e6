package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/shutdown"
)

// TestRebooter: the boot that is named is ended, another one never; the Node is told
// once the machine is back, and again when that failed.
func TestRebooter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var did []string
		fails := 1
		r := newRebooter(nil, "n", "second", slog.New(slog.DiscardHandler))
		r.reboot = func(context.Context) error { did = append(did, "reboot"); return nil }
		r.tell = func(_ context.Context, patch []byte) error {
			did = append(did, string(patch))
			if fails--; fails >= 0 {
				return errors.New("the API is away")
			}
			return nil
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = r.Run(ctx) }()
		node := func(text string) {
			n := &corev1.Node{}
			n.Annotations = map[string]string{shutdown.RebootAnnotation: text}
			n.Status.NodeInfo.BootID = "second"
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			r.Heed(n)
			synctest.Wait()
		}
		node("")
		node("what?")
		node(`{"boot":"first","uncordon":true}`)
		time.Sleep(firstAgain)
		synctest.Wait()
		node("") // it was told
		time.Sleep(time.Hour)
		node(`{"boot":"second"}`)
		node(`{"boot":"second"}`)
		const told = `{"metadata":{"annotations":{"shoal-project.io/reboot":null}},"spec":{"unschedulable":null}}`
		if diff := cmp.Diff([]string{told, told, "reboot"}, did); diff != "" {
			t.Error(diff)
		}
	})
}
