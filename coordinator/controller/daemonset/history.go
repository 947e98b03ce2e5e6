package daemonset

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shoal-project/shoal/coordinator/controller"
)

var errCollision = errors.New("hash collision, trying the next")

// patchOf is a template as ControllerRevisions keep it: a strategic merge patch
// that `kubectl rollout undo` applies.
func patchOf(template *corev1.PodTemplateSpec) ([]byte, error) {
	t, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	t["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": t}})
}

// sameData compares two patches by meaning: the API may have written one anew.
func sameData(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && apiequality.Semantic.DeepEqual(x, y)
}

func newRevision(ds *appsv1.DaemonSet, patch []byte, number int64) *appsv1.ControllerRevision {
	h := fnv.New32a()
	_, _ = h.Write(patch)
	if ds.Status.CollisionCount != nil {
		_, _ = h.Write([]byte(strconv.Itoa(int(*ds.Status.CollisionCount))))
	}
	sum := rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
	labels := maps.Clone(ds.Spec.Template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.DefaultDaemonSetUniqueLabelKey] = sum
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name:      ds.Name[:min(len(ds.Name), validation.DNS1123SubdomainMaxLength-len(sum)-1)] + "-" + sum,
			Namespace: ds.Namespace, Labels: labels, Annotations: maps.Clone(ds.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(ds, ownKind)},
		},
		Data: runtime.RawExtension{Raw: patch}, Revision: number,
	}
}

// revisions returns the current revision, made if need be and numbered last,
// and the old ones.
func (r *reconciler) revisions(ctx context.Context, ds *appsv1.DaemonSet) (current *appsv1.ControllerRevision, old []*appsv1.ControllerRevision, err error) {
	patch, err := patchOf(&ds.Spec.Template)
	if err != nil {
		return nil, nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(ds.Spec.Selector)
	if err != nil {
		return nil, nil, fmt.Errorf("selector: %w", err)
	}
	client := r.client.AppsV1().ControllerRevisions(ds.Namespace)
	owned, err := controller.Claim(ctx, &controller.Claimer{
		Owner: ds, Kind: ownKind, Selector: selector, Live: r.live(ds),
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := client.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, controller.Candidates[appsv1.ControllerRevision](r.revisionsIx, ds))
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(owned, func(a, b *appsv1.ControllerRevision) int { return cmp.Compare(a.Revision, b.Revision) })
	number := int64(1)
	for _, rev := range owned {
		if sameData(rev.Data.Raw, patch) {
			current = rev // of several, the newest
			continue
		}
		old = append(old, rev)
		number = rev.Revision + 1
	}
	switch {
	case current == nil:
		current, err = r.newCurrent(ctx, ds, patch, number)
	case current.Revision < number:
		renumbered := current.DeepCopy()
		renumbered.Revision = number
		current, err = client.Update(ctx, renumbered, metav1.UpdateOptions{})
	}
	return current, old, err
}

func (r *reconciler) newCurrent(ctx context.Context, ds *appsv1.DaemonSet, patch []byte, number int64) (*appsv1.ControllerRevision, error) {
	want := newRevision(ds, patch, number)
	client := r.client.AppsV1().ControllerRevisions(ds.Namespace)
	made, err := client.Create(ctx, want, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	have, err := client.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if metav1.IsControlledBy(have, ds) && sameData(have.Data.Raw, patch) {
		return have, nil
	}
	collided := *ds
	n := int32(1)
	if ds.Status.CollisionCount != nil {
		n += *ds.Status.CollisionCount
	}
	collided.Status.CollisionCount = &n
	if _, err := r.client.AppsV1().DaemonSets(ds.Namespace).UpdateStatus(ctx, &collided, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return nil, errCollision
}

// expired are the old revisions beyond revisionHistoryLimit that no pod has.
func expired(ds *appsv1.DaemonSet, old []*appsv1.ControllerRevision, pods map[string][]*corev1.Pod) []*appsv1.ControllerRevision {
	limit := 10
	if ds.Spec.RevisionHistoryLimit != nil {
		limit = int(*ds.Spec.RevisionHistoryLimit)
	}
	over := len(old) - limit
	live := map[string]bool{}
	for _, list := range pods {
		for _, p := range list {
			live[p.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
		}
	}
	var out []*appsv1.ControllerRevision
	for _, rev := range old {
		if len(out) >= over {
			break
		}
		if !live[rev.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] {
			out = append(out, rev)
		}
	}
	return out
}
