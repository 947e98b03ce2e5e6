// Package amount checks counts that are given as an integer or as a percentage
// of something (maxSurge, maxUnavailable, minAvailable), in upstream's words.
package amount

import (
	"strconv"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

// Validate refuses negative integers, malformed percentages and unknown types.
func Validate(v intstr.IntOrString, p *field.Path) field.ErrorList {
	switch v.Type {
	case intstr.Int:
		return apivalidation.ValidateNonnegativeField(int64(v.IntVal), p)
	case intstr.String:
		var errs field.ErrorList
		errs = append(errs, fieldrule.Invalid(p, v, validation.IsValidPercent(v.StrVal))...)
		return errs
	}
	return field.ErrorList{field.Invalid(p, v, "must be an integer or percentage (e.g '5%%')")}
}

// ValidateAtMost100 is Validate for amounts that may not exceed the whole.
func ValidateAtMost100(v intstr.IntOrString, p *field.Path) field.ErrorList {
	errs := Validate(v, p)
	if percent, ok := percentage(v); ok && percent > 100 {
		errs = append(errs, field.Invalid(p, v, "must not be greater than 100%"))
	}
	return errs
}

// IsZero tells whether v is 0 or "0%"; nil counts as zero.
func IsZero(v *intstr.IntOrString) bool {
	if v == nil {
		return true
	}
	if percent, ok := percentage(*v); ok {
		return percent == 0
	}
	return v.IntValue() == 0
}

func percentage(v intstr.IntOrString) (int, bool) {
	if v.Type != intstr.String || len(validation.IsValidPercent(v.StrVal)) != 0 {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSuffix(v.StrVal, "%"))
	return n, err == nil
}
