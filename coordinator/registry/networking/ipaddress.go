package networking

import (
	"context"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func ipAddress() kind.Kind {
	return kind.Of[networkingv1.IPAddress]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "ipaddresses", Singular: "ipaddress", ShortNames: []string{"ip"},
			ClusterScoped: true, NameRule: isAddress, List: &networkingv1.IPAddressList{},
		},
		PlainNames: true,
		Validate: func(_ context.Context, a *networkingv1.IPAddress) field.ErrorList {
			return validateParent(a.Spec.ParentRef)
		},
		ValidateUpdate: func(_ context.Context, a, old *networkingv1.IPAddress) field.ErrorList {
			errs := validateParent(a.Spec.ParentRef)
			return append(errs,
				apivalidation.ValidateImmutableField(a.Spec.ParentRef, old.Spec.ParentRef,
					field.NewPath("spec", "parentRef"))...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("ParentRef", "string", networkingv1.IPAddressSpec{}.SwaggerDoc()["parentRef"]),
		},
		// A row has a cell more than there are columns, as upstream's has.
		Row: func(a *networkingv1.IPAddress) []any {
			return []any{a.Name, parentCell(a.Spec.ParentRef), kind.Age(a.CreationTimestamp)}
		},
	}.Kind()
}

// isAddress wants names in the canonical form of an address, so that one
// address cannot be two objects.
func isAddress(name string, _ bool) (messages []string) {
	for _, err := range validation.IsValidIP(field.NewPath("metadata", "name"), name) {
		messages = append(messages, err.Detail)
	}
	return messages
}

func validateParent(r *networkingv1.ParentReference) (errs field.ErrorList) {
	p := field.NewPath("spec", "parentRef")
	if r == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	if r.Group != "" { // Services are of the group without a name
		errs = append(errs, fieldrule.Invalid(p.Child("group"), r.Group, validation.IsDNS1123Subdomain(r.Group))...)
	}
	for _, f := range []struct {
		name, value string
		required    bool
	}{{"resource", r.Resource, true}, {"name", r.Name, true}, {"namespace", r.Namespace, false}} {
		if f.value == "" {
			if f.required {
				errs = append(errs, field.Required(p.Child(f.name), ""))
			}
			continue
		}
		errs = append(errs, fieldrule.Invalid(p.Child(f.name), f.value, path.IsValidPathSegmentName(f.value))...)
	}
	return errs
}

func parentCell(r *networkingv1.ParentReference) string {
	if r == nil {
		return "<none>"
	}
	cell := strings.ToLower(schema.GroupResource{Group: r.Group, Resource: r.Resource}.String())
	if r.Namespace != "" {
		cell += "/" + r.Namespace
	}
	return cell + "/" + r.Name
}
