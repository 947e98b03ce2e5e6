package core

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func resourceQuota() kind.Kind {
	return kind.Of[corev1.ResourceQuota]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "resourcequotas", Singular: "resourcequota",
			ShortNames: []string{"quota"}, List: &corev1.ResourceQuotaList{},
		},
		Default: func(q *corev1.ResourceQuota) {
			for _, list := range []corev1.ResourceList{q.Spec.Hard, q.Status.Hard, q.Status.Used} {
				podspec.RoundResources(list)
			}
		},
		Create:   func(_ context.Context, q *corev1.ResourceQuota) { q.Status = corev1.ResourceQuotaStatus{} },
		Validate: func(_ context.Context, q *corev1.ResourceQuota) field.ErrorList { return validateQuota(&q.Spec) },
		ValidateUpdate: func(_ context.Context, q, old *corev1.ResourceQuota) field.ErrorList {
			errs := validateQuota(&q.Spec)
			if !sets.New(q.Spec.Scopes...).Equal(sets.New(old.Spec.Scopes...)) {
				errs = append(errs, field.Invalid(field.NewPath("spec", "scopes"), q.Spec.Scopes, "field is immutable"))
			}
			return errs
		},
		Warnings:      quotaWarnings,
		ReturnDeleted: true,
		Status: &kind.StatusOf[corev1.ResourceQuota]{
			Copy: func(to, from *corev1.ResourceQuota) { to.Status = from.Status },
			Validate: func(_ context.Context, q, _ *corev1.ResourceQuota) field.ErrorList {
				errs := validateQuotaList(q.Status.Hard, field.NewPath("status", "hard"))
				return append(errs, validateQuotaList(q.Status.Used, field.NewPath("status", "used"))...)
			},
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Request", "string", "Request represents a minimum amount of cpu/memory that a container may consume."),
			kind.Column("Limit", "string", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
			kind.AgeColumn(),
		},
		Row: func(q *corev1.ResourceQuota) []any {
			requests, limits := quotaCells(&q.Status)
			return []any{q.Name, requests, limits, kind.Age(q.CreationTimestamp)}
		},
	}.Kind()
}

// quotaWarnings tells of a new quota that allows more requests than limits.
func quotaWarnings(_ context.Context, q, old *corev1.ResourceQuota) (out []string) {
	if old != nil {
		return nil
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceStorage,
		corev1.ResourceEphemeralStorage} {
		asked, limited := "requests."+name, "limits."+name
		request, ok := q.Spec.Hard[asked]
		if !ok && (name == corev1.ResourceCPU || name == corev1.ResourceMemory) {
			asked = name
			request, ok = q.Spec.Hard[asked]
		}
		if limit, has := q.Spec.Hard[limited]; ok && has && request.Cmp(limit) > 0 {
			out = append(out, fmt.Sprintf("ResourceQuota %s (%s) should be less than %s (%s)",
				asked, request.String(), limited, limit.String()))
		}
	}
	return out
}

func quotaCells(s *corev1.ResourceQuotaStatus) (requests, limits string) {
	names := make([]string, 0, len(s.Hard))
	for name := range s.Hard {
		names = append(names, string(name))
	}
	sort.Strings(names)
	var r, l []string
	for _, name := range names {
		used, hard := s.Used[corev1.ResourceName(name)], s.Hard[corev1.ResourceName(name)]
		cell := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(name, "limits.") {
			l = append(l, cell)
		} else {
			r = append(r, cell)
		}
	}
	return strings.Join(r, ", "), strings.Join(l, ", ")
}

func validateQuota(s *corev1.ResourceQuotaSpec) field.ErrorList {
	p := field.NewPath("spec")
	errs := validateQuotaList(s.Hard, p.Child("hard"))
	for _, scope := range s.Scopes {
		errs = append(errs, validateScope(scope, s, p.Child("scopes"), s.Scopes)...)
	}
	errs = append(errs, conflictingScopes(sets.New(s.Scopes...), s, p.Child("scopes"))...)
	if s.ScopeSelector == nil {
		return errs
	}
	at, chosen := p.Child("scopeSelector", "matchExpressions"), sets.New[corev1.ResourceQuotaScope]()
	for i := range s.ScopeSelector.MatchExpressions {
		r := &s.ScopeSelector.MatchExpressions[i]
		errs = append(errs, validateScopeRequirement(r, s, at)...)
		chosen.Insert(r.ScopeName)
	}
	return append(errs, conflictingScopes(chosen, s, at)...)
}

func validateQuotaList(list corev1.ResourceList, p *field.Path) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q, at := list[name], p.Key(string(name))
		errs = append(errs, podspec.ValidateResourceName(name, at)...)
		if !strings.Contains(string(name), "/") && !quotaResource(name) {
			errs = append(errs, field.Invalid(at, name, "must be a standard resource for quota"))
		}
		errs = append(errs, podspec.ValidateQuantity(name, q, at)...)
	}
	return errs
}

var quotaScopes = sets.New(
	corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating, corev1.ResourceQuotaScopeBestEffort,
	corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass,
	corev1.ResourceQuotaScopeCrossNamespacePodAffinity,
	corev1.ResourceQuotaScopeVolumeAttributesClass,
)

var podCompute = sets.New[corev1.ResourceName](
	corev1.ResourcePods, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
)

var otherQuotaResources = sets.New[corev1.ResourceName](
	corev1.ResourceRequestsStorage, corev1.ResourceQuotas, corev1.ResourceServices,
	corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets, corev1.ResourcePersistentVolumeClaims, corev1.ResourceConfigMaps,
	corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
)

// quotaResource tells whether a quota can be of a resource that has no domain.
func quotaResource(name corev1.ResourceName) bool {
	return podCompute.Has(name) || otherQuotaResources.Has(name) || hugePages(name)
}

func hugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) ||
		strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

var claimResources = sets.New[corev1.ResourceName](corev1.ResourcePersistentVolumeClaims,
	corev1.ResourceRequestsStorage, corev1.ResourceStorage)

// scopeCovers tells whether a scope can select what a standard resource counts.
func scopeCovers(scope corev1.ResourceQuotaScope, name corev1.ResourceName) bool {
	if strings.Contains(string(name), "/") {
		return true
	}
	switch scope {
	case corev1.ResourceQuotaScopeBestEffort:
		return name == corev1.ResourcePods
	case corev1.ResourceQuotaScopeVolumeAttributesClass:
		return claimResources.Has(name)
	}
	return podCompute.Has(name) || hugePages(name)
}

func validateScope(scope corev1.ResourceQuotaScope, s *corev1.ResourceQuotaSpec, p *field.Path,
	shown any) (errs field.ErrorList) {
	if !quotaScopes.Has(scope) {
		return field.ErrorList{field.Invalid(p, shown, "unsupported scope")}
	}
	for name := range s.Hard {
		if !scopeCovers(scope, name) {
			errs = append(errs, field.Invalid(p, shown, "unsupported scope applied to resource"))
		}
	}
	return errs
}

func conflictingScopes(chosen sets.Set[corev1.ResourceQuotaScope], s *corev1.ResourceQuotaSpec,
	p *field.Path) (errs field.ErrorList) {
	if chosen.HasAll(corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotBestEffort) {
		errs = append(errs, field.Invalid(p, s.Scopes, "conflicting scopes"))
	}
	if chosen.HasAll(corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating) {
		errs = append(errs, field.Invalid(p, s.Scopes, "conflicting scopes"))
	}
	return errs
}

func validateScopeRequirement(r *corev1.ScopedResourceSelectorRequirement, s *corev1.ResourceQuotaSpec,
	p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !quotaScopes.Has(r.ScopeName) {
		errs = append(errs, field.Invalid(p.Child("scopeName"), r.ScopeName, "unsupported scope"))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Hard)) {
		if quotaScopes.Has(r.ScopeName) && quotaResource(name) && !scopeCovers(r.ScopeName, name) {
			errs = append(errs, field.Invalid(p, s.ScopeSelector, "unsupported scope applied to resource"))
		}
	}
	valued := r.ScopeName == corev1.ResourceQuotaScopePriorityClass ||
		r.ScopeName == corev1.ResourceQuotaScopeVolumeAttributesClass
	if quotaScopes.Has(r.ScopeName) && !valued && r.Operator != corev1.ScopeSelectorOpExists {
		errs = append(errs,
			field.Invalid(p.Child("operator"), r.Operator,
				"must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "+
					"ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"))
	}
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(p.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"))
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Invalid(p.Child("values"), r.Values, "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"))
		}
	default:
		errs = append(errs, field.Invalid(p.Child("operator"), r.Operator, "not a valid selector operator"))
	}
	return errs
}
