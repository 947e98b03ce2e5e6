package pod

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

// TestNoRoom: who counts hears once of a pod that the node has too little for, and of no
// other that is refused.
func TestNoRoom(t *testing.T) {
	for name, c := range map[string]struct {
		cpu, reason string
		refuse      *record.Verdict
		heard       int
	}{
		"too much":  {cpu: "9", reason: "OutOfcpu", heard: 1},
		"other":     {cpu: "9", reason: "Other", refuse: &record.Verdict{Reason: "Other"}},
		"there is":  {cpu: "1"},
		"something": {cpu: "0"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
				m, stop := start(t, dir, f, e)
				defer stop()
				heard := 0
				m.NoRoom = func(*corev1.Pod) { heard++ }
				m.Host.Allocatable = corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")}
				if c.refuse != nil {
					m.Refuse = func() *record.Verdict { return c.refuse }
				}
				p := testPod(corev1.RestartPolicyAlways, "a")
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse(c.cpu)}
				m.Update(p, SourceAPI)
				time.Sleep(time.Minute)
				synctest.Wait()
				reason := ""
				if ended := e.records[string(p.UID)].Ended; ended != nil {
					reason = ended.Reason
				}
				if reason != c.reason || heard != c.heard {
					t.Errorf("refused for %q, heard %d times; want %q, %d", reason, heard, c.reason, c.heard)
				}
			})
		})
	}
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
