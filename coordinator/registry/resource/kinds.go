// Package resource declares the API group resource.k8s.io (KEP-4381): devices
// that nodes offer (ResourceSlice), their classes, and what pods claim of them.
package resource

import (
	"context"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

var groupVersion = resourcev1.SchemeGroupVersion

// Kinds lists the kinds of the group.
func Kinds() []kind.Kind {
	return []kind.Kind{deviceClass(), claim(), claimTemplate(), slice()}
}

func deviceClass() kind.Kind {
	type T = resourcev1.DeviceClass
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "deviceclasses", Singular: "deviceclass", ClusterScoped: true,
			NameRule: kind.OnlyWhole,
			List:     &resourcev1.DeviceClassList{},
		},
		Validate:       func(_ context.Context, c *T) field.ErrorList { return validateClass(&c.Spec, nil) },
		ValidateUpdate: func(_ context.Context, c, old *T) field.ErrorList { return validateClass(&c.Spec, &old.Spec) },
		Spec:           func(c *T) any { return &c.Spec },
		ReturnDeleted:  true,
		Columns:        []metav1.TableColumnDefinition{kind.NameColumn(), kind.AgeColumn()},
		Row:            func(c *T) []any { return []any{c.Name, kind.Age(c.CreationTimestamp)} },
	}.Kind()
}

func claim() kind.Kind {
	type T = resourcev1.ResourceClaim
	admin, writers := &admins{}, &writers{}
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion,
			Resource:     "resourceclaims", Singular: "resourceclaim", List: &resourcev1.ResourceClaimList{},
		},
		Default: func(c *T) {
			defaultRequests(c.Spec.Devices.Requests)
			if a := c.Status.Allocation; a != nil {
				for i := range a.Devices.Results {
					defaultTolerations(a.Devices.Results[i].Tolerations)
				}
			}
		},
		Create: func(_ context.Context, c *T) { c.Status = resourcev1.ResourceClaimStatus{} },
		Main: func(env *kind.Env, stores kind.Stores, main *kind.REST) rest.Storage {
			writers.env = env
			return admin.main(env, stores, main)
		},
		Validate: func(ctx context.Context, c *T) field.ErrorList {
			return append(admin.requests(ctx, c.Namespace, c.Spec.Devices.Requests),
				validateClaim(&c.Spec, field.NewPath("spec"))...)
		},
		ValidateUpdate: func(_ context.Context, c, old *T) field.ErrorList {
			return immutable(c.Spec, old.Spec, field.NewPath("spec"))
		},
		Status: &kind.StatusOf[T]{
			Copy:    func(to, from *T) { to.Status = from.Status },
			NoTable: true,
			Meta:    metav1.ResetObjectMetaForStatus,
			Update:  func(_ context.Context, c, old *T) { dropReleased(c, old) },
			Validate: func(ctx context.Context, c, old *T) field.ErrorList {
				errs := append(admin.results(ctx, c, old), writers.check(ctx, c, old)...)
				return append(errs, validateClaimStatus(c, old)...)
			},
			ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("metadata")),
		},
		ReturnDeleted: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("State", "string", "A summary of the current state (allocated, pending, reserved, etc.)."),
			kind.AgeColumn(),
		},
		Row: func(c *T) []any { return []any{c.Name, stateCell(c), kind.Age(c.CreationTimestamp)} },
	}.Kind()
}

func claimTemplate() kind.Kind {
	type T = resourcev1.ResourceClaimTemplate
	admin := &admins{}
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion,
			Resource:     "resourceclaimtemplates", Singular: "resourceclaimtemplate",
			List: &resourcev1.ResourceClaimTemplateList{},
		},
		Default: func(c *T) { defaultRequests(c.Spec.Spec.Devices.Requests) },
		Main:    admin.main,
		Validate: func(ctx context.Context, c *T) field.ErrorList {
			return append(admin.requests(ctx, c.Namespace, c.Spec.Spec.Devices.Requests), validateTemplate(c)...)
		},
		ValidateUpdate: func(_ context.Context, c, old *T) field.ErrorList {
			return append(validateTemplate(c), immutable(c.Spec, old.Spec, field.NewPath("spec"))...)
		},
		ReturnDeleted: true,
		Columns:       []metav1.TableColumnDefinition{kind.NameColumn(), kind.AgeColumn()},
		Row:           func(c *T) []any { return []any{c.Name, kind.Age(c.CreationTimestamp)} },
	}.Kind()
}

func validateTemplate(t *resourcev1.ResourceClaimTemplate) field.ErrorList {
	p := field.NewPath("spec")
	return append(podspec.ValidateTemplateMeta(&t.Spec.ObjectMeta, p.Child("metadata")),
		validateClaim(&t.Spec.Spec, p.Child("spec"))...)
}

func slice() kind.Kind {
	type T = resourcev1.ResourceSlice
	return kind.Of[T]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "resourceslices", Singular: "resourceslice", ClusterScoped: true,
			List: &resourcev1.ResourceSliceList{},
		},
		Default:        defaultSlice,
		Validate:       func(_ context.Context, s *T) field.ErrorList { return validateSlice(&s.Spec, nil) },
		ValidateUpdate: func(_ context.Context, s, old *T) field.ErrorList { return validateSlice(&s.Spec, &old.Spec) },
		Warnings: func(_ context.Context, s, _ *T) []string {
			if s.Spec.Driver == strings.ToLower(s.Spec.Driver) {
				return nil
			}
			return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters",
				s.Spec.Driver)}
		},
		Spec:          func(s *T) any { return &s.Spec },
		CountsDropped: true,
		Fields: func(s *T) fields.Set {
			return fields.Set{"spec.nodeName": nodeOf(s), "spec.driver": s.Spec.Driver}
		},
		Indexed:       []string{"spec.nodeName"},
		ReturnDeleted: true,
		RefuseField: func(label string) error {
			return fmt.Errorf("field label not supported for %s: %s", groupVersion.WithKind("ResourceSlice"), label)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Node", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
			kind.Column("Driver", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
			kind.Column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
			kind.AgeColumn(),
		},
		Row: func(s *T) []any {
			return []any{s.Name, nodeOf(s), s.Spec.Driver, s.Spec.Pool.Name, kind.Age(s.CreationTimestamp)}
		},
	}.Kind()
}

func nodeOf(s *resourcev1.ResourceSlice) string {
	if s.Spec.NodeName == nil {
		return ""
	}
	return *s.Spec.NodeName
}

func immutable(now, old any, p *field.Path) field.ErrorList {
	if equality.Semantic.DeepEqual(now, old) {
		return nil
	}
	return field.ErrorList{field.Invalid(p, now, apivalidation.FieldImmutableErrorMsg)}
}

func stateCell(c *resourcev1.ResourceClaim) string {
	var states []string
	if c.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case c.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(c.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	case c.DeletionTimestamp == nil:
		states = append(states, "pending")
	}
	return strings.Join(states, ",")
}

func defaultRequests(list []resourcev1.DeviceRequest) {
	for i := range list {
		if e := list[i].Exactly; e != nil {
			defaultMode(&e.AllocationMode, &e.Count)
			defaultTolerations(e.Tolerations)
		}
		for k := range list[i].FirstAvailable {
			sub := &list[i].FirstAvailable[k]
			defaultMode(&sub.AllocationMode, &sub.Count)
			defaultTolerations(sub.Tolerations)
		}
	}
}

func defaultTolerations(list []resourcev1.DeviceToleration) {
	for i := range list {
		fieldrule.DefaultEmpty(&list[i].Operator, resourcev1.DeviceTolerationOpEqual)
	}
}

func defaultMode(mode *resourcev1.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourcev1.DeviceAllocationModeExactCount
	}
	if *mode == resourcev1.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func defaultSlice(s *resourcev1.ResourceSlice) {
	for i := range s.Spec.Devices {
		taints := s.Spec.Devices[i].Taints
		for k := range taints {
			if taints[k].TimeAdded == nil {
				now := metav1.Now().Rfc3339Copy()
				taints[k].TimeAdded = &now
			}
		}
	}
}

// dropReleased forgets what drivers said of devices that are no longer
// allocated.
func dropReleased(c, old *resourcev1.ResourceClaim) {
	if old.Status.Allocation == nil {
		return
	}
	released := map[deviceID]bool{}
	for _, r := range old.Status.Allocation.Devices.Results {
		released[resultID(&r)] = true
	}
	if c.Status.Allocation != nil {
		for _, r := range c.Status.Allocation.Devices.Results {
			delete(released, resultID(&r))
		}
	}
	var kept []resourcev1.AllocatedDeviceStatus
	for _, d := range c.Status.Devices {
		if !released[statusID(&d)] {
			kept = append(kept, d)
		}
	}
	c.Status.Devices = kept
}

// deviceID names a device, or a share of one.
type deviceID struct{ Driver, Pool, Device, ShareID string }

func resultID(r *resourcev1.DeviceRequestAllocationResult) deviceID {
	id := deviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
	if r.ShareID != nil {
		id.ShareID = string(*r.ShareID)
	}
	return id
}

func statusID(d *resourcev1.AllocatedDeviceStatus) deviceID {
	id := deviceID{Driver: d.Driver, Pool: d.Pool, Device: d.Device}
	if d.ShareID != nil {
		id.ShareID = *d.ShareID
	}
	return id
}
