package networking

import (
	"context"
	"net/netip"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func serviceCIDR() kind.Kind {
	return kind.Of[networkingv1.ServiceCIDR]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "servicecidrs", Singular: "servicecidr", ClusterScoped: true,
			List: &networkingv1.ServiceCIDRList{},
		},
		Create: func(_ context.Context, c *networkingv1.ServiceCIDR) { c.Status = networkingv1.ServiceCIDRStatus{} },
		Validate: func(_ context.Context, c *networkingv1.ServiceCIDR) field.ErrorList {
			return validateCIDRs(c.Spec.CIDRs)
		},
		ValidateUpdate: func(_ context.Context, c, old *networkingv1.ServiceCIDR) field.ErrorList {
			return validateCIDRsUpdate(c.Spec.CIDRs, old.Spec.CIDRs)
		},
		Status: &kind.StatusOf[networkingv1.ServiceCIDR]{
			Copy:        func(to, from *networkingv1.ServiceCIDR) { to.Status = from.Status },
			Meta:        metav1.ResetObjectMetaForStatus,
			ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("metadata")),
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(), kind.Column("CIDRs", "string", networkingv1.ServiceCIDRSpec{}.SwaggerDoc()["cidrs"]),
			kind.AgeColumn(),
		},
		Row: func(c *networkingv1.ServiceCIDR) []any {
			return []any{c.Name, strings.Join(c.Spec.CIDRs, ","), kind.Age(c.CreationTimestamp)}
		},
	}.Kind()
}

func validateCIDRs(cidrs []string) (errs field.ErrorList) {
	p := field.NewPath("spec", "cidrs")
	switch {
	case len(cidrs) == 0:
		return field.ErrorList{field.Required(p, "at least one CIDR required")}
	case len(cidrs) > 2:
		return field.ErrorList{field.Invalid(p, networkingv1.ServiceCIDRSpec{CIDRs: cidrs}, "may only hold up to 2 values")}
	}
	for i, cidr := range cidrs {
		errs = append(errs, validation.IsValidCIDR(p.Index(i), cidr)...)
	}
	if len(cidrs) == 2 && sameFamily(cidrs[0], cidrs[1]) {
		errs = append(errs, field.Invalid(p, cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"))
	}
	return errs
}

func sameFamily(a, b string) bool {
	x, err := netip.ParsePrefix(a)
	if err != nil {
		return false
	}
	y, err := netip.ParsePrefix(b)
	return err == nil && x.Addr().Is4() == y.Addr().Is4()
}

// validateCIDRsUpdate lets a range gain its second family; nothing else may
// change.
func validateCIDRsUpdate(now, was []string) (errs field.ErrorList) {
	p := field.NewPath("spec", "cidrs")
	switch {
	case len(now) == len(was):
		for i := range now {
			if now[i] != was[i] {
				errs = append(errs, field.Invalid(p.Index(i), now[i], apivalidation.FieldImmutableErrorMsg))
			}
		}
	case len(was) == 1 && len(now) == 2:
		if now[0] != was[0] {
			errs = append(errs, field.Invalid(p.Index(0), now[0], apivalidation.FieldImmutableErrorMsg))
		}
		errs = append(errs, validateCIDRs(now)...)
	default:
		errs = append(errs, field.Invalid(p, now, apivalidation.FieldImmutableErrorMsg))
	}
	return errs
}
