package attachdetach

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The name is upstream's: attachers, agents and people find it by this.
func TestAttachmentName(t *testing.T) {
	// What sha256sum says of vold.example.comn1.
	const want = "csi-be5c2abc1278a46c0a75c3f2d4aa2622c2c984aef73a735e8198a6b8a6f055eb"
	if got := attachmentName("d.example.com", "vol", "n1"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestJudge(t *testing.T) {
	now := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		h      holder
		forced bool
		want   decision
		wait   time.Duration
	}{
		{name: "nobody has it", h: holder{}, want: detach},
		{name: "mounted", h: holder{inUse: true, ready: true}, forced: true, want: keep},
		{name: "mounted for long", h: holder{inUse: true, ready: true, since: now.Add(-time.Hour)}, forced: true,
			want: keep},
		{name: "off", h: holder{inUse: true, outOfService: true, ready: true}, want: forceService},
		{name: "away", h: holder{inUse: true, since: now.Add(-2 * time.Minute)}, forced: true, want: keep,
			wait: 4 * time.Minute},
		{name: "away for long", h: holder{inUse: true, since: now.Add(-6 * time.Minute)}, forced: true,
			want: forceTimeout},
		{name: "away, and nothing is forced", h: holder{inUse: true, since: now.Add(-time.Hour)}, want: keep},
	} {
		if got, wait := judge(c.h, now, c.forced); got != c.want || wait != c.wait {
			t.Errorf("%s: %d after %s, want %d after %s", c.name, got, wait, c.want, c.wait)
		}
	}
}

func TestExclusive(t *testing.T) {
	for _, c := range []struct {
		modes []corev1.PersistentVolumeAccessMode
		want  bool
	}{
		{nil, false},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, true},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, true},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}, false},
		{[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, false},
	} {
		pv := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{AccessModes: c.modes}}
		if got := exclusive(pv); got != c.want {
			t.Errorf("%v: %v", c.modes, got)
		}
	}
}

// A pod that is being deleted needs its volumes as long as something of it may run.
func TestUses(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for _, c := range []struct {
		name     string
		node     string
		deleting bool
		phase    corev1.PodPhase
		states   []corev1.ContainerState
		want     bool
	}{
		{name: "nowhere"},
		{name: "bound", node: "n", want: true},
		{name: "over", node: "n", phase: corev1.PodFailed},
		{name: "deleted before it began", node: "n", deleting: true, want: true},
		{name: "ending", node: "n", deleting: true, states: []corev1.ContainerState{ended, running}, want: true},
		{name: "ended", node: "n", deleting: true, states: []corev1.ContainerState{ended, ended}},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: c.node}, Status: corev1.PodStatus{Phase: c.phase}}
		if c.deleting {
			pod.DeletionTimestamp = &metav1.Time{}
		}
		for _, s := range c.states {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{State: s})
		}
		if got := uses(pod); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestMultiAttach(t *testing.T) {
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	a, b, other := pod("ns", "a"), pod("ns", "b"), pod("o", "b")
	for want, others := range map[string][]*corev1.Pod{
		"Volume is already exclusively attached to one node and can't be attached to another": nil,
		"Volume is already used by pod(s) a, b":                                               {b, a},
		"Volume is already used by pod(s) a and 1 pod(s) in different namespaces":             {a, other},
		"Volume is already used by 1 pod(s) in different namespaces":                          {other},
	} {
		want = `Multi-Attach error for volume "pv" ` + want
		if got := multiAttach("pv", pod("ns", "p"), others); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
