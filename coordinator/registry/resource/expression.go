package resource

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// expressions compiles selectors. They see one variable, the device: its driver
// and its attributes and capacities, by domain and name.
var expressions = sync.OnceValues(func() (*cel.Env, error) {
	const most = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice
	text := func(longest int) *apiservercel.DeclType {
		t := *apiservercel.StringType
		t.MaxElements = int64(longest)
		return &t
	}
	byName := func(value *apiservercel.DeclType) *apiservercel.DeclType {
		names := apiservercel.NewMapType(text(resourcev1.DeviceMaxIDLength), value, most)
		return apiservercel.NewMapType(text(resourcev1.DeviceMaxDomainLength), names, most)
	}
	fields := map[string]*apiservercel.DeclField{}
	for name, t := range map[string]*apiservercel.DeclType{
		"driver": text(resourcev1.DriverNameMaxLength), "allowMultipleAllocations": apiservercel.BoolType,
		"attributes": byName(apiservercel.AnyType), "capacity": byName(apiservercel.QuantityDeclType),
	} {
		fields[name] = apiservercel.NewDeclField(name, t, true, nil, nil)
	}
	device := apiservercel.NewObjectType("kubernetes.DRADevice", fields)
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(
		environment.VersionedOptions{
			IntroducedVersion: version.MajorMinor(1, 31),
			EnvOptions: []cel.EnvOption{
				ext.Bindings(ext.BindingsVersion(0)), cel.Variable("device", device.CelType()),
			},
			DeclTypes: []*apiservercel.DeclType{device},
		})
	if err != nil {
		return nil, err
	}
	return set.Env(environment.NewExpressions)
})

// validateExpression wants a selector that is true or false, or an attribute,
// whose type nobody knows before.
func validateExpression(text string, p *field.Path) field.ErrorList {
	env, err := expressions()
	if err != nil {
		return field.ErrorList{field.InternalError(p, err)}
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return field.ErrorList{field.Invalid(p, text, "compilation failed: "+issues.String())}
	}
	if out := ast.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.AnyType) {
		return field.ErrorList{field.Invalid(p, text,
			fmt.Sprintf("must evaluate to %v or the unknown type, not %v", cel.BoolType, out))}
	}
	return nil
}
