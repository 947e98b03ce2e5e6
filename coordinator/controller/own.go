package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ByController is the index that finds the objects an owner controls by its
// UID, and those that nobody controls by OrphanKey(namespace).
const ByController = "controller"

// OrphanKey is the ByController key of a namespace's objects without controller.
func OrphanKey(namespace string) string { return "orphan/" + namespace }

// IndexByController adds the ByController index to informer.
func IndexByController(informer cache.SharedIndexInformer) error {
	return Index(informer, ByController, func(obj any) ([]string, error) {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, nil
		}
		if ref := metav1.GetControllerOfNoCopy(m); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{OrphanKey(m.GetNamespace())}, nil
	})
}

// Controlled returns the cached objects that the owner with uid controls.
func Controlled[T any](indexer cache.Indexer, uid types.UID) []*T {
	return byIndex[T](indexer, string(uid))
}

// Candidates returns what the owner controls and what nobody in its namespace
// controls: the objects that Claim chooses from.
func Candidates[T any](indexer cache.Indexer, owner metav1.Object) []*T {
	return append(byIndex[T](indexer, string(owner.GetUID())), byIndex[T](indexer, OrphanKey(owner.GetNamespace()))...)
}

func byIndex[T any](indexer cache.Indexer, key string) []*T {
	objs, _ := indexer.ByIndex(ByController, key)
	out := make([]*T, 0, len(objs))
	for _, o := range objs {
		if t, ok := o.(*T); ok {
			out = append(out, t)
		}
	}
	return out
}

// OwnerKey returns the key of obj's controller when it is of the given kind.
func OwnerKey(obj metav1.Object, kind schema.GroupVersionKind) (key string, ok bool) {
	ref := metav1.GetControllerOfNoCopy(obj)
	if ref == nil || ref.Kind != kind.Kind {
		return "", false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || gv.Group != kind.Group {
		return "", false
	}
	return Key(obj.GetNamespace(), ref.Name), true
}

// Key is the workqueue key of an object.
func Key(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// Claimer adopts and releases objects for one owner.
type Claimer struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Live reads the owner past the cache; its UID and deletion decide about an
	// adoption. It is called at most once.
	Live func(ctx context.Context) (metav1.Object, error)
	// Patch sends a strategic merge patch to one candidate.
	Patch func(ctx context.Context, name string, patch []byte) error
	// Finalizers are given to adopted objects.
	Finalizers []string
	live       error
	asked      bool
}

// Claim returns the candidates that the owner controls after adopting those
// without controller that match, and releasing those that match no longer.
func Claim[T any, P interface {
	*T
	metav1.Object
}](ctx context.Context, c *Claimer, candidates []P) ([]P, error) {
	claimed := make([]P, 0, len(candidates))
	var errs []error
	for _, obj := range candidates {
		ok, err := c.claim(ctx, obj)
		if err != nil {
			errs = append(errs, err)
		}
		if ok {
			claimed = append(claimed, obj)
		}
	}
	return claimed, errors.Join(errs...)
}

func (c *Claimer) claim(ctx context.Context, obj metav1.Object) (bool, error) {
	ref := metav1.GetControllerOfNoCopy(obj)
	matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
	switch {
	case ref != nil && ref.UID != c.Owner.GetUID():
		return false, nil
	case ref != nil && matches:
		return true, nil
	case ref != nil:
		if c.Owner.GetDeletionTimestamp() != nil {
			return false, nil
		}
		return false, gone(c.release(ctx, obj))
	case !matches || c.Owner.GetDeletionTimestamp() != nil || obj.GetDeletionTimestamp() != nil:
		return false, nil
	}
	if err := c.adopt(ctx, obj); err != nil {
		return false, gone(err)
	}
	return true, nil
}

func (c *Claimer) release(ctx context.Context, obj metav1.Object) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []any{map[string]any{"$patch": "delete", "uid": c.Owner.GetUID()}},
	}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, obj.GetName(), patch)
}

func (c *Claimer) adopt(ctx context.Context, obj metav1.Object) error {
	if !c.asked {
		c.asked, c.live = true, c.canAdopt(ctx)
	}
	if c.live != nil {
		return fmt.Errorf("can't adopt %s: %w", obj.GetName(), c.live)
	}
	m := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}
	if len(c.Finalizers) > 0 {
		m["finalizers"] = c.Finalizers
	}
	patch, err := json.Marshal(map[string]any{"metadata": m})
	if err != nil {
		return err
	}
	return c.Patch(ctx, obj.GetName(), patch)
}

func (c *Claimer) canAdopt(ctx context.Context) error {
	live, err := c.Live(ctx)
	if err != nil {
		return err
	}
	if live.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("original %s %s/%s is gone: got uid %v, wanted %v",
			c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(), live.GetUID(), c.Owner.GetUID())
	}
	if t := live.GetDeletionTimestamp(); t != nil {
		return fmt.Errorf("%s/%s has just been deleted at %v", live.GetNamespace(), live.GetName(), t)
	}
	return nil
}

// gone drops the errors that say the object went away or is another by now.
func gone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}
