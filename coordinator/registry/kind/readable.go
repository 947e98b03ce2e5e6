package kind

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// readable refuses objects that upstream's decoder does not take, though their JSON fits
// the type; nil takes all.
type readable struct {
	kind   schema.GroupVersionKind
	refuse func(runtime.Object) error
}

func (d *declared[T]) readable(scheme *runtime.Scheme) (*readable, error) {
	if d.of.Readable == nil {
		return nil, nil
	}
	gvk, err := d.gvk(scheme)
	if err != nil {
		return nil, err
	}
	return &readable{kind: gvk, refuse: func(obj runtime.Object) error {
		t, ok := any(obj).(*T)
		if !ok {
			return nil
		}
		return d.of.Readable(t)
	}}, nil
}

// check answers as upstream's decoder does, and for a patch as what applies it.
func (r *readable) check(ctx context.Context, obj runtime.Object) error {
	if r == nil {
		return nil
	}
	err := r.refuse(obj)
	if err == nil {
		return nil
	}
	if info, ok := request.RequestInfoFrom(ctx); ok && info.Verb == "patch" {
		return err // upstream fails where it converts what is patched: an internal error
	}
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v",
		r.kind.Kind, r.kind.Version, r.kind.Kind, err))
}

func (r *readable) wrap(info rest.UpdatedObjectInfo) rest.UpdatedObjectInfo {
	if r == nil {
		return info
	}
	return rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, _ runtime.Object) (runtime.Object, error) {
		return obj, r.check(ctx, obj)
	})
}
