package resource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
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

func validateClass(spec *resourcev1.DeviceClassSpec) field.ErrorList {
	p := field.NewPath("spec")
	errs := validateSelectors(spec.Selectors, p.Child("selectors"))
	if many := tooMany(len(spec.Config), resourcev1.DeviceConfigMaxSize, p.Child("config")); many != nil {
		return append(errs, many...)
	}
	for i := range spec.Config {
		errs = append(errs, validateConfig(&spec.Config[i].DeviceConfiguration, p.Child("config").Index(i))...)
	}
	if name := spec.ExtendedResourceName; name != nil && !podspec.IsExtended(resourceName(*name)) {
		errs = append(errs, field.Invalid(p.Child("extendedResourceName"), *name, "must be a valid extended resource name"))
	}
	return errs
}

func validateSelectors(list []resourcev1.DeviceSelector, p *field.Path) field.ErrorList {
	if errs := tooMany(len(list), resourcev1.DeviceSelectorsMaxSize, p); errs != nil {
		return errs
	}
	var errs field.ErrorList
	for i := range list {
		at := p.Index(i).Child("cel")
		switch c := list[i].CEL; {
		case c == nil:
			errs = append(errs, field.Required(at, ""))
		case len(c.Expression) > resourcev1.CELSelectorExpressionMaxLength:
			errs = append(errs, field.TooLong(at.Child("expression"), "", resourcev1.CELSelectorExpressionMaxLength))
		default:
			errs = append(errs, validateExpression(c.Expression, at.Child("expression"))...)
		}
	}
	return errs
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

func validateClaim(spec *resourcev1.ResourceClaimSpec, p *field.Path) (errs field.ErrorList) {
	d, p := &spec.Devices, p.Child("devices")
	for _, many := range []field.ErrorList{
		tooMany(len(d.Requests), resourcev1.DeviceRequestsMaxSize, p.Child("requests")),
		tooMany(len(d.Constraints), resourcev1.DeviceConstraintsMaxSize, p.Child("constraints")),
		tooMany(len(d.Config), resourcev1.DeviceConfigMaxSize, p.Child("config")),
	} {
		errs = append(errs, many...)
	}
	if len(errs) > 0 {
		return errs
	}
	seen := map[string]bool{}
	for i := range d.Requests {
		at := p.Child("requests").Index(i)
		errs = append(errs, validateRequest(&d.Requests[i], at)...)
		if name := d.Requests[i].Name; seen[name] {
			errs = append(errs, field.Duplicate(at, name))
		}
		seen[d.Requests[i].Name] = true
	}
	names := requestNames(d)
	for i, c := range d.Constraints {
		errs = append(errs, validateConstraint(&c, names, p.Child("constraints").Index(i))...)
	}
	for i := range d.Config {
		at := p.Child("config").Index(i)
		errs = append(errs, validateRefs(d.Config[i].Requests, names, at.Child("requests"))...)
		errs = append(errs, validateConfig(&d.Config[i].DeviceConfiguration, at)...)
	}
	return errs
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
	at := p.Child("firstAvailable")
	if many := tooMany(len(r.FirstAvailable), resourcev1.FirstAvailableDeviceRequestMaxSize, at); many != nil {
		return append(errs, many...)
	}
	seen := map[string]bool{}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		errs = append(errs, validateLabel(s.Name, at.Index(i).Child("name"))...)
		errs = append(errs,
			validateWanted(wanted{s.DeviceClassName, s.Selectors, s.AllocationMode, s.Count, s.Tolerations},
				at.Index(i))...)
		if seen[s.Name] {
			errs = append(errs, field.Duplicate(at.Index(i), s.Name))
		}
		seen[s.Name] = true
	}
	return errs
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
	errs = append(errs, validateSelectors(w.selectors, p.Child("selectors"))...)
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
		return append(errs, validateAttributeName(string(*c.MatchAttribute), true, p.Child("matchAttribute"))...)
	case c.DistinctAttribute != nil:
		return append(errs, validateAttributeName(string(*c.DistinctAttribute), true, p.Child("distinctAttribute"))...)
	}
	return append(errs, field.Required(p, `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`))
}

func validateRefs(refs, names []string, p *field.Path) field.ErrorList {
	if errs := tooMany(len(refs), resourcev1.DeviceRequestsMaxSize, p); errs != nil {
		return errs
	}
	var errs field.ErrorList
	for i, ref := range refs {
		if !slices.Contains(names, ref) {
			errs = append(errs, field.Invalid(p.Index(i), ref, "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"))
		}
		if slices.Contains(refs[:i], ref) {
			errs = append(errs, field.Duplicate(p.Index(i), ref))
		}
	}
	return errs
}

// validateAttributeName checks "name" or "domain/name".
func validateAttributeName(name string, qualified bool, p *field.Path) (errs field.ErrorList) {
	domain, id, ok := strings.Cut(name, "/")
	switch {
	case !ok && qualified:
		errs = append(errs, field.Invalid(p, name, "a fully qualified name must be a domain and a name separated by a slash"))
	case !ok:
		domain, id = "", name
	case domain == "":
		return field.ErrorList{field.Invalid(p, "", "the domain must not be empty")}
	case id == "":
		return field.ErrorList{field.Invalid(p, "", "the name must not be empty")}
	default:
		errs = append(errs, validateDriver(domain, p)...)
	}
	if !ok {
		id = name
	}
	if len(id) > resourcev1.DeviceMaxIDLength {
		errs = append(errs, field.TooLong(p, "", resourcev1.DeviceMaxIDLength))
	}
	return append(errs, fieldrule.Invalid(p, id, validation.IsCIdentifier(id))...)
}

func validateClaimStatus(c, old *resourcev1.ResourceClaim) field.ErrorList {
	p, s := field.NewPath("status"), &c.Status
	if many := tooMany(len(s.ReservedFor), resourcev1.ResourceClaimReservedForMaxSize,
		p.Child("reservedFor")); many != nil {
		return many
	}
	errs := validateConsumers(c, old, p.Child("reservedFor"))
	allocated := map[deviceID]bool{}
	if s.Allocation != nil {
		for i := range s.Allocation.Devices.Results {
			allocated[resultID(&s.Allocation.Devices.Results[i])] = true
		}
	}
	seen := map[deviceID]bool{}
	for i := range s.Devices {
		at, id := p.Child("devices").Index(i), statusID(&s.Devices[i])
		errs = append(errs, validateDeviceStatus(&s.Devices[i], at)...)
		if !allocated[id] {
			errs = append(errs, field.Invalid(at, s.Devices[i].Device, "must be an allocated device in the claim"))
		}
		if seen[id] {
			errs = append(errs, field.Duplicate(at, s.Devices[i].Device))
		}
		seen[id] = true
	}
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

func validateConsumers(c, old *resourcev1.ResourceClaim, p *field.Path) (errs field.ErrorList) {
	list := c.Status.ReservedFor
	for i, r := range list {
		for _, f := range []struct {
			name, value string
		}{{"resource", r.Resource}, {"name", r.Name}, {"uid", string(r.UID)}} {
			if f.value == "" {
				errs = append(errs, field.Required(p.Index(i).Child(f.name), ""))
			}
		}
		if slices.ContainsFunc(list[:i], func(o resourcev1.ResourceClaimConsumerReference) bool { return o.UID == r.UID }) {
			errs = append(errs, field.Duplicate(p.Index(i), r.UID))
		}
	}
	switch {
	case len(list) == 0:
	case c.Status.Allocation == nil:
		errs = append(errs, field.Forbidden(p, "may not be specified when `allocated` is not set"))
	case c.DeletionTimestamp != nil && slices.ContainsFunc(list, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return !slices.Contains(old.Status.ReservedFor, r)
	}):
		errs = append(errs, field.Forbidden(p, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"))
	}
	return errs
}

func validateAllocation(a *resourcev1.AllocationResult, names []string, p *field.Path) (errs field.ErrorList) {
	if many := tooMany(len(a.Devices.Results), resourcev1.AllocationResultsMaxSize, p.Child("results")); many != nil {
		return many
	}
	for i := range a.Devices.Results {
		r, at := &a.Devices.Results[i], p.Child("results").Index(i)
		if !slices.Contains(names, r.Request) {
			errs = append(errs, field.Invalid(at.Child("request"), r.Request, "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"))
		}
		errs = append(errs, validateDriver(r.Driver, at.Child("driver"))...)
		errs = append(errs, validatePool(r.Pool, at.Child("pool"))...)
		errs = append(errs, validateLabel(r.Device, at.Child("device"))...)
		errs = append(errs, validateBinding(r.BindingConditions, r.BindingFailureConditions, at)...)
		if r.ShareID != nil {
			errs = append(errs, validateUID(string(*r.ShareID), at.Child("shareID"))...)
		}
	}
	if many := tooMany(len(a.Devices.Config), 2*resourcev1.DeviceConfigMaxSize, p.Child("config")); many != nil {
		return append(errs, many...)
	}
	sources := []resourcev1.AllocationConfigSource{resourcev1.AllocationConfigSourceClaim,
		resourcev1.AllocationConfigSourceClass}
	for i := range a.Devices.Config {
		c, at := &a.Devices.Config[i], p.Child("config").Index(i)
		if c.Source == "" {
			errs = append(errs, field.Required(at.Child("source"), ""))
		} else if !slices.Contains(sources, c.Source) {
			errs = append(errs, field.NotSupported(at.Child("source"), c.Source, sources))
		}
		errs = append(errs, validateRefs(c.Requests, names, at.Child("requests"))...)
		errs = append(errs, validateConfig(&c.DeviceConfiguration, at)...)
	}
	return errs
}
