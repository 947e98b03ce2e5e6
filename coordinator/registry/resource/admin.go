package resource

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// admins knows which namespaces may have claims of administrators: those use a
// device beside its owner (KEP-5018).
type admins struct{ namespaces rest.Getter }

// main is the Main of a kind whose claims are checked: it takes the store of
// namespaces.
func (a *admins) main(_ *kind.Env, stores kind.Stores, main *kind.REST) rest.Storage {
	if s := stores["/namespaces"]; s != nil {
		a.namespaces = s
	}
	return main
}

// check refuses, at p, a namespace that does not say that it is for administrators.
func (a *admins) check(ctx context.Context, namespace string, p *field.Path) field.ErrorList {
	if a.namespaces == nil {
		return field.ErrorList{field.InternalError(p, fmt.Errorf("namespaces are not served"))}
	}
	obj, err := a.namespaces.Get(ctx, namespace, &metav1.GetOptions{})
	if err != nil {
		err = fmt.Errorf("could not retrieve namespace to verify admin access: %w", err)
		return field.ErrorList{field.InternalError(p, err)}
	}
	if n, ok := obj.(*corev1.Namespace); !ok || n.Labels[resourcev1.DRAAdminNamespaceLabelKey] != "true" {
		return field.ErrorList{field.Forbidden(p, fmt.Sprintf("admin access to devices requires the `%s: true` label "+
			"on the containing namespace", resourcev1.DRAAdminNamespaceLabelKey))}
	}
	return nil
}

// requests checks a claim that is made.
func (a *admins) requests(ctx context.Context, namespace string, list []resourcev1.DeviceRequest) field.ErrorList {
	for i := range list {
		if e := list[i].Exactly; e != nil && e.AdminAccess != nil && *e.AdminAccess {
			return a.check(ctx, namespace, field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess"))
		}
	}
	return nil
}

// results checks what a claim is given, once: an allocation does not change.
func (a *admins) results(ctx context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
	if _, had := adminResult(old); had {
		return nil
	}
	if p, has := adminResult(c); has {
		return a.check(ctx, c.Namespace, p)
	}
	return nil
}

func adminResult(c *resourcev1.ResourceClaim) (*field.Path, bool) {
	if c.Status.Allocation == nil {
		return nil, false
	}
	for i, r := range c.Status.Allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess"), true
		}
	}
	return nil, false
}
