package resource

import (
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

// validateExpression wants a selector that is true or false, or an attribute,
// whose type nobody knows before, and that costs no more than allocating devices
// may. A stored one may use what this version offers no more to new ones.
func validateExpression(text string, stored bool, p *field.Path) field.ErrorList {
	env := environment.NewExpressions
	if stored {
		env = environment.StoredExpressions
	}
	compiler := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})
	result := compiler.CompileCELExpression(text, dracel.Options{EnvType: &env})
	switch err := result.Error; {
	case err == nil && result.MaxCost > resourcev1.CELSelectorExpressionMaxCost:
		return field.ErrorList{field.Forbidden(p, "too complex, exceeds cost limit")}
	case err == nil:
		return nil
	case err.Type == apiservercel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(p, text, err.Detail)}
	default:
		return field.ErrorList{field.InternalError(p, err)}
	}
}
