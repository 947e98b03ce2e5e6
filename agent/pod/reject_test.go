package pod

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// TestRejectedInSetup: a pod that a step refuses for good fails and is not tried
// again, and what was made of it is undone.
func TestRejectedInSetup(t *testing.T) {
	const reason = "VolumeAttachmentLimitExceeded"
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		tried, released := 0, 0
		m.Steps = append([]Step{{
			Name: "volumes",
			Ensure: func(context.Context, *Setting) error {
				tried++
				return &Fault{Reason: reason, Message: "too many", Rejects: true}
			},
			Release: func(context.Context, *Setting) error {
				released++
				return nil
			},
		}}, m.Steps...)
		p := testPod(corev1.RestartPolicyAlways, "a")
		m.Update(p, SourceAPI)
		time.Sleep(5 * time.Minute)
		expect(t, f, "")
		ended := e.records[string(p.UID)].Ended
		if ended == nil || ended.Phase != corev1.PodFailed || ended.Reason != reason ||
			ended.Message != "Pod was rejected: too many" {
			t.Errorf("ended: %+v", ended)
		}
		if tried != 1 || released == 0 || e.count(reason) != 1 {
			t.Errorf("tried %d times, released %d times, events: %q", tried, released, e.events)
		}
	})
}

// A pod that is to be confined does not run unconfined.
func TestWithoutAppArmor(t *testing.T) {
	profile := func(kind corev1.AppArmorProfileType) *corev1.AppArmorProfile {
		return &corev1.AppArmorProfile{Type: kind}
	}
	for name, c := range map[string]struct {
		pod, container *corev1.AppArmorProfile
		without        bool
		reason         string
	}{
		"pod":        {pod: profile(corev1.AppArmorProfileTypeRuntimeDefault), without: true, reason: "AppArmor"},
		"container":  {container: profile(corev1.AppArmorProfileTypeLocalhost), without: true, reason: "AppArmor"},
		"unconfined": {container: profile(corev1.AppArmorProfileTypeUnconfined), without: true},
		"none":       {without: true},
		"enforced":   {pod: profile(corev1.AppArmorProfileTypeRuntimeDefault)},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
				m, stop := start(t, dir, f, e)
				defer stop()
				m.WithoutAppArmor = c.without
				p := testPod(corev1.RestartPolicyAlways, "a")
				p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: c.pod}
				p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: c.container}
				m.Update(p, SourceAPI)
				synctest.Wait()
				reason := ""
				if ended := e.records[string(p.UID)].Ended; ended != nil {
					reason = ended.Reason
				}
				if reason != c.reason {
					t.Errorf("refused for %q, want %q", reason, c.reason)
				}
			})
		})
	}
}
