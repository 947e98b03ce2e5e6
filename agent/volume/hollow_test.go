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

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHollow: a hollow node asks the API for what a node asks for, and mounts
// nothing, whatever the volume.
func TestHollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32 // the manager asks from a goroutine of its own
		tokens := &TokenCache{
			Saved: TokenTimes{InMemory{}},
			Request: func(context.Context, string, string, *authv1.TokenRequest) (*authv1.TokenRequest, error) {
				asked.Add(1)
				ends := metav1.NewTime(time.Now().Add(time.Hour))
				return &authv1.TokenRequest{Status: authv1.TokenRequestStatus{Token: "t", ExpirationTimestamp: ends}}, nil
			},
		}
		objs := objects{configMaps: map[string]*v1.ConfigMap{}}
		m := NewHollow(objs, tokens, func(*v1.Pod) Facts { return Facts{} }, slog.New(slog.DiscardHandler))
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
		p.Spec.Volumes = []v1.Volume{
			{Name: "api", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
				{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}},
			}}}},
			claimed("claim"),
			{Name: "node", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/not/there"}}},
			{Name: "csi", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d"}}},
		}
		want := `MountVolume.SetUp failed for volume "api" : configmaps "cm" not found`
		if got := errText(m.Ensure(t.Context(), p)); got != want {
			t.Errorf("without an object: %s", got)
		}
		objs.configMaps["cm"] = &v1.ConfigMap{}
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
