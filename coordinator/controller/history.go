package controller

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// History keeps the pod templates that an owner of one kind had, each as a
// ControllerRevision, for `kubectl rollout undo` and for pods that stay at an
// old one.
type History struct {
	Client kubernetes.Interface
	// Revisions is the ControllerRevisions' indexer, with ByController.
	Revisions cache.Indexer
	Kind      schema.GroupVersionKind
	// HashLabel is the label of a revision that holds its hash.
	HashLabel string
}

// Revised is what History knows of an owner.
type Revised struct {
	Owner    metav1.Object
	Template *corev1.PodTemplateSpec
	Selector *metav1.LabelSelector
	// Collisions is status.collisionCount.
	Collisions *int32
	// Live reads the owner past the cache, before an adoption.
	Live func(ctx context.Context) (metav1.Object, error)
}

// Revisions are an owner's.
type Revisions struct {
	// Update is the template's own, the newest.
	Update *appsv1.ControllerRevision
	// Old are the others, oldest first.
	Old []*appsv1.ControllerRevision
	// Collisions is the new status.collisionCount, unchanged mostly.
	Collisions *int32
}

// Named returns the revision of a name, nil when there is none.
func (r Revisions) Named(name string) *appsv1.ControllerRevision {
	if r.Update != nil && r.Update.Name == name {
		return r.Update
	}
	for _, rev := range r.Old {
		if rev.Name == name {
			return rev
		}
	}
	return nil
}

// Sync returns the owner's revisions, that of its template made if need be and
// numbered last. It adopts and releases by the selector.
func (h History) Sync(ctx context.Context, o Revised) (Revisions, error) {
	out := Revisions{Collisions: o.Collisions}
	patch, err := patchOf(o.Template)
	if err != nil {
		return out, err
	}
	owned, err := h.claim(ctx, o)
	if err != nil {
		return out, err
	}
	number := int64(1)
	for _, rev := range owned {
		if sameData(rev.Data.Raw, patch) {
			if out.Update != nil { // of several, the newest
				out.Old = append(out.Old, out.Update)
				number = out.Update.Revision + 1
			}
			out.Update = rev
			continue
		}
		out.Old = append(out.Old, rev)
		number = rev.Revision + 1
	}
	switch {
	case out.Update == nil:
		err = h.add(ctx, o, patch, number, &out)
	case out.Update.Revision < number:
		renumbered := out.Update.DeepCopy()
		renumbered.Revision = number
		out.Update, err = h.Client.AppsV1().ControllerRevisions(o.Owner.GetNamespace()).Update(ctx,
			renumbered, metav1.UpdateOptions{})
	}
	return out, err
}

func (h History) claim(ctx context.Context, o Revised) ([]*appsv1.ControllerRevision, error) {
	selector, err := metav1.LabelSelectorAsSelector(o.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector: %w", err)
	}
	owned, err := Claim(ctx, &Claimer{
		Owner: o.Owner, Kind: h.Kind, Selector: selector, Live: o.Live,
		Patch: func(ctx context.Context, name string, patch []byte) error {
			_, err := h.Client.AppsV1().ControllerRevisions(o.Owner.GetNamespace()).Patch(ctx, name,
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, Candidates[appsv1.ControllerRevision](h.Revisions, o.Owner))
	slices.SortFunc(owned, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name))
	})
	return owned, err
}

// add creates the revision of the owner's template. A name that is taken by
// other data is a collision of hashes: the count in it makes the next one.
func (h History) add(ctx context.Context, o Revised, patch []byte, number int64, out *Revisions) error {
	client := h.Client.AppsV1().ControllerRevisions(o.Owner.GetNamespace())
	for {
		want := h.revision(o, patch, number, out.Collisions)
		made, err := client.Create(ctx, want, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			out.Update = made
			return err
		}
		have, err := client.Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if metav1.IsControlledBy(have, o.Owner) && sameData(have.Data.Raw, patch) {
			out.Update = have
			return nil
		}
		n := int32(1)
		if out.Collisions != nil {
			n += *out.Collisions
		}
		out.Collisions = &n
	}
}

func (h History) revision(o Revised, patch []byte, number int64, collisions *int32) *appsv1.ControllerRevision {
	f := fnv.New32a()
	_, _ = f.Write(patch)
	if collisions != nil {
		_, _ = f.Write([]byte(strconv.Itoa(int(*collisions))))
	}
	sum := rand.SafeEncodeString(strconv.FormatUint(uint64(f.Sum32()), 10))
	labels := maps.Clone(o.Template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[h.HashLabel] = sum
	name := o.Owner.GetName()
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name[:min(len(name), validation.DNS1123SubdomainMaxLength-len(sum)-1)] + "-" + sum,
			Namespace: o.Owner.GetNamespace(), Labels: labels, Annotations: maps.Clone(o.Owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o.Owner, h.Kind)},
		},
		Data: runtime.RawExtension{Raw: patch}, Revision: number,
	}
}

// Trim deletes the oldest of old but for limit and those that are live.
func (h History) Trim(ctx context.Context, old []*appsv1.ControllerRevision, limit int,
	live func(*appsv1.ControllerRevision) bool) error {
	for _, rev := range expired(old, limit, live) {
		err := h.Client.AppsV1().ControllerRevisions(rev.Namespace).Delete(ctx, rev.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// expired returns the oldest revisions that are not live, so many that limit of
// those remain.
func expired(old []*appsv1.ControllerRevision, limit int,
	live func(*appsv1.ControllerRevision) bool) []*appsv1.ControllerRevision {
	if limit < 0 {
		return nil
	}
	dead := slices.DeleteFunc(slices.Clone(old), live)
	return dead[:max(len(dead)-limit, 0)]
}

// TemplateOf returns the pod template that a revision keeps.
func TemplateOf(rev *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var kept struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(rev.Data.Raw, &kept); err != nil {
		return nil, fmt.Errorf("revision %s: %w", rev.Name, err)
	}
	return &kept.Spec.Template, nil
}

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
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && equality.Semantic.DeepEqual(x, y)
}
