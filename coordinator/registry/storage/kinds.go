package storage

import (
	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

var groupVersion = storagev1.SchemeGroupVersion

// Kinds lists the group's kinds.
func Kinds() []kind.Kind {
	return []kind.Kind{
		storageClass(), volumeAttributesClass(), csiDriver(), csiNode(), csiStorageCapacity(), volumeAttachment(),
	}
}

const (
	maxParameters    = 512
	maxParameterSize = 256 << 10 // bytes, of all keys and values together
)

// validateParameters checks what a class tells its driver.
func validateParameters(params map[string]string, mayBeEmpty bool, p *field.Path) (errs field.ErrorList) {
	if len(params) > maxParameters {
		return field.ErrorList{field.TooLong(p, "", maxParameters)}
	}
	size := 0
	for k, v := range params {
		if k == "" {
			errs = append(errs, field.Invalid(p, k, "field can not be empty."))
		}
		size += len(k) + len(v)
	}
	if size > maxParameterSize {
		errs = append(errs, field.TooLong(p, "", maxParameterSize))
	}
	if !mayBeEmpty && len(params) == 0 {
		errs = append(errs, field.Required(p, "must contain at least one key/value pair"))
	}
	return errs
}

func immutable(now, before any, p *field.Path) field.ErrorList {
	return apivalidation.ValidateImmutableField(now, before, p)
}
