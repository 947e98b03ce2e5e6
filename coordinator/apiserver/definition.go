package apiserver

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
)

// soundDefinitions refuses CustomResourceDefinitions that say fields to select by of
// no schema, or of one that is not structural: the library that validates them panics
// then. What it would have said of the schema, the client is told here.
type soundDefinitions struct{ admission.Interface }

func (d soundDefinitions) Handles(admission.Operation) bool { return true }

func (d soundDefinitions) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if d.Interface != nil && d.Interface.Handles(a.GetOperation()) {
		if m, ok := d.Interface.(admission.MutationInterface); ok {
			if err := m.Admit(ctx, a, o); err != nil {
				return err
			}
		}
	}
	definition, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok || a.GetSubresource() != "" {
		return nil
	}
	if errs := unsound(&definition.Spec); len(errs) > 0 {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), definition.Name, errs)
	}
	return nil
}

func (d soundDefinitions) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	if d.Interface != nil && d.Interface.Handles(a.GetOperation()) {
		if v, ok := d.Interface.(admission.ValidationInterface); ok {
			return v.Validate(ctx, a, o)
		}
	}
	return nil
}

// unsound tells of the schemas that fields are looked for in. What is the same of all
// versions is kept beside them.
func unsound(spec *apiextensions.CustomResourceDefinitionSpec) (errs field.ErrorList) {
	check := func(fields []apiextensions.SelectableField, v *apiextensions.CustomResourceValidation, at *field.Path) {
		if len(fields) == 0 || v == nil {
			return
		}
		at = at.Child("openAPIV3Schema")
		if s, err := structuralschema.NewStructural(v.OpenAPIV3Schema); err != nil {
			errs = append(errs, field.Invalid(at, "", err.Error()))
		} else if s == nil {
			errs = append(errs, field.Required(at, "schemas are required"))
		}
	}
	p := field.NewPath("spec")
	check(spec.SelectableFields, spec.Validation, p.Child("validation"))
	for i := range spec.Versions {
		v := &spec.Versions[i]
		check(v.SelectableFields, v.Schema, p.Child("versions").Index(i).Child("schema"))
	}
	return errs
}
