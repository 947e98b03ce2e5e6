package core

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func limitRange() kind.Kind {
	validate := func(_ context.Context, l *corev1.LimitRange) field.ErrorList { return validateLimits(l.Spec.Limits) }
	return kind.Of[corev1.LimitRange]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "limitranges", Singular: "limitrange",
			ShortNames: []string{"limits"}, List: &corev1.LimitRangeList{},
		},
		Default: func(l *corev1.LimitRange) {
			for i := range l.Spec.Limits {
				defaultLimit(&l.Spec.Limits[i])
			}
		},
		// The one kind that needs no name.
		Create: func(_ context.Context, l *corev1.LimitRange) {
			if l.Name == "" {
				l.Name = string(uuid.NewUUID())
			}
		},
		Validate:            validate,
		ValidateUpdate:      onBoth(validate),
		AllowCreateOnUpdate: true,
	}.Kind()
}

// defaultLimit completes a container's default limits from max and default
// requests from those, then from min.
func defaultLimit(l *corev1.LimitRangeItem) {
	for _, list := range []corev1.ResourceList{l.Max, l.Min, l.Default, l.DefaultRequest, l.MaxLimitRequestRatio} {
		podspec.RoundResources(list)
	}
	if l.Type != corev1.LimitTypeContainer {
		return
	}
	fill := func(to *corev1.ResourceList, from corev1.ResourceList) {
		if *to == nil {
			*to = corev1.ResourceList{}
		}
		for name, q := range from {
			if _, set := (*to)[name]; !set {
				(*to)[name] = q.DeepCopy()
			}
		}
	}
	fill(&l.Default, l.Max)
	fill(&l.DefaultRequest, l.Default)
	fill(&l.DefaultRequest, l.Min)
}

func validateLimits(limits []corev1.LimitRangeItem) (errs field.ErrorList) {
	seen := sets.New[corev1.LimitType]()
	for i := range limits {
		l, at := &limits[i], field.NewPath("spec", "limits").Index(i)
		errs = append(errs, validateLimitType(l.Type, at.Child("type"))...)
		if seen.Has(l.Type) {
			errs = append(errs, field.Duplicate(at.Child("type"), l.Type))
		}
		seen.Insert(l.Type)
		errs = append(errs, validateLimit(l, at)...)
	}
	return errs
}

func validateLimitType(t corev1.LimitType, p *field.Path) field.ErrorList {
	if bad := validation.IsQualifiedName(string(t)); len(bad) > 0 {
		return fieldrule.Invalid(p, t, bad)
	}
	switch t {
	case corev1.LimitTypePod, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim:
		return nil
	}
	if strings.Contains(string(t), "/") {
		return nil
	}
	return field.ErrorList{field.Invalid(p, t, "must be a standard limit type or fully qualified")}
}

func validateLimit(l *corev1.LimitRangeItem, p *field.Path) (errs field.ErrorList) {
	validateName := podspec.ValidateResourceName
	if l.Type == corev1.LimitTypePod || l.Type == corev1.LimitTypeContainer {
		validateName = podspec.ValidateContainerResourceName
	}
	names := sets.New[corev1.ResourceName]()
	for _, list := range []struct {
		name      string
		resources corev1.ResourceList
	}{{"max", l.Max}, {"min", l.Min}, {"default", l.Default}, {"defaultRequest", l.DefaultRequest},
		{"maxLimitRequestRatio", l.MaxLimitRequestRatio}} {
		if l.Type == corev1.LimitTypePod && strings.HasPrefix(list.name, "default") {
			if len(list.resources) > 0 {
				errs = append(errs, field.Forbidden(p.Child(list.name), "may not be specified when `type` is 'Pod'"))
			}
			continue
		}
		for name := range list.resources {
			names.Insert(name)
			errs = append(errs, validateName(name, p.Child(list.name).Key(string(name)))...)
		}
	}
	if l.Type == corev1.LimitTypePersistentVolumeClaim {
		_, min := l.Min[corev1.ResourceStorage]
		_, max := l.Max[corev1.ResourceStorage]
		if !min && !max {
			errs = append(errs, field.Required(p.Child("limits"), "either minimum or maximum storage value is required, but neither was provided"))
		}
	}
	for _, name := range sets.List(names) {
		errs = append(errs, compareLimits(l, name, p)...)
	}
	return errs
}

// compareLimits checks min <= defaultRequest <= default <= max of one resource.
func compareLimits(l *corev1.LimitRangeItem, name corev1.ResourceName, p *field.Path) (errs field.ErrorList) {
	type bound struct {
		q    resource.Quantity
		set  bool
		text string
	}
	get := func(list corev1.ResourceList, text string) bound {
		q, ok := list[name]
		return bound{q, ok, text}
	}
	min, max := get(l.Min, "min value"), get(l.Max, "max value")
	if l.Type == corev1.LimitTypePod { // its defaults are refused as such
		l = &corev1.LimitRangeItem{MaxLimitRequestRatio: l.MaxLimitRequestRatio}
	}
	limit, request := get(l.Default, "default limit value"), get(l.DefaultRequest, "default request value")
	plain := get(l.Default, "default value")
	less := func(a, b bound, child string, shown resource.Quantity) {
		if a.set && b.set && a.q.Cmp(b.q) > 0 {
			errs = append(errs, field.Invalid(p.Child(child).Key(string(name)), shown,
				fmt.Sprintf("%s %s is greater than %s %s", a.text, a.q.String(), b.text, b.q.String())))
		}
	}
	less(min, max, "min", min.q)
	less(min, request, "defaultRequest", request.q)
	less(request, max, "defaultRequest", request.q)
	less(request, limit, "defaultRequest", request.q)
	less(min, plain, "default", min.q)
	less(plain, max, "default", max.q)
	ratio, ok := l.MaxLimitRequestRatio[name]
	if !ok {
		return errs
	}
	at := p.Child("maxLimitRequestRatio").Key(string(name))
	if ratio.Cmp(resource.MustParse("1")) < 0 {
		errs = append(errs, field.Invalid(at, ratio, fmt.Sprintf("ratio %s is less than 1", ratio.String())))
	}
	if min.set && max.set && min.q.Sign() > 0 {
		if most := max.q.AsApproximateFloat64() / min.q.AsApproximateFloat64(); ratio.AsApproximateFloat64() > most {
			errs = append(errs,
				field.Invalid(at, ratio, fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), most)))
		}
	}
	return errs
}
