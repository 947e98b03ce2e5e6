package deployment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	revisionAnnotation = "deployment.kubernetes.io/revision"
	historyAnnotation  = "deployment.kubernetes.io/revision-history"
	desiredAnnotation  = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation      = "deployment.kubernetes.io/max-replicas"
	hashLabel          = appsv1.DefaultDeploymentUniqueLabelKey
	maxHistoryChars    = 2000
)

// scaling is one ReplicaSet's new size.
type scaling struct {
	set *appsv1.ReplicaSet
	to  int32
}

// sets are a Deployment's ReplicaSets: current has the Deployment's template
// (nil: not made yet), old the rest, oldest first.
type sets struct {
	current *appsv1.ReplicaSet
	old     []*appsv1.ReplicaSet
}

func split(d *appsv1.Deployment, owned []*appsv1.ReplicaSet) sets {
	slices.SortFunc(owned, byAge)
	var s sets
	for _, rs := range owned {
		if s.current == nil && sameTemplate(&rs.Spec.Template, &d.Spec.Template) {
			s.current = rs
			continue
		}
		s.old = append(s.old, rs)
	}
	return s
}

func (s sets) all() []*appsv1.ReplicaSet {
	all := slices.Clone(s.old)
	if s.current != nil {
		all = append(all, s.current)
	}
	return all
}

func (s sets) active() []*appsv1.ReplicaSet {
	return slices.DeleteFunc(s.all(), func(rs *appsv1.ReplicaSet) bool { return size(rs) == 0 })
}

func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

func size(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

func want(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

func sum(list []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) int32 {
	var n int32
	for _, rs := range list {
		n += of(rs)
	}
	return n
}

func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }

// sameTemplate compares two templates, the hash label aside.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	return equality.Semantic.DeepEqual(withoutHash(a), withoutHash(b))
}

func withoutHash(t *corev1.PodTemplateSpec) *corev1.PodTemplateSpec {
	if _, ok := t.Labels[hashLabel]; !ok {
		return t
	}
	c := *t
	c.Labels = maps.Clone(t.Labels)
	delete(c.Labels, hashLabel)
	return &c
}

// hash names a template: letters and digits that are safe in a label and form
// no words. It stays the same when the API gains optional fields.
func hash(template *corev1.PodTemplateSpec, collisions *int32) (string, error) {
	data, err := json.Marshal(template)
	if err != nil {
		return "", fmt.Errorf("hash template: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write(data)
	if collisions != nil {
		_, _ = h.Write([]byte(strconv.Itoa(int(*collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10)), nil
}

// newSet makes the ReplicaSet of d's template with its first size.
func newSet(d *appsv1.Deployment, s sets, ref *metav1.OwnerReference) (*appsv1.ReplicaSet, error) {
	sum, err := hash(&d.Spec.Template, d.Status.CollisionCount)
	if err != nil {
		return nil, err
	}
	name := d.Name
	if limit := validation.DNS1123SubdomainMaxLength - len(sum) - 1; len(name) > limit {
		name = name[:limit]
	}
	template := *d.Spec.Template.DeepCopy()
	template.Labels = with(template.Labels, hashLabel, sum)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = with(selector.MatchLabels, hashLabel, sum)
	replicas := int32(0)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: name + "-" + sum, Namespace: d.Namespace,
			OwnerReferences: []metav1.OwnerReference{*ref}, Labels: maps.Clone(template.Labels),
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, MinReadySeconds: d.Spec.MinReadySeconds, Selector: selector, Template: template,
		},
	}
	replicas = grown(d, s, rs)
	annotate(rs, d, nextRevision(s.old))
	setSizeAnnotations(rs, d)
	return rs, nil
}

func with(m map[string]string, key, value string) map[string]string {
	c := maps.Clone(m)
	if c == nil {
		c = map[string]string{}
	}
	c[key] = value
	return c
}

func rolling(d *appsv1.Deployment) bool {
	return d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType
}

// limits are maxSurge, rounded up, and maxUnavailable, rounded down; they are
// never both 0 (DEP-18).
func limits(d *appsv1.Deployment) (surge, unavailable int32) {
	if !rolling(d) {
		return 0, 0
	}
	n := int(want(d))
	if ru := d.Spec.Strategy.RollingUpdate; ru != nil {
		s, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(ru.MaxSurge, intstr.FromInt32(0)), n, true)
		u, _ := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(ru.MaxUnavailable, intstr.FromInt32(0)),
			n, false)
		surge, unavailable = int32(s), int32(u)
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, min(unavailable, int32(n))
}

// grown is how big the current set may be now.
func grown(d *appsv1.Deployment, s sets, current *appsv1.ReplicaSet) int32 {
	if !rolling(d) || size(current) >= want(d) {
		return want(d)
	}
	surge, _ := limits(d)
	total := sum(s.old, size) + size(current)
	room := want(d) + surge - total
	if room <= 0 {
		return size(current)
	}
	return size(current) + min(room, want(d)-size(current))
}

// roll is the next step of a rolling update: grow the current set, or else
// shrink old ones, those replicas first that are not available.
func roll(d *appsv1.Deployment, s sets) []scaling {
	if to := grown(d, s, s.current); to != size(s.current) {
		return []scaling{{s.current, to}}
	}
	_, unavailable := limits(d)
	floor := want(d) - unavailable
	old := slices.DeleteFunc(slices.Clone(s.old), func(rs *appsv1.ReplicaSet) bool { return size(rs) == 0 })
	room := sum(old, size) + size(s.current) - floor - (size(s.current) - available(s.current))
	if len(old) == 0 || room <= 0 {
		return nil
	}
	to := make(map[*appsv1.ReplicaSet]int32, len(old))
	for _, rs := range old {
		broken := max(size(rs)-available(rs), 0)
		cut := min(room, broken)
		to[rs] = size(rs) - cut
		room -= cut
	}
	spare := sum(old, available) + available(s.current) - floor
	for _, rs := range old {
		cut := max(min(spare, to[rs]), 0)
		to[rs] -= cut
		spare -= cut
	}
	var out []scaling
	for _, rs := range old {
		if to[rs] != size(rs) {
			out = append(out, scaling{rs, to[rs]})
		}
	}
	return out
}

// resized tells whether the Deployment was scaled since its sets were: their
// annotations remember the size they were scaled for.
func resized(d *appsv1.Deployment, s sets) bool {
	for _, rs := range s.active() {
		if n, ok := annotated(rs, desiredAnnotation); ok && n != want(d) {
			return true
		}
	}
	return false
}

func annotated(rs *appsv1.ReplicaSet, name string) (int32, bool) {
	n, err := strconv.ParseInt(rs.Annotations[name], 10, 32)
	return int32(n), err == nil && n >= 0
}

// spread scales outside of a rollout's steps: the only active set gets all; a
// finished rollout leaves nothing in old sets; in mid-rollout the change is
// spread in proportion to size, the rest to the biggest (DEP-41, DEP-42).
func spread(d *appsv1.Deployment, s sets) []scaling {
	active := s.active()
	switch {
	case len(active) == 1:
		return only(active[0], want(d))
	case len(active) == 0 && s.current != nil:
		return only(s.current, want(d))
	case len(active) == 0 && len(s.old) > 0:
		return only(s.old[len(s.old)-1], want(d))
	case len(active) == 0:
		return nil
	case saturated(d, s.current):
		var out []scaling
		for _, rs := range s.old {
			out = append(out, only(rs, 0)...)
		}
		return out
	case !rolling(d):
		return nil
	}
	return proportional(d, active)
}

func only(rs *appsv1.ReplicaSet, to int32) []scaling {
	if size(rs) == to {
		return nil
	}
	return []scaling{{rs, to}}
}

func saturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	if rs == nil {
		return false
	}
	n, ok := annotated(rs, desiredAnnotation)
	return ok && n == want(d) && size(rs) == want(d) && available(rs) == want(d)
}

func proportional(d *appsv1.Deployment, active []*appsv1.ReplicaSet) []scaling {
	surge, _ := limits(d)
	allowed := int32(0)
	if want(d) > 0 {
		allowed = want(d) + surge
	}
	add := allowed - sum(active, size)
	// The biggest first; of equal ones the newer grows and the older shrinks first.
	slices.SortStableFunc(active, func(a, b *appsv1.ReplicaSet) int {
		age := byAge(a, b)
		if add > 0 {
			age = -age
		}
		return cmp.Or(cmp.Compare(size(b), size(a)), age)
	})
	out := make([]scaling, len(active))
	var added int32
	for i, rs := range active {
		share := fraction(d, rs, allowed)
		if add > 0 {
			share = min(share, add-added)
		} else {
			share = max(share, add-added)
		}
		if add == added { // 0, or all is given out
			share = 0
		}
		out[i] = scaling{rs, size(rs) + share}
		added += share
	}
	out[0].to = max(out[0].to+add-added, 0)
	return out
}

// fraction is the share of a change that a set of this size is due.
func fraction(d *appsv1.Deployment, rs *appsv1.ReplicaSet, allowed int32) int32 {
	if want(d) == 0 {
		return -size(rs)
	}
	before, ok := annotated(rs, maxAnnotation)
	if !ok || before == 0 {
		before = d.Status.Replicas
	}
	if before == 0 {
		return 0
	}
	return int32(math.Round(float64(size(rs))*float64(allowed)/float64(before))) - size(rs)
}

func revision(rs *appsv1.ReplicaSet) int64 {
	n, _ := strconv.ParseInt(rs.Annotations[revisionAnnotation], 10, 64)
	return n
}

func nextRevision(old []*appsv1.ReplicaSet) int64 {
	var last int64
	for _, rs := range old {
		last = max(last, revision(rs))
	}
	return last + 1
}

var notCopied = map[string]bool{
	corev1.LastAppliedConfigAnnotation: true, revisionAnnotation: true, historyAnnotation: true,
	desiredAnnotation: true, maxAnnotation: true, appsv1.DeprecatedRollbackTo: true,
}

// annotate copies d's annotations to rs and gives it the revision next when its
// own is lower; the number it had goes into the history (DEP-36). It reports
// whether it changed rs.
func annotate(rs *appsv1.ReplicaSet, d *appsv1.Deployment, next int64) bool {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	changed := false
	for k, v := range d.Annotations {
		if have, ok := rs.Annotations[k]; !notCopied[k] && (!ok || have != v) {
			rs.Annotations[k], changed = v, true
		}
	}
	was, had := rs.Annotations[revisionAnnotation]
	if n, err := strconv.ParseInt(was, 10, 64); (err != nil && was != "") || n >= next {
		return changed
	}
	rs.Annotations[revisionAnnotation] = strconv.FormatInt(next, 10)
	if had {
		rs.Annotations[historyAnnotation] = appendHistory(rs.Annotations[historyAnnotation], was)
	}
	return true
}

// rollbackTo is the revision that the annotation asks for in which clients of
// extensions/v1beta1 asked; 0 is the one before the current one.
func rollbackTo(d *appsv1.Deployment) (int64, bool) {
	to, err := strconv.ParseInt(d.Annotations[appsv1.DeprecatedRollbackTo], 10, 64)
	return to, err == nil
}

// rollBack gives d the template and annotations of revision `to`, takes off what asked for
// it, and returns the event to tell (DEP-37).
func rollBack(d *appsv1.Deployment, s sets, to int64) (level, reason, message string) {
	delete(d.Annotations, appsv1.DeprecatedRollbackTo)
	all := slices.SortedFunc(slices.Values(s.all()),
		func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(revision(b), revision(a)) })
	if to == 0 && len(all) > 1 {
		to = revision(all[1])
	}
	if to == 0 {
		return corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find last revision."
	}
	i := slices.IndexFunc(all, func(rs *appsv1.ReplicaSet) bool { return revision(rs) == to })
	if i < 0 {
		return corev1.EventTypeWarning, "DeploymentRollbackRevisionNotFound", "Unable to find the revision to rollback to."
	}
	if sameTemplate(&d.Spec.Template, &all[i].Spec.Template) {
		return corev1.EventTypeWarning, "DeploymentRollbackTemplateUnchanged",
			fmt.Sprintf("The rollback revision contains the same template as current deployment %q", d.Name)
	}
	d.Spec.Template = *withoutHash(&all[i].Spec.Template)
	maps.DeleteFunc(d.Annotations, func(k, _ string) bool { return !notCopied[k] })
	for k, v := range all[i].Annotations {
		if !notCopied[k] {
			d.Annotations[k] = v
		}
	}
	return corev1.EventTypeNormal, "DeploymentRollback",
		fmt.Sprintf("Rolled back deployment %q to revision %d", d.Name, to)
}

func appendHistory(history, was string) string {
	if history == "" {
		return was
	}
	for len(history)+1+len(was) > maxHistoryChars {
		_, rest, ok := strings.Cut(history, ",")
		if !ok {
			return was
		}
		history = rest
	}
	return history + "," + was
}

// setSizeAnnotations notes for which Deployment size rs was scaled.
func setSizeAnnotations(rs *appsv1.ReplicaSet, d *appsv1.Deployment) bool {
	surge, _ := limits(d)
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	desired, top := strconv.Itoa(int(want(d))), strconv.Itoa(int(want(d)+surge))
	changed := rs.Annotations[desiredAnnotation] != desired || rs.Annotations[maxAnnotation] != top
	rs.Annotations[desiredAnnotation], rs.Annotations[maxAnnotation] = desired, top
	return changed
}

// expired lists the old sets beyond revisionHistoryLimit that are empty, the
// lowest revisions first.
func expired(d *appsv1.Deployment, old []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	if d.Spec.RevisionHistoryLimit == nil || *d.Spec.RevisionHistoryLimit == math.MaxInt32 {
		return nil
	}
	alive := slices.DeleteFunc(slices.Clone(old), func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp != nil })
	slices.SortStableFunc(alive, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(cmp.Compare(revision(a), revision(b)), byAge(a, b))
	})
	over := len(alive) - int(*d.Spec.RevisionHistoryLimit)
	if over <= 0 {
		return nil
	}
	return slices.DeleteFunc(alive[:over], func(rs *appsv1.ReplicaSet) bool {
		return rs.Status.Replicas != 0 || size(rs) != 0 || rs.Generation > rs.Status.ObservedGeneration
	})
}
