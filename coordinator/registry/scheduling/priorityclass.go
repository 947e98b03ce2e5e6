// Package scheduling declares the API group scheduling.k8s.io/v1: PriorityClass.
package scheduling

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

const (
	systemPrefix = "system-"
	// maxUserValue is the highest priority that a user may define; the two
	// system classes stand above it.
	maxUserValue = int32(1_000_000_000)
)

// SystemClasses are the two classes that exist in every cluster.
func SystemClasses() []*schedulingv1.PriorityClass {
	class := func(name string, above int32, description string) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: 2*maxUserValue + above, Description: description,
			PreemptionPolicy: ptr.To(corev1.PreemptLowerPriority),
		}
	}
	return []*schedulingv1.PriorityClass{
		class("system-node-critical", 1000, "Used for system critical pods that must not be moved from their current node."),
		class("system-cluster-critical", 0, "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary."),
	}
}

// Kinds lists the group's kinds.
func Kinds() []kind.Kind { return []kind.Kind{priorityClass()} }

func priorityClass() kind.Kind {
	return kind.Of[schedulingv1.PriorityClass]{
		Names: kind.Names{
			GroupVersion: schedulingv1.SchemeGroupVersion, Resource: "priorityclasses", Singular: "priorityclass",
			ShortNames: []string{"pc"}, ClusterScoped: true, List: &schedulingv1.PriorityClassList{},
		},
		Default: func(c *schedulingv1.PriorityClass) {
			if c.PreemptionPolicy == nil {
				c.PreemptionPolicy = ptr.To(corev1.PreemptLowerPriority)
			}
		},
		Create:         func(_ context.Context, c *schedulingv1.PriorityClass) { c.Generation = 1 },
		Validate:       validate,
		ValidateUpdate: validateUpdate,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"]),
			kind.Column("Global-Default", "boolean", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"]),
			kind.AgeColumn(),
			kind.Column("PreemptionPolicy", "string", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
		},
		Row: func(c *schedulingv1.PriorityClass) []any {
			return []any{c.Name, int64(c.Value), c.GlobalDefault, kind.Age(c.CreationTimestamp),
				string(ptr.Deref(c.PreemptionPolicy, ""))}
		},
		Main: func(_ *kind.Env, _ kind.Stores, main *kind.REST) rest.Storage { return &classREST{main} },
	}.Kind()
}

// classREST keeps the system's classes.
type classREST struct{ *kind.REST }

func (r *classREST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc,
	options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	for _, c := range SystemClasses() {
		if c.Name == name {
			return nil, false, apierrors.NewForbidden(schedulingv1.Resource("priorityclasses"), name,
				errors.New("this is a system priority class and cannot be deleted"))
		}
	}
	return r.REST.Delete(ctx, name, validate, options)
}

func validate(_ context.Context, c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, systemPrefix) {
		if err := knownSystemClass(c); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				"priority class names with '"+systemPrefix+
					"' prefix are reserved for system use only. error: "+err.Error()))
		}
	} else if c.Value > maxUserValue {
		errs = append(errs,
			field.Forbidden(field.NewPath("value"),
				fmt.Sprintf("maximum allowed value of a user defined priority is %v", maxUserValue)))
	}
	if policy := c.PreemptionPolicy; policy != nil {
		errs = append(errs, podspec.OneOf(*policy, field.NewPath("preemptionPolicy"),
			corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	return errs
}

func knownSystemClass(c *schedulingv1.PriorityClass) error {
	for _, known := range SystemClasses() {
		if known.Name != c.Name {
			continue
		}
		if known.Value != c.Value {
			return fmt.Errorf("value of %v PriorityClass must be %v", known.Name, known.Value)
		}
		if known.GlobalDefault != c.GlobalDefault {
			return fmt.Errorf("globalDefault of %v PriorityClass must be %v", known.Name, known.GlobalDefault)
		}
		return nil
	}
	return fmt.Errorf("%v is not a known system priority class", c.Name)
}

func validateUpdate(_ context.Context, c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs,
		apivalidation.ValidateImmutableField(c.PreemptionPolicy, old.PreemptionPolicy,
			field.NewPath("preemptionPolicy"))...)
}
