package volume

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHollow: a hollow node asks the API for what a node asks for, and mounts
// nothing, whatever the volume.
func TestHollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32 // the manager asks from a goroutine of its own
		tokens := &TokenCache{
			Saved: TokenTimes{InMemory{}},
			Request: func(context.Context, string, string,
				*authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
				asked.Add(1)
				ends := metav1.NewTime(time.Now().Add(time.Hour))
				return &authenticationv1.TokenRequest{
					Status: authenticationv1.TokenRequestStatus{Token: "t", ExpirationTimestamp: ends}}, nil
			},
		}
		objs := objects{configMaps: map[string]*corev1.ConfigMap{}}
		m := NewHollow(objs, tokens, func(*corev1.Pod) Facts { return Facts{} }, slog.New(slog.DiscardHandler))
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "api",
				VolumeSource: corev1.VolumeSource{
					Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
						{ConfigMap: &corev1.ConfigMapProjection{
							LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
					}}}},
			claimed("claim"),
			{Name: "node", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/not/there"}}},
			{Name: "csi", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "d"}}},
		}
		want := `MountVolume.SetUp failed for volume "api" : configmaps "cm" not found`
		if got := errText(m.Ensure(t.Context(), p)); got != want {
			t.Errorf("without an object: %s", got)
		}
		objs.configMaps["cm"] = &corev1.ConfigMap{}
		if err := m.Ensure(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.Run(ctx) }()
		m.Changed("ns")
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if n := asked.Load(); n != 1 {
			t.Errorf("asked for %d tokens before the first was old", n)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n := asked.Load(); n != 2 {
			t.Errorf("asked for %d tokens in an hour", n)
		}
		if path, err := m.SubPath(p, SubPath{Volume: "node", Container: "c", Path: "x"}); err != nil {
			t.Errorf("sub path %q: %v", path, err)
		}
		cancel()
		if err := errors.Join(<-ended, m.Release(t.Context(), p)); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Lstat(hollowDir); !os.IsNotExist(err) {
		t.Errorf("something lies at %s: %v", hollowDir, err)
	}
}
