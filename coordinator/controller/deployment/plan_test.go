package deployment

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/shoal-project/shoal/coordinator/controller"
)

func deploy(replicas int32, surge, unavailable string) *appsv1.Deployment {
	s, u := intstr.Parse(surge), intstr.Parse(unavailable)
	deadline := int32(600)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "d"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, ProgressDeadlineSeconds: &deadline,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u},
			},
		},
	}
}

func set(name string, size, available, age int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{},
			CreationTimestamp: metav1.Unix(int64(1000-age), 0)},
		Spec:   appsv1.ReplicaSetSpec{Replicas: &size},
		Status: appsv1.ReplicaSetStatus{Replicas: size, AvailableReplicas: available, ReadyReplicas: available},
	}
}

func steps(list []scaling) string {
	var out []string
	for _, s := range list {
		out = append(out, fmt.Sprintf("%s->%d", s.set.Name, s.to))
	}
	return strings.Join(out, " ")
}

func TestLimits(t *testing.T) { // DEP-18
	for _, tt := range []struct {
		replicas           int32
		surge, unavailable string
		wantS, wantU       int32
	}{
		{3, "25%", "25%", 1, 0},
		{4, "25%", "25%", 1, 1},
		{10, "3", "2", 3, 2},
		{1, "0", "10%", 0, 1},
	} {
		if s, u := limits(deploy(tt.replicas, tt.surge, tt.unavailable)); s != tt.wantS || u != tt.wantU {
			t.Errorf("%d replicas, %s, %s: surge %d, unavailable %d", tt.replicas, tt.surge, tt.unavailable, s, u)
		}
	}
}

func TestRollOrder(t *testing.T) { // DEP-19
	d := deploy(3, "25%", "25%")
	s := sets{current: set("new", 0, 0, 0), old: []*appsv1.ReplicaSet{set("old", 3, 3, 10)}}
	var got []string
	for range 20 {
		do := roll(d, s)
		if len(do) == 0 {
			break
		}
		got = append(got, steps(do))
		for _, sc := range do {
			*sc.set.Spec.Replicas = sc.to
			sc.set.Status.AvailableReplicas = sc.to
		}
	}
	if want := "new->1, old->2, new->2, old->1, new->3, old->0"; strings.Join(got, ", ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
	}
}

func TestRoll(t *testing.T) {
	for _, tt := range []struct {
		name               string
		surge, unavailable string
		current            *appsv1.ReplicaSet
		old                []*appsv1.ReplicaSet
		want               string
	}{
		{"bad image stops (DEP-28)", "1", "0", set("new", 1, 0, 0), []*appsv1.ReplicaSet{set("old", 3, 3, 9)}, ""},
		{"broken old replicas go first", "1", "1", set("new", 1, 0, 0),
			[]*appsv1.ReplicaSet{set("a", 2, 2, 9), set("b", 1, 0, 8)}, "b->0"},
		{"rollover (DEP-24)", "0", "3", set("new", 3, 0, 0),
			[]*appsv1.ReplicaSet{set("a", 0, 0, 9), set("b", 3, 1, 8)}, "b->0"},
		{"too big a current set shrinks", "1", "0", set("new", 5, 5, 0), nil, "new->3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := steps(roll(deploy(3, tt.surge, tt.unavailable), sets{tt.current, tt.old})); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestProportionalScaling(t *testing.T) { // DEP-41, DEP-42
	d := deploy(15, "3", "2")
	old, current := set("old", 8, 8, 9), set("new", 5, 0, 0)
	for _, rs := range []*appsv1.ReplicaSet{old, current} {
		rs.Annotations[desiredAnnotation], rs.Annotations[maxAnnotation] = "10", "13"
	}
	s := sets{current, []*appsv1.ReplicaSet{set("empty", 0, 0, 20), old}}
	if !resized(d, s) {
		t.Fatal("the change of size is not noticed")
	}
	if got, want := steps(spread(d, s)), "old->11 new->7"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	*d.Spec.Replicas = 0
	if got, want := steps(spread(d, s)), "old->0 new->0"; got != want {
		t.Errorf("to zero: got %q, want %q", got, want)
	}
	// All that is added is given out with the first set: the second one keeps its size, though
	// it was scaled for a bigger Deployment.
	big, small := set("big", 5, 5, 9), set("small", 3, 0, 0)
	big.Annotations[maxAnnotation], small.Annotations[maxAnnotation] = "5", "20"
	two := sets{small, []*appsv1.ReplicaSet{big}}
	if got, want := steps(spread(deploy(10, "0", "1"), two)), "big->7 small->3"; got != want {
		t.Errorf("two sizes: got %q, want %q", got, want)
	}
}

func TestRevisions(t *testing.T) { // DEP-35, DEP-36
	d := deploy(1, "1", "0")
	d.Annotations = map[string]string{"kubernetes.io/change-cause": "why",
		corev1.LastAppliedConfigAnnotation: "x", revisionAnnotation: "3"}
	rs := set("two", 0, 0, 5)
	rs.Annotations[revisionAnnotation], rs.Annotations[historyAnnotation] = "2", "1"
	if !annotate(rs, d, 4) || rs.Annotations[revisionAnnotation] != "4" || rs.Annotations[historyAnnotation] != "1,2" ||
		rs.Annotations["kubernetes.io/change-cause"] != "why" || rs.Annotations[corev1.LastAppliedConfigAnnotation] != "" {
		t.Errorf("annotations %v", rs.Annotations)
	}
	if annotate(rs, d, 4) {
		t.Error("a second time changes again")
	}
	if h := appendHistory(strings.Repeat("1234,", 399)+"9999", "10000"); len(h) > maxHistoryChars ||
		!strings.HasSuffix(h, ",10000") {
		t.Errorf("history of %d characters ends %s", len(h), h[len(h)-10:])
	}
}

// TestRollBack: the annotation in which old clients asked for a revision is followed, and taken off.
func TestRollBack(t *testing.T) { // DEP-37
	d := deploy(1, "1", "0")
	revisionOf := func(name, image, revision string) *appsv1.ReplicaSet {
		rs := set(name, 1, 1, 0)
		rs.Namespace = d.Namespace
		rs.Annotations = map[string]string{revisionAnnotation: revision, "kubernetes.io/change-cause": image}
		rs.Spec.Template.Labels = map[string]string{"app": "web", hashLabel: name}
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "c", Image: image}}
		return rs
	}
	for _, tt := range []struct{ to, image, told string }{
		{"1", "one", `Normal DeploymentRollback Rolled back deployment "web" to revision 1`},
		{"0", "two", `Normal DeploymentRollback Rolled back deployment "web" to revision 2`},
		{"3", "three", "Warning DeploymentRollbackTemplateUnchanged The rollback revision contains the same template as " +
			`current deployment "web"`},
		{"9", "three", "Warning DeploymentRollbackRevisionNotFound Unable to find the revision to rollback to."},
	} {
		of := sets{revisionOf("c", "three", "3"),
			[]*appsv1.ReplicaSet{revisionOf("a", "one", "1"), revisionOf("b", "two", "2")}}
		asked := d.DeepCopy()
		asked.Spec.Template = *withoutHash(&of.current.Spec.Template)
		asked.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: tt.to, revisionAnnotation: "3",
			"kubernetes.io/change-cause": "three", corev1.LastAppliedConfigAnnotation: "x"}
		client, events := fake.NewClientset(asked, of.current, of.old[0], of.old[1]), record.NewFakeRecorder(1)
		st := &step{reconciler: &reconciler{client: client, events: events, writes: controller.NewWrites()},
			cached: asked, d: asked.DeepCopy(), sets: of, now: time.Now()}
		if err := st.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := client.AppsV1().Deployments(d.Namespace).Get(t.Context(), d.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{revisionAnnotation: "3", "kubernetes.io/change-cause": tt.image,
			corev1.LastAppliedConfigAnnotation: "x"}
		if image := got.Spec.Template.Spec.Containers[0].Image; image != tt.image ||
			got.Spec.Template.Labels[hashLabel] != "" || !maps.Equal(got.Annotations, want) {
			t.Errorf("to %s: %s, labels %v, %v", tt.to, image, got.Spec.Template.Labels, got.Annotations)
		}
		if told := <-events.Events; told != tt.told {
			t.Errorf("to %s: told %q", tt.to, told)
		}
	}
}

func TestNewSetName(t *testing.T) { // DEP-7, DEP-9
	d := deploy(3, "25%", "25%")
	d.Spec.Template.Labels = map[string]string{"app": "web"}
	rs, err := newSet(d, sets{}, &metav1.OwnerReference{})
	if err != nil {
		t.Fatal(err)
	}
	sum := rs.Labels[hashLabel]
	if rs.Name != "web-"+sum || rs.Spec.Selector.MatchLabels[hashLabel] != sum ||
		rs.Spec.Template.Labels[hashLabel] != sum || *rs.Spec.Replicas != 3 {
		t.Errorf("made %+v", rs)
	}
	if !sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
		t.Error("the set is not recognized again")
	}
	if _, has := d.Spec.Template.Labels[hashLabel]; has {
		t.Error("the Deployment's own template was changed")
	}
	one := int32(1)
	d.Status.CollisionCount = &one
	if other, _ := newSet(d, sets{}, &metav1.OwnerReference{}); other.Name == rs.Name {
		t.Error("a collision does not change the name")
	}
}

func TestProgress(t *testing.T) { // DEP-48..55
	now := time.Unix(5000, 0)
	d := deploy(3, "1", "0")
	s := sets{current: set("web-1", 3, 0, 0)}
	setCondition(&d.Status, condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonCreated, "", now))

	d.Status, _ = progress(d, s, now)
	expectProgress(t, d, corev1.ConditionTrue, reasonUpdated)

	late := now.Add(601 * time.Second)
	stuck := d.DeepCopy()
	stuck.Status, _ = progress(stuck, s, late)
	expectProgress(t, stuck, corev1.ConditionFalse, reasonTimedOut)

	s.current.Status.AvailableReplicas = 3
	d.Status, _ = progress(d, s, late)
	expectProgress(t, d, corev1.ConditionTrue, reasonComplete)
	if c := find(&d.Status, appsv1.DeploymentAvailable); c.Status != corev1.ConditionTrue {
		t.Errorf("available: %+v", c)
	}

	s.current.Status.AvailableReplicas = 1 // DEP-50
	d.Status, _ = progress(d, s, late)
	expectProgress(t, d, corev1.ConditionTrue, reasonComplete)

	d.Spec.Paused = true
	if c := paused(d, late); c == nil || c.Reason != reasonPaused || c.Status != corev1.ConditionUnknown {
		t.Errorf("paused: %+v", c)
	}
}

func expectProgress(t *testing.T, d *appsv1.Deployment, status corev1.ConditionStatus, reason string) {
	t.Helper()
	if c := find(&d.Status, appsv1.DeploymentProgressing); c == nil || c.Status != status || c.Reason != reason {
		t.Errorf("Progressing is %+v, want %s %s", c, status, reason)
	}
}
