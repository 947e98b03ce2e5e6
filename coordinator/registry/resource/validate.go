package resource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// tooMany stops validation of lists beyond their limit.
func tooMany(n, most int, p *field.Path) field.ErrorList {
	if n <= most {
		return nil
	}
	return field.ErrorList{field.TooMany(p, n, most)}
}

// each checks the elements of a list that is not too long; most below zero: it
// never is.
func each[T any](list []T, most int, p *field.Path,
	check func(*T, *field.Path) field.ErrorList) (errs field.ErrorList) {
	if many := tooMany(len(list), most, p); most >= 0 && many != nil {
		return many
	}
	for i := range list {
		errs = append(errs, check(&list[i], p.Index(i))...)
	}
	return errs
}

// eachOnce checks the elements of a list that is not too long, and after them that
// no two have one key.
func eachOnce[T any, K comparable](list []T, most int, p *field.Path, check func(*T, *field.Path) field.ErrorList,
	key func(*T) K) field.ErrorList {
	if many := tooMany(len(list), most, p); most >= 0 && many != nil {
		return many
	}
	errs := each(list, most, p, check)
	seen := map[K]bool{}
	for i := range list {
		k := key(&list[i])
		if seen[k] {
			errs = append(errs, field.Duplicate(p.Index(i), k))
		}
		seen[k] = true
	}
	return errs
}

func validateLabel(s string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, s, validation.IsDNS1123Label(s))
}

func validateDriver(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	if len(name) > resourcev1.DriverNameMaxLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.DriverNameMaxLength))
	}
	return append(errs, fieldrule.Invalid(p, name, validation.IsDNS1123Subdomain(strings.ToLower(name)))...)
}

func validatePool(name string, p *field.Path) (errs field.ErrorList) {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	if len(name) > resourcev1.PoolNameMaxLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.PoolNameMaxLength))
	}
	for _, part := range strings.Split(name, "/") {
		errs = append(errs, fieldrule.Invalid(p, part, validation.IsDNS1123Subdomain(part))...)
	}
	return errs
}

// validateClass checks a class; old is nil for a new one.
func validateClass(spec, old *resourcev1.DeviceClassSpec) field.ErrorList {
	p := field.NewPath("spec")
	stored := old != nil && equality.Semantic.DeepEqual(spec.Selectors, old.Selectors)
	errs := validateSelectors(spec.Selectors, stored, p.Child("selectors"))
	errs = append(errs, each(spec.Config, resourcev1.DeviceConfigMaxSize, p.Child("config"),
		func(c *resourcev1.DeviceClassConfiguration, at *field.Path) field.ErrorList {
			return validateConfig(&c.DeviceConfiguration, at)
		})...)
	if name := spec.ExtendedResourceName; name != nil && !podspec.IsExtended(resourceName(*name)) {
		errs = append(errs, field.Invalid(p.Child("extendedResourceName"), *name, "must be a valid extended resource name"))
	}
	return errs
}

func validateSelectors(list []resourcev1.DeviceSelector, stored bool, p *field.Path) field.ErrorList {
	return each(list, resourcev1.DeviceSelectorsMaxSize, p,
		func(s *resourcev1.DeviceSelector, at *field.Path) field.ErrorList {
			at = at.Child("cel")
			switch c := s.CEL; {
			case c == nil:
				return field.ErrorList{field.Required(at, "")}
			case len(c.Expression) > resourcev1.CELSelectorExpressionMaxLength:
				return field.ErrorList{
					field.TooLong(at.Child("expression"), "", resourcev1.CELSelectorExpressionMaxLength)}
			default:
				return validateExpression(c.Expression, stored, at.Child("expression"))
			}
		})
}

func validateConfig(c *resourcev1.DeviceConfiguration, p *field.Path) field.ErrorList {
	at := p.Child("opaque")
	if c.Opaque == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	errs := validateDriver(c.Opaque.Driver, at.Child("driver"))
	return append(errs,
		validateObject(c.Opaque.Parameters.Raw, resourcev1.OpaqueParametersMaxLength, at.Child("parameters"))...)
}

// validateObject wants a JSON object of at most so many bytes.
func validateObject(raw []byte, most int, p *field.Path) field.ErrorList {
	var value any
	switch {
	case len(raw) == 0:
		return field.ErrorList{field.Required(p, "")}
	case len(raw) > most:
		return field.ErrorList{field.TooLong(p, "", most)}
	}
	if err := json.Unmarshal(raw, &value); err != nil {
		return field.ErrorList{field.Invalid(p, "<value omitted>", fmt.Sprintf("error parsing data as JSON: %v", err))}
	}
	if value == nil {
		return field.ErrorList{field.Required(p, "")}
	}
	if _, ok := value.(map[string]any); !ok {
		return field.ErrorList{field.Invalid(p, "<value omitted>", "must be a valid JSON object")}
	}
	return nil
}

// requestNames are the names that other parts of a claim may refer to.
func requestNames(d *resourcev1.DeviceClaim) (names []string) {
	for _, r := range d.Requests {
		names = append(names, r.Name)
		for _, sub := range r.FirstAvailable {
			names = append(names, r.Name+"/"+sub.Name)
		}
	}
	return names
}

func validateClaim(spec *resourcev1.ResourceClaimSpec, p *field.Path) field.ErrorList {
	d, p := &spec.Devices, p.Child("devices")
	errs := eachOnce(d.Requests, resourcev1.DeviceRequestsMaxSize, p.Child("requests"), validateRequest,
		func(r *resourcev1.DeviceRequest) string { return r.Name })
	names := requestNames(d)
	errs = append(errs, each(d.Constraints, resourcev1.DeviceConstraintsMaxSize, p.Child("constraints"),
		func(c *resourcev1.DeviceConstraint, at *field.Path) field.ErrorList {
			return validateConstraint(c, names, at)
		})...)
	return append(errs, each(d.Config, resourcev1.DeviceConfigMaxSize, p.Child("config"),
		func(c *resourcev1.DeviceClaimConfiguration, at *field.Path) field.ErrorList {
			return append(validateRefs(c.Requests, names, at.Child("requests")),
				validateConfig(&c.DeviceConfiguration, at)...)
		})...)
}

func validateRequest(r *resourcev1.DeviceRequest, p *field.Path) field.ErrorList {
	errs := validateLabel(r.Name, p.Child("name"))
	const one = "exactly one of `exactly` or `firstAvailable` is required"
	switch {
	case r.Exactly == nil && len(r.FirstAvailable) == 0:
		return append(errs, field.Required(p, one))
	case r.Exactly != nil && len(r.FirstAvailable) > 0:
		return append(errs, field.Invalid(p, nil, one+", but multiple fields are set"))
	case r.Exactly != nil:
		e := r.Exactly
		return append(errs,
			validateWanted(wanted{e.DeviceClassName, e.Selectors, e.AllocationMode, e.Count, e.Tolerations},
				p.Child("exactly"))...)
	}
	alternatives := eachOnce(r.FirstAvailable, resourcev1.FirstAvailableDeviceRequestMaxSize, p.Child("firstAvailable"),
		func(s *resourcev1.DeviceSubRequest, at *field.Path) field.ErrorList {
			return append(validateLabel(s.Name, at.Child("name")), validateWanted(
				wanted{s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations}, at)...)
		},
		func(s *resourcev1.DeviceSubRequest) string { return s.Name })
	return append(errs, alternatives...)
}

// wanted is what a request and a subrequest have in common.
type wanted struct {
	class       string
	selectors   []resourcev1.DeviceSelector
	mode        resourcev1.DeviceAllocationMode
	count       int64
	tolerations []resourcev1.DeviceToleration
}

func validateWanted(w wanted, p *field.Path) (errs field.ErrorList) {
	if w.class == "" {
		errs = append(errs, field.Required(p.Child("deviceClassName"), ""))
	} else {
		errs = append(errs,
			fieldrule.Invalid(p.Child("deviceClassName"), w.class, validation.IsDNS1123Subdomain(w.class))...)
	}
	errs = append(errs, validateSelectors(w.selectors, false, p.Child("selectors"))...)
	const all, exact = resourcev1.DeviceAllocationModeAll, resourcev1.DeviceAllocationModeExactCount
	switch {
	case w.mode == all && w.count != 0:
		errs = append(errs,
			field.Invalid(p.Child("count"), w.count,
				fmt.Sprintf("must not be specified when allocationMode is '%s'", w.mode)))
	case w.mode == exact && w.count <= 0:
		errs = append(errs, field.Invalid(p.Child("count"), w.count, "must be greater than zero"))
	case w.mode != all && w.mode != exact:
		errs = append(errs,
			field.NotSupported(p.Child("allocationMode"), w.mode, []resourcev1.DeviceAllocationMode{all, exact}))
	}
	for i := range w.tolerations {
		errs = append(errs, validateToleration(&w.tolerations[i], p.Child("tolerations").Index(i))...)
	}
	return errs
}

func validateToleration(t *resourcev1.DeviceToleration, p *field.Path) (errs field.ErrorList) {
	if t.Key != "" {
		errs = append(errs, fieldrule.Invalid(p.Child("key"), t.Key, validation.IsQualifiedName(t.Key))...)
	}
	const equal, exists = resourcev1.DeviceTolerationOpEqual, resourcev1.DeviceTolerationOpExists
	switch t.Operator {
	case exists:
		if t.Value != "" {
			errs = append(errs, field.Invalid(p.Child("value"), t.Value, "must be empty for operator `Exists`"))
		}
	case equal:
		errs = append(errs, fieldrule.Invalid(p.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
	case "":
		errs = append(errs, field.Required(p.Child("operator"), ""))
	default:
		errs = append(errs,
			field.NotSupported(p.Child("operator"), t.Operator, []resourcev1.DeviceTolerationOperator{equal, exists}))
	}
	return append(errs, validateEffect(t.Effect, p.Child("effect"))...)
}

var effects = []resourcev1.DeviceTaintEffect{resourcev1.DeviceTaintEffectNoExecute,
	resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNone}

func validateEffect(e resourcev1.DeviceTaintEffect, p *field.Path) field.ErrorList {
	if e == "" || slices.Contains(effects, e) {
		return nil
	}
	return field.ErrorList{field.NotSupported(p, e, effects)}
}

func validateConstraint(c *resourcev1.DeviceConstraint, names []string, p *field.Path) field.ErrorList {
	errs := validateRefs(c.Requests, names, p.Child("requests"))
	switch {
	case c.MatchAttribute != nil:
		return append(errs, validateQualified(string(*c.MatchAttribute), p.Child("matchAttribute"))...)
	case c.DistinctAttribute != nil:
		return append(errs, validateQualified(string(*c.DistinctAttribute), p.Child("distinctAttribute"))...)
	}
	return append(errs, field.Required(p, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
}

// validateRefs checks references to requests, "NAME" or "NAME/ALTERNATIVE".
func validateRefs(refs, names []string, p *field.Path) field.ErrorList {
	return eachOnce(refs, resourcev1.DeviceRequestsMaxSize, p, func(ref *string, at *field.Path) field.ErrorList {
		return validateRef(*ref, names, at)
	}, func(ref *string) string { return *ref })
}

func validateRef(ref string, names []string, p *field.Path) (errs field.ErrorList) {
	unknown := field.Invalid(p, ref, "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'")
	parts := strings.Split(ref, "/")
	if len(parts) > 2 {
		return field.ErrorList{unknown}
	}
	for _, part := range parts {
		errs = append(errs, validateLabel(part, p)...)
	}
	if !slices.Contains(names, ref) {
		errs = append(errs, unknown)
	}
	return errs
}

// validateAttributeName checks "name" or "domain/name". What has more parts is taken
// as it is.
func validateAttributeName(name string, p *field.Path) (errs field.ErrorList) {
	parts := strings.Split(name, "/")
	switch len(parts) {
	case 1:
		return validateIdentifier(name, p)
	case 2:
		if parts[0] == "" {
			errs = append(errs, field.Invalid(p, "", "the domain must not be empty"))
		} else {
			errs = append(errs, validateDriver(parts[0], p)...)
		}
		if parts[1] == "" {
			return append(errs, field.Invalid(p, "", "the name must not be empty"))
		}
		return append(errs, validateIdentifier(parts[1], p)...)
	}
	return nil
}

// validateQualified wants the domain too.
func validateQualified(name string, p *field.Path) field.ErrorList {
	errs := validateAttributeName(name, p)
	if !strings.Contains(name, "/") {
		errs = append(errs, field.Invalid(p, name, "a fully qualified name must be a domain and a name separated by a slash"))
	}
	return errs
}

func validateIdentifier(id string, p *field.Path) (errs field.ErrorList) {
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, fieldrule.Invalid(p, id, validation.IsCIdentifier(id))...)
}

func validateClaimStatus(c, old *resourcev1.ResourceClaim) field.ErrorList {
	p, s := field.NewPath("status"), &c.Status
	errs := eachOnce(s.ReservedFor, resourcev1.ResourceClaimReservedForMaxSize, p.Child("reservedFor"),
		validateConsumer, func(r *resourcev1.ResourceClaimConsumerReference) types.UID { return r.UID })
	allocated := map[deviceID]bool{}
	if s.Allocation != nil {
		for i := range s.Allocation.Devices.Results {
			allocated[resultID(&s.Allocation.Devices.Results[i])] = true
		}
	}
	errs = append(errs, eachOnce(s.Devices, -1, p.Child("devices"),
		func(d *resourcev1.AllocatedDeviceStatus, at *field.Path) field.ErrorList {
			return validateDeviceStatus(d, allocated, at)
		}, statusID)...)
	errs = append(errs, validateReservation(c, old, p.Child("reservedFor"))...)
	switch {
	case s.Allocation == nil:
	case old.Status.Allocation != nil:
		errs = append(errs, immutable(s.Allocation, old.Status.Allocation, p.Child("allocation"))...)
	default:
		errs = append(errs,
			validateAllocation(s.Allocation, requestNames(&c.Spec.Devices), p.Child("allocation", "devices"))...)
		if s.Allocation.NodeSelector != nil {
			errs = append(errs,
				podspec.ValidateNodeSelector(s.Allocation.NodeSelector, p.Child("allocation", "nodeSelector"))...)
		}
	}
	return errs
}

func validateConsumer(r *resourcev1.ResourceClaimConsumerReference, p *field.Path) (errs field.ErrorList) {
	for _, f := range []struct {
		name, value string
	}{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
		if f.value == "" {
			errs = append(errs, field.Required(p.Child(f.name), ""))
		}
	}
	return errs
}

// validateReservation wants consumers of allocated claims only, and no new ones of
// a claim that is being deleted.
func validateReservation(c, old *resourcev1.ResourceClaim, p *field.Path) field.ErrorList {
	list := c.Status.ReservedFor
	switch {
	case len(list) == 0:
	case c.Status.Allocation == nil:
		return field.ErrorList{field.Forbidden(p, "may not be specified when `allocated` is not set")}
	case c.DeletionTimestamp != nil && slices.ContainsFunc(list, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return !slices.Contains(old.Status.ReservedFor, r)
	}):
		return field.ErrorList{field.Forbidden(p, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")}
	}
	return nil
}

func validateAllocation(a *resourcev1.AllocationResult, names []string, p *field.Path) field.ErrorList {
	errs := each(a.Devices.Results, resourcev1.AllocationResultsMaxSize, p.Child("results"),
		func(r *resourcev1.DeviceRequestAllocationResult, at *field.Path) field.ErrorList {
			errs := validateRef(r.Request, names, at.Child("request"))
			errs = append(errs, validateDriver(r.Driver, at.Child("driver"))...)
			errs = append(errs, validatePool(r.Pool, at.Child("pool"))...)
			errs = append(errs, validateLabel(r.Device, at.Child("device"))...)
			errs = append(errs, validateBinding(r.BindingConditions, r.BindingFailureConditions, at)...)
			if r.ShareID != nil {
				errs = append(errs, validateUID(string(*r.ShareID), at.Child("shareID"))...)
			}
			return errs
		})
	return append(errs, each(a.Devices.Config, 2*resourcev1.DeviceConfigMaxSize, p.Child("config"),
		func(c *resourcev1.DeviceAllocationConfiguration, at *field.Path) field.ErrorList {
			errs := validateSource(c.Source, at.Child("source"))
			errs = append(errs, validateRefs(c.Requests, names, at.Child("requests"))...)
			return append(errs, validateConfig(&c.DeviceConfiguration, at)...)
		})...)
}

var sources = []resourcev1.AllocationConfigSource{
	resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass}

func validateSource(source resourcev1.AllocationConfigSource, p *field.Path) field.ErrorList {
	switch {
	case source == "":
		return field.ErrorList{field.Required(p, "")}
	case !slices.Contains(sources, source):
		return field.ErrorList{field.NotSupported(p, source, sources)}
	}
	return nil
}
