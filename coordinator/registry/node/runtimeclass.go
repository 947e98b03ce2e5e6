// Package node declares the API group node.k8s.io/v1: RuntimeClass (KEP-585,
// KEP-688).
package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind { return []kind.Kind{runtimeClass()} }

func runtimeClass() kind.Kind {
	return kind.Of[nodev1.RuntimeClass]{
		Names: kind.Names{
			GroupVersion: nodev1.SchemeGroupVersion, Resource: "runtimeclasses", Singular: "runtimeclass",
			ClusterScoped: true, List: &nodev1.RuntimeClassList{},
		},
		AnyFinalizer: true,
		Validate:     func(_ context.Context, c *nodev1.RuntimeClass) field.ErrorList { return validate(c) },
		ValidateUpdate: func(_ context.Context, c, old *nodev1.RuntimeClass) field.ErrorList {
			return append(validate(c),
				apivalidation.ValidateImmutableField(c.Handler, old.Handler, field.NewPath("handler"))...)
		},
		Warnings:                func(_ context.Context, c, _ *nodev1.RuntimeClass) []string { return warnings(c) },
		AllowCreateOnUpdate:     true,
		DenyUnconditionalUpdate: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			// Upstream's text of the column is empty.
			kind.Column("Handler", "string", ""),
			kind.AgeColumn(),
		},
		Row: func(c *nodev1.RuntimeClass) []any { return []any{c.Name, c.Handler, kind.Age(c.CreationTimestamp)} },
	}.Kind()
}

func validate(c *nodev1.RuntimeClass) (errs field.ErrorList) {
	p := field.NewPath("handler")
	if c.Handler == "" {
		errs = append(errs, field.Required(p, ""))
	} else {
		errs = append(errs, fieldrule.Invalid(p, c.Handler, apivalidation.NameIsDNSLabel(c.Handler, false))...)
	}
	if c.Overhead != nil {
		errs = append(errs,
			podspec.ValidateRequirements(&corev1.ResourceRequirements{Limits: c.Overhead.PodFixed}, nil,
				field.NewPath("overhead"))...)
	}
	if s := c.Scheduling; s != nil {
		p := field.NewPath("scheduling")
		errs = append(errs, metavalidation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector"))...)
		errs = append(errs, validateTolerations(s.Tolerations, p.Child("tolerations"))...)
	}
	return errs
}

func validateTolerations(list []corev1.Toleration, p *field.Path) field.ErrorList {
	errs := podspec.ValidateTolerations(list, p)
	seen := sets.New[corev1.Toleration]()
	for i, t := range list {
		key := corev1.Toleration{Key: t.Key, Operator: t.Operator, Value: t.Value, Effect: t.Effect}
		if seen.Has(key) {
			// Upstream shows the Go fields of its inner type.
			errs = append(errs, field.Duplicate(p.Index(i), struct {
				Key               string
				Operator          corev1.TolerationOperator
				Value             string
				Effect            corev1.TaintEffect
				TolerationSeconds *int64
			}(t)))
		}
		seen.Insert(key)
	}
	return errs
}

func warnings(c *nodev1.RuntimeClass) (out []string) {
	if c.Scheduling == nil {
		return nil
	}
	for key := range c.Scheduling.NodeSelector {
		if message, ok := podspec.DeprecatedNodeLabel(key); ok {
			out = append(out, fmt.Sprintf("%s: %s", field.NewPath("scheduling", "nodeSelector"), message))
		}
	}
	return out
}
