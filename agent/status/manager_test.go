package status

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/agent/record"
)

// api applies status patches and keeps each state that a watcher would see.
type api struct {
	pod  corev1.Pod
	seen []corev1.PodStatus
}

func (a *api) PatchStatus(_ context.Context, _, _ string, patch []byte) (*corev1.Pod, error) {
	old, err := json.Marshal(&a.pod)
	if err != nil {
		return nil, err
	}
	fresh, err := strategicpatch.StrategicMergePatch(old, patch, &corev1.Pod{})
	if err != nil {
		return nil, err
	}
	var p corev1.Pod
	if err := json.Unmarshal(fresh, &p); err != nil {
		return nil, err
	}
	p.ResourceVersion += "1"
	a.pod = p
	a.seen = append(a.seen, p.Status)
	return p.DeepCopy(), nil
}

func (a *api) Delete(context.Context, string, string, types.UID) error { return nil }

// A container that is replaced is told of when it runs again, or after half a
// second without it; one that ends by itself at once.
func TestReplacedContainer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		again bool
		away  time.Duration
		want  []corev1.ConditionStatus // of Ready, in each write
	}{
		{"replaced at once", true, 50 * time.Millisecond, []corev1.ConditionStatus{corev1.ConditionTrue}},
		{"replaced slowly", true, time.Second, []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue}},
		{"crashed", false, 50 * time.Millisecond, []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", ResourceVersion: "1"},
					Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways,
						Containers: []corev1.Container{{Name: "a"}}}}
				a := &api{pod: *p}
				m := &Manager{API: a, Facts: func(*corev1.Pod) Facts { return facts() },
					Mirror: func(*corev1.Pod) (*corev1.Pod, bool) { return nil, false },
					Log:    slog.New(slog.DiscardHandler)}
				ctx, cancel := context.WithCancel(context.Background())
				m.Start(ctx)
				r := &record.Pod{Admitted: now}
				report := func(o record.Observation) {
					m.Report(p, r,
						&record.Observed{Sandboxes: []record.Sandbox{{ID: "s0", Ready: true}},
							Containers: []record.Observation{o}})
				}
				*r.Of("a") = record.Container{ID: "a0", Started: true, Ready: true}
				report(running("a"))
				time.Sleep(time.Minute)
				synctest.Wait()
				a.seen = nil

				*r.Of("a") = record.Container{ID: "a0", Again: tt.again}
				report(exited("a", 137))
				time.Sleep(tt.away)
				next := running("a")
				next.ID, next.Attempt = "a1", 1
				*r.Of("a") = record.Container{ID: "a1", Started: true, Ready: true}
				report(next)
				time.Sleep(time.Minute)
				cancel()
				m.Wait()
				var got []corev1.ConditionStatus
				for _, s := range a.seen {
					ready, _ := condition(s, corev1.PodReady)
					got = append(got, ready)
				}
				if len(got) != len(tt.want) || got[0] != tt.want[0] || got[len(got)-1] != corev1.ConditionTrue {
					t.Errorf("Ready in what was written: %v, want %v", got, tt.want)
				}
				if n := a.pod.Status.ContainerStatuses[0].RestartCount; n != 1 {
					t.Errorf("restart count %d", n)
				}
			})
		})
	}
}

// taken has another pod of the name, as the API answers then.
type taken struct{ asked int }

func (a *taken) PatchStatus(_ context.Context, _, name string, patch []byte) (*corev1.Pod, error) {
	a.asked++
	var p corev1.Pod
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, field.ErrorList{
		field.Invalid(field.NewPath("metadata", "uid"), p.UID, "field is immutable")})
}

func (a *taken) Delete(context.Context, string, string, types.UID) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "p", errors.New("another UID"))
}

// A pod that was deleted by force ends here, though its name is another's before its last
// status is told: so it is when a StatefulSet makes it anew.
func TestNameIsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &taken{}
		m := &Manager{API: a, Facts: func(*corev1.Pod) Facts { return facts() },
			Mirror: func(*corev1.Pod) (*corev1.Pod, bool) { return nil, false },
			Log:    slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		m.Start(ctx)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", ResourceVersion: "1"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
		m.Report(p, &record.Pod{Admitted: now}, &record.Observed{})
		if err := m.Finish(ctx, p); err != nil {
			t.Errorf("the pod does not end: %v", err)
		}
		cancel()
		m.Wait()
		if a.asked != 1 {
			t.Errorf("its status was sent %d times", a.asked)
		}
	})
}

// A pod of a manifest takes nothing over from the mirror of an earlier one of its name,
// which has ended.
func TestMirrorOfAnEarlierManifest(t *testing.T) {
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "m1", ResourceVersion: "1",
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "old"}}}
	mirror.Status.Phase = corev1.PodFailed
	m := &Manager{Facts: func(*corev1.Pod) Facts { return facts() },
		Mirror: func(*corev1.Pod) (*corev1.Pod, bool) { return mirror, true }, Log: slog.New(slog.DiscardHandler)}
	m.Start(t.Context())
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "new"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
	r := &record.Pod{Admitted: now}
	*r.Of("a") = record.Container{ID: "a0", Started: true, Ready: true}
	s := m.Report(p, r, &record.Observed{Containers: []record.Observation{running("a")}})
	if s.Phase != corev1.PodRunning {
		t.Errorf("phase %s", s.Phase)
	}
}
