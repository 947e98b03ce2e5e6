package apps

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// controllerRevision keeps one immutable snapshot of a DaemonSet's template.
func controllerRevision() kind.Kind {
	return kind.Of[appsv1.ControllerRevision]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "controllerrevisions", Singular: "controllerrevision",
			List: &appsv1.ControllerRevisionList{},
		},
		Validate: func(_ context.Context, r *appsv1.ControllerRevision) field.ErrorList {
			return append(validateRevision(r), validateData(r.Data.Raw)...)
		},
		ValidateUpdate: func(_ context.Context, r, old *appsv1.ControllerRevision) field.ErrorList {
			errs := validateRevision(r)
			if !bytes.Equal(r.Data.Raw, old.Data.Raw) {
				var data any // none is shown as null
				if len(r.Data.Raw) > 0 {
					data = json.RawMessage(r.Data.Raw)
				}
				errs = append(errs, field.Invalid(field.NewPath("data"), data, "field is immutable"))
			}
			return errs
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Controller", "string", "Controller of the object"),
			kind.Column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"]),
			kind.AgeColumn(),
		},
		Row: func(r *appsv1.ControllerRevision) []any {
			return []any{r.Name, controllerName(r), r.Revision, kind.Age(r.CreationTimestamp)}
		},
	}.Kind()
}

func controllerName(r *appsv1.ControllerRevision) string {
	ref := metav1.GetControllerOf(r)
	if ref == nil {
		return "<none>"
	}
	kindName := strings.ToLower(ref.Kind)
	if group, _, ok := strings.Cut(ref.APIVersion, "/"); ok {
		kindName += "." + group
	}
	return kindName + "/" + ref.Name
}

func validateRevision(r *appsv1.ControllerRevision) field.ErrorList {
	return validateCounts(nil, count{"revision", r.Revision})
}

// validateData wants a JSON object.
func validateData(raw []byte) field.ErrorList {
	var v any
	p := field.NewPath("data")
	if raw == nil {
		return field.ErrorList{field.Required(p, "data is mandatory")}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return field.ErrorList{field.Invalid(p, "<value omitted>", fmt.Sprintf("error parsing data: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(p, "data is mandatory")}
	}
	if _, object := v.(map[string]any); !object {
		return field.ErrorList{field.Required(p, "data must be a valid JSON object")}
	}
	return nil
}
