package statefulset

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

var now = time.Unix(100000, 0)

// set makes a StatefulSet "web" of n ordered replicas that rolls from revision
// old to revision new.
func set(n int32, change ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "set"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &n, ServiceName: "svc", PodManagementPolicy: appsv1.OrderedReadyPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{
				Type:          appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: ptr.To[int32](0)},
			},
		}}
	for _, c := range change {
		c(s)
	}
	return s
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
}
func from(start int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: start} }
}
func partition(n int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.UpdateStrategy.RollingUpdate.Partition = &n }
}
func unavailable(text string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.Parse(text))
	}
}
func readyFor(seconds int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = seconds }
}
func claims(scaled, deleted appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: scaled, WhenDeleted: deleted}
	}
}

// pods reads "0 1! 2:old- 3x": ordinal, revision (new where there is none),
// "!" not ready, "-" being deleted, "x" failed. Ready ones are so for 10 s.
func pods(s *appsv1.StatefulSet, text string) (out []*corev1.Pod) {
	for word := range strings.FieldsSeq(text) {
		var n int
		head, revision, ok := strings.Cut(strings.TrimRight(word, "!-x"), ":")
		if !ok {
			revision = "new"
		}
		_, _ = fmt.Sscan(head, &n)
		p := newPod(s, &s.Spec.Template, revision, n)
		p.UID, p.Status.Phase = types.UID("pod"+head), corev1.PodRunning
		if !strings.Contains(word, "!") {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(now.Add(-10 * time.Second))}}
		}
		if strings.Contains(word, "-") {
			p.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		}
		if strings.Contains(word, "x") {
			p.Status.Phase, p.Status.Conditions = corev1.PodFailed, nil
		}
		out = append(out, p)
	}
	return out
}

func see(s *appsv1.StatefulSet, text string, have ...*corev1.PersistentVolumeClaim) *view {
	return &view{set: s, current: "old", update: "new", pods: pods(s, text), now: now,
		claim: func(name string) *corev1.PersistentVolumeClaim {
			i := slices.IndexFunc(have, func(c *corev1.PersistentVolumeClaim) bool { return c.Name == name })
			if i < 0 {
				return nil
			}
			return have[i]
		}}
}

func (do todo) String() string {
	var out []string
	for _, n := range do.create {
		out = append(out, fmt.Sprint("+", n))
	}
	for _, part := range []struct {
		sign string
		pods []*corev1.Pod
	}{{"claim", do.claim}, {"repair", do.repair}, {"hand", do.handOver}, {"-", do.del}} {
		for _, p := range part.pods {
			out = append(out, fmt.Sprint(part.sign, ordinalOf(p)))
		}
	}
	return strings.Join(out, " ")
}

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  *appsv1.StatefulSet
		pods string
		want string
	}{
		{"STS-20-first", set(3), "", "+0"},
		{"STS-20-waits", set(3), "0!", ""},
		{"STS-20-next", set(3), "0", "+1"},
		{"STS-22", set(3), "0! 1", ""},
		{"STS-6", set(2, from(5)), "5", "+6"},
		{"STS-6-moved", set(2, from(5)), "0 5 6", "-0"},
		{"STS-16", set(2, readyFor(30)), "0", ""},
		{"STS-16-over", set(2, readyFor(10)), "0", "+1"},
		{"STS-21-highest", set(1), "0 1 2", "-2"},
		{"STS-21-waits", set(1), "0 1 2-", ""},
		{"STS-23", set(1), "0! 1", ""},
		{"unhealthy-condemned-goes", set(1), "0 1 2!", "-2"},
		{"other-condemned-unhealthy", set(1), "0 1! 2", "-2"},
		{"two-unhealthy", set(1), "0 1! 2!", ""},
		{"STS-25-create", set(3, parallel), "1!", "+0 +2"},
		{"STS-25-delete", set(1, parallel), "0! 1 2-", "-1"},
		{"STS-25-updates-roll", set(2, parallel), "0:old 1:old", "-1"},
		{"failed", set(2), "0x 1", "-0"},
		{"failed-and-going", set(2), "0x- 1", ""},
		{"STS-27", set(2, onDelete), "0:old 1:old", ""},
		{"STS-28", set(3), "0:old 1:old 2:old", "-2"},
		{"STS-28-waits", set(3), "0:old 1:old 2!", ""},
		{"STS-28-next", set(3), "0:old 1:old 2", "-1"},
		{"STS-29", set(3, partition(2)), "0:old 1:old 2:old", "-2"},
		{"STS-29-done", set(3, partition(2)), "0:old 1:old 2", ""},
		{"STS-30", set(3, partition(4)), "0:old 1:old 2:old", ""},
		{"STS-31", set(3, unavailable("2")), "0:old 1:old 2:old", "-2 -1"},
		{"STS-31-percent", set(3, unavailable("50%")), "0:old 1:old 2:old", "-2"},
		{"STS-31-counts", set(3, parallel, unavailable("2")), "0:old 1:old! 2:old", "-2"},
		{"STS-32", set(2), "0 1:bad!", ""},
		{"STS-32-parallel", set(2, parallel), "0 1:bad!", "-1"},
		{"complete", set(3), "0 1 2", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := see(tt.set, tt.pods).plan().String(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDeletedSetRests(t *testing.T) {
	s := set(3)
	s.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	if got := see(s, "0").plan().String(); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestRevisionBelowPartition(t *testing.T) { // STS-29
	v := see(set(3, partition(1), from(4)), "")
	if v.revisionOf(4) != "old" || v.revisionOf(5) != "new" {
		t.Errorf("got %s, %s", v.revisionOf(4), v.revisionOf(5))
	}
}

func TestPod(t *testing.T) { // STS-7, STS-15
	s := set(1, claims("", ""))
	s.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "data"}, {Name: "other"}}
	p := newPod(s, &s.Spec.Template, "r", 2)
	if p.Name != "web-2" || p.Spec.Hostname != "web-2" || p.Spec.Subdomain != "svc" ||
		p.Labels[appsv1.PodIndexLabel] != "2" ||
		p.Labels[appsv1.StatefulSetRevisionLabel] != "r" || p.Labels[appsv1.StatefulSetPodNameLabel] != "web-2" {
		t.Errorf("got %+v", p.ObjectMeta)
	}
	if v := p.Spec.Volumes; len(v) != 2 || v[0].PersistentVolumeClaim.ClaimName != "data-web-2" || v[1].Name != "other" {
		t.Errorf("volumes %+v", v)
	}
	for name, member := range map[string]bool{"web-0": true, "web-12": true, "web": false, "web-a": false,
		"web-01": false, "web-0-0": false, "web-": false, "web--1": false} {
		if isMember(s, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}) != member {
			t.Errorf("%s: member is %v", name, !member)
		}
	}
}

func TestStatus(t *testing.T) {
	v := see(set(3, readyFor(15)), "0:old 1! 2-")
	s, wait := v.status()
	if s.Replicas != 3 || s.ReadyReplicas != 2 || s.AvailableReplicas != 0 || s.CurrentReplicas != 1 ||
		s.UpdatedReplicas != 1 || wait != 5*time.Second {
		t.Errorf("%+v, wait %v", s, wait)
	}
	s, _ = see(set(2), "0 1").status()
	if s.CurrentRevision != "new" || s.CurrentReplicas != 2 {
		t.Errorf("a complete update: %+v", s)
	}
	if s, _ = see(set(2, onDelete), "0 1").status(); s.CurrentRevision != "old" {
		t.Errorf("OnDelete never completes: %+v", s)
	}
}

const retain, remove = appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
	appsv1.DeletePersistentVolumeClaimRetentionPolicyType

// TestClaimOwners: STS-35, STS-36, STS-37. web-0 is wanted, web-1 is not.
func TestClaimOwners(t *testing.T) {
	for _, tt := range []struct {
		scaled, deleted appsv1.PersistentVolumeClaimRetentionPolicyType
		want            string
	}{
		{retain, retain, "[] []"},
		{retain, remove, "[set] [set]"},
		{remove, retain, "[] [pod1]"},
		{remove, remove, "[set] [pod1]"},
	} {
		s := set(1, claims(tt.scaled, tt.deleted))
		var got [2][]types.UID
		for i, p := range pods(s, "0 1") {
			c := &corev1.PersistentVolumeClaim{}
			c.OwnerReferences = claimOwners(c, s, p)
			for _, ref := range c.OwnerReferences {
				got[i] = append(got[i], ref.UID)
			}
			if !isClaimRight(c, s, p) {
				t.Errorf("%s, %s: %v is not right", tt.scaled, tt.deleted, c.OwnerReferences)
			}
		}
		if text := fmt.Sprint(got[0], got[1]); text != tt.want {
			t.Errorf("%s, %s: got %s, want %s", tt.scaled, tt.deleted, text, tt.want)
		}
	}
}

func TestClaimsInPlan(t *testing.T) {
	s := set(1, claims(remove, retain))
	claim := func(n int, refs ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: claimName(s, "data", n), OwnerReferences: refs}}
	}
	if got := see(s, "0 1", claim(0), claim(1)).plan().String(); got != "hand1 -1" { // STS-37, STS-40
		t.Errorf("scaled away: %q", got)
	}
	gone := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", UID: "before"}}
	old := claim(0, *metav1.NewControllerRef(gone, podKind))
	if got := see(s, "", old).plan().String(); got != "" {
		t.Errorf("the claim is about to be collected: %q", got)
	}
	for _, tt := range []struct{ limit, want string }{{"", ""}, {"1", ""}, {"2", "-0"}} {
		all := set(2, parallel, claims(remove, retain))
		if tt.limit != "" {
			unavailable(tt.limit)(all)
		}
		gone.Name = "web-1"
		kept := claim(1, *metav1.NewControllerRef(gone, podKind))
		if got := see(all, "0:old", kept).plan().String(); got != tt.want {
			t.Errorf("an update while a pod waits for its claim to go, at most %q down: %q", tt.limit, got)
		}
	}
	mine := claim(0, *metav1.NewControllerRef(pods(s, "0")[0], podKind))
	if got := see(s, "0", mine).plan().String(); got != "repair0" {
		t.Errorf("scaled up again in time: %q", got)
	}
	foreign := claim(0, metav1.OwnerReference{APIVersion: "v1", Kind: "X", Name: "x", UID: "x", Controller: ptr.To(true)})
	if !hasForeignController(foreign, s, pods(s, "0")[0]) || see(s, "0", foreign).plan().String() != "" {
		t.Error("a claim that somebody else controls is touched")
	}
	v := see(s, "0!")
	v.pods[0].Status.Phase = corev1.PodPending
	if got := v.plan().String(); got != "claim0" {
		t.Errorf("waiting pod: %q", got)
	}
}

func TestClaimsOfPod(t *testing.T) { // STS-11
	s := set(1, claims("", ""))
	c := newClaims(s, pods(s, "3")[0])
	if len(c) != 1 || c[0].Name != "data-web-3" || c[0].Namespace != "ns" || c[0].Labels["app"] != "web" ||
		len(c[0].OwnerReferences) != 0 {
		t.Errorf("got %+v", c)
	}
}
