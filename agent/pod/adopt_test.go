package pod

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shoal-project/shoal/agent/record"
)

// TestKnownByVolumesAlone: a pod of which only volumes are left is released when
// its source does not have it, and not before; one that the source has keeps
// them.
func TestKnownByVolumesAlone(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		var released []types.UID
		m.Steps = append([]Step{{Name: "volumes", Release: func(_ context.Context, s *Setting) error {
			released = append(released, s.Pod.UID)
			return nil
		}}}, m.Steps...)
		wanted := testPod(corev1.RestartPolicyAlways, "a")
		gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "gone", UID: "gone"}}
		m.Adopt([]*corev1.Pod{wanted, gone})
		m.Unhold()
		m.PokeAll()
		time.Sleep(time.Minute)
		expect(t, f, "")
		m.Update(wanted, SourceAPI)
		expect(t, f, "a#0=run")
		if len(released) > 0 {
			t.Errorf("%q were released before the source was known in full", released)
		}
		m.Prune(SourceAPI, map[types.UID]bool{wanted.UID: true})
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(released) != 1 || released[0] != gone.UID || len(m.list()) != 1 {
			t.Errorf("released %q; %d pods are left", released, len(m.list()))
		}
	})
}
