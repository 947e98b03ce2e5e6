package resource

import (
	"fmt"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxValidValues is upstream's, which the API's package does not name.
const maxValidValues = 10

// validateCapacity checks how a device that many share is given out in parts.
func validateCapacity(c *resourcev1.DeviceCapacity, shared bool, p *field.Path) field.ErrorList {
	policy := c.RequestPolicy
	p = p.Child("requestPolicy")
	switch {
	case policy == nil:
		return nil
	case !shared:
		return field.ErrorList{field.Forbidden(p, "allowMultipleAllocations must be true")}
	case len(policy.ValidValues) > 0 && policy.ValidRange != nil:
		return field.ErrorList{field.Forbidden(p,
			`exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time`)}
	case len(policy.ValidValues) > 0 && policy.Default == nil:
		return field.ErrorList{field.Required(p.Child("default"), "required when validValues is defined")}
	case len(policy.ValidValues) > 0:
		return validateValues(policy.ValidValues, *policy.Default, c.Value, p.Child("validValues"))
	case policy.ValidRange != nil && policy.Default == nil:
		return field.ErrorList{field.Required(p.Child("default"), "required when validRange is defined")}
	case policy.ValidRange != nil:
		return validateRange(policy.ValidRange, *policy.Default, c.Value, p.Child("validRange"))
	}
	return nil
}

func validateValues(list []resource.Quantity, usual, all resource.Quantity, p *field.Path) (errs field.ErrorList) {
	for i := 1; i < len(list); i++ {
		if list[i-1].Cmp(list[i]) > 0 {
			errs = append(errs, field.Invalid(p.Index(i), list[i].String(), "values must be sorted in ascending order"))
		}
	}
	if many := tooMany(len(list), maxValidValues, p); many != nil {
		errs = append(errs, many...)
	} else {
		errs = append(errs, validateOptions(list, all, p)...)
	}
	if !slices.ContainsFunc(list, func(q resource.Quantity) bool { return q.Cmp(usual) == 0 }) {
		errs = append(errs, field.Invalid(p, usual.String(), "default value is not valid according to the requestPolicy"))
	}
	return errs
}

func validateOptions(list []resource.Quantity, all resource.Quantity, p *field.Path) (errs field.ErrorList) {
	for i := range list {
		if list[i].Cmp(all) > 0 {
			errs = append(errs, field.Invalid(p.Index(i), list[i].String(),
				"option is larger than capacity value: "+all.String()))
		}
	}
	seen := map[int64]bool{}
	for i := range list {
		if seen[list[i].Value()] {
			errs = append(errs, field.Duplicate(p.Index(i), fmt.Sprint(list[i].Value())))
		}
		seen[list[i].Value()] = true
	}
	return errs
}

func validateRange(r *resourcev1.CapacityRequestPolicyRange, usual, all resource.Quantity,
	p *field.Path) (errs field.ErrorList) {
	if r.Min == nil {
		return field.ErrorList{field.Required(p.Child("min"), "required when validRange is defined")}
	}
	refuse := func(bad bool, child string, value *resource.Quantity, why string, than *resource.Quantity) {
		if bad {
			errs = append(errs, field.Invalid(p.Child(child), value.String(), why+": "+than.String()))
		}
	}
	refuse(r.Min.Cmp(all) > 0, "min", r.Min, "min is larger than capacity value", &all)
	refuse(usual.Cmp(*r.Min) < 0, "min", &usual, "default is less than min", r.Min)
	if r.Max != nil {
		refuse(r.Min.Cmp(*r.Max) > 0, "max", r.Min, "min is larger than max", r.Max)
		refuse(r.Max.Cmp(all) > 0, "max", r.Max, "max is larger than capacity value", &all)
		refuse(usual.Cmp(*r.Max) > 0, "max", &usual, "default is more than max", r.Max)
	}
	if r.Step == nil {
		return errs
	}
	next := r.Min.DeepCopy()
	next.Add(*r.Step)
	refuse(next.Cmp(all) > 0, "step", r.Step, "one step "+next.String()+" is larger than capacity value", &all)
	errs = append(errs, validateStep(usual, r, p.Child("step"))...)
	if r.Max != nil {
		errs = append(errs, validateStep(*r.Max, r, p.Child("step"))...)
	}
	return errs
}

// validateStep wants value to be some steps above the least. A step of nothing,
// on which upstream's server fails, is refused.
func validateStep(value resource.Quantity, r *resourcev1.CapacityRequestPolicyRange, p *field.Path) field.ErrorList {
	step := r.Step.Value()
	if step != 0 && (value.Value()-r.Min.Value())%step == 0 {
		return nil
	}
	return field.ErrorList{field.Invalid(p, value.String(),
		fmt.Sprintf("value is not a multiple of a given step (%s) from (%s)", r.Step.String(), r.Min.String()))}
}
