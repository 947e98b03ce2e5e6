// Package fieldrule is what the strategies of all groups do with a single field in
// one way: give it a default, and refuse it.
package fieldrule

import "k8s.io/apimachinery/pkg/util/validation/field"

// Default gives a field its default that has no value at all.
func Default[T any](f **T, value T) {
	if *f == nil {
		*f = &value
	}
}

// DefaultEmpty gives a field its default that is empty: where the API has no
// pointer, empty and without a value are one.
func DefaultEmpty[T comparable](f *T, value T) {
	var empty T
	if *f == empty {
		*f = value
	}
}

// Invalid refuses a value for each of its faults, in apimachinery's words.
func Invalid(p *field.Path, value any, faults []string) (errs field.ErrorList) {
	for _, fault := range faults {
		errs = append(errs, field.Invalid(p, value, fault))
	}
	return errs
}
