package resource

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

type resourceName = corev1.ResourceName

// semantic is semver.org's 2.0.0.
var semantic = regexp.MustCompile(`^` + number + `\.` + number + `\.` + number +
	`(-` + word + `(\.` + word + `)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

const (
	number = `(0|[1-9]\d*)`
	word   = `(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)` // a number has no leading zeros
)

func validateSlice(spec, old *resourcev1.ResourceSliceSpec) field.ErrorList {
	p := field.NewPath("spec")
	errs := validateDriver(spec.Driver, p.Child("driver"))
	errs = append(errs, validatePool(spec.Pool.Name, p.Child("pool", "name"))...)
	if spec.Pool.ResourceSliceCount <= 0 {
		errs = append(errs, field.Invalid(p.Child("pool", "resourceSliceCount"), spec.Pool.ResourceSliceCount, "must be greater than zero"))
	}
	if spec.Pool.Generation < 0 {
		errs = append(errs, field.Invalid(p.Child("pool", "generation"), spec.Pool.Generation, "must be greater than or equal to zero"))
	}
	if old != nil {
		errs = append(errs, immutable(spec.Pool.Name, old.Pool.Name, p.Child("pool", "name"))...)
		errs = append(errs, immutable(spec.Driver, old.Driver, p.Child("driver"))...)
		errs = append(errs, immutable(spec.NodeName, old.NodeName, p.Child("nodeName"))...)
	}
	errs = append(errs,
		validateWhere(where{spec.NodeName, spec.NodeSelector, spec.AllNodes, spec.PerDeviceNodeSelection, true}, p)...)
	if spec.SharedCounters != nil && spec.Devices != nil {
		errs = append(errs, field.Invalid(p, "", "only one of `sharedCounters` or `devices` is allowed"))
	}
	errs = append(errs, validateDevices(spec, old, p.Child("devices"))...)
	return append(errs, validateCounters(spec.SharedCounters, p.Child("sharedCounters"))...)
}

// where are the ways to say on which nodes devices are: one has to be chosen.
type where struct {
	node      *string
	selector  *corev1.NodeSelector
	all       *bool
	perDevice *bool
	slice     bool // a device has no perDevice
}

func validateWhere(w where, p *field.Path) (errs field.ErrorList) {
	var set []string
	if w.node != nil {
		if *w.node == "" {
			errs = append(errs,
				field.Invalid(p.Child("nodeName"), *w.node,
					map[bool]string{true: "must be either unset or set to a non-empty string",
						false: "must not be empty"}[w.slice]))
		} else {
			set = append(set, "`nodeName`")
			errs = append(errs,
				fieldrule.Invalid(p.Child("nodeName"), *w.node, validation.IsDNS1123Subdomain(*w.node))...)
		}
	}
	if w.selector != nil {
		set = append(set, "`nodeSelector`")
		errs = append(errs, podspec.ValidateNodeSelector(w.selector, p.Child("nodeSelector"))...)
		if w.slice && len(w.selector.NodeSelectorTerms) != 1 {
			errs = append(errs,
				field.Invalid(p.Child("nodeSelector", "nodeSelectorTerms"), w.selector.NodeSelectorTerms, "must have exactly one node selector term"))
		}
	}
	for _, flag := range []struct {
		name  string
		value *bool
	}{{"allNodes", w.all}, {"perDeviceNodeSelection", w.perDevice}} {
		switch {
		case flag.value == nil:
		case *flag.value:
			set = append(set, "`"+flag.name+"`")
		default:
			errs = append(errs, field.Invalid(p.Child(flag.name), *flag.value, "must be either unset or set to true"))
		}
	}
	required := "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	several := required + ", but multiple fields are set"
	if !w.slice {
		required = "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
		several = required
	}
	switch len(set) {
	case 0:
		errs = append(errs, field.Required(p, required))
	case 1:
	default:
		errs = append(errs, field.Invalid(p, fmt.Sprintf("{%s}", strings.Join(set, ", ")), several))
	}
	return errs
}

func validateDevices(spec, old *resourcev1.ResourceSliceSpec, p *field.Path) field.ErrorList {
	most := resourcev1.ResourceSliceMaxDevices
	if slices.ContainsFunc(spec.Devices,
		func(d resourcev1.Device) bool {
			return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 || hasLists(&d)
		}) {
		most = resourcev1.ResourceSliceMaxDevicesWithAdvancedFeatures
	}
	perDevice := spec.PerDeviceNodeSelection != nil && *spec.PerDeviceNodeSelection
	return eachOnce(spec.Devices, most, p, func(d *resourcev1.Device, at *field.Path) field.ErrorList {
		return validateDevice(d, deviceOf(old, d.Name), perDevice, at)
	}, func(d *resourcev1.Device) string { return d.Name })
}

// deviceOf finds the device of a name; nil: there is none.
func deviceOf(spec *resourcev1.ResourceSliceSpec, name string) *resourcev1.Device {
	if spec == nil {
		return nil
	}
	i := slices.IndexFunc(spec.Devices, func(d resourcev1.Device) bool { return d.Name == name })
	if i < 0 {
		return nil
	}
	return &spec.Devices[i]
}

func validateDevice(d, old *resourcev1.Device, perDevice bool, p *field.Path) field.ErrorList {
	errs := validateLabel(d.Name, p.Child("name"))
	const most = resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice
	if n := len(d.Attributes) + len(d.Capacity); n > most {
		errs = append(errs,
			field.Invalid(p, n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", most)))
	}
	const values = resourcev1.ResourceSliceMaxAttributeValuesPerDevice
	if n := attributeValues(d); n > values {
		errs = append(errs,
			field.Invalid(p, n, fmt.Sprintf("the total number of attribute values must not exceed %d", values)))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		a, at := d.Attributes[name], p.Child("attributes")
		errs = append(errs, validateAttributeName(string(name), at)...)
		errs = append(errs, validateAttribute(&a, at.Key(short(string(name))))...)
	}
	shared := d.AllowMultipleAllocations != nil && *d.AllowMultipleAllocations
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		c, at := d.Capacity[name], p.Child("capacity")
		errs = append(errs, validateAttributeName(string(name), at)...)
		errs = append(errs, validateCapacity(&c, shared, at.Key(short(string(name))))...)
	}
	if old == nil || !equality.Semantic.DeepEqual(old.Taints, d.Taints) {
		errs = append(errs, validateTaints(d.Taints, p.Child("taints"))...)
	}
	errs = append(errs, eachOnce(d.ConsumesCounters, resourcev1.ResourceSliceMaxDeviceCounterConsumptionsPerDevice,
		p.Child("consumesCounters"), validateConsumption,
		func(c *resourcev1.DeviceCounterConsumption) string { return c.CounterSet })...)
	switch {
	case perDevice:
		errs = append(errs, validateWhere(where{node: d.NodeName, selector: d.NodeSelector, all: d.AllNodes}, p)...)
	case d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil:
		errs = append(errs, field.Invalid(p, nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"))
	}
	return append(errs, validateBinding(d.BindingConditions, d.BindingFailureConditions, p)...)
}

// attributeValues counts the values of all attributes, those of lists one by one.
func attributeValues(d *resourcev1.Device) (n int) {
	for _, a := range d.Attributes {
		n += max(1, len(a.BoolValues)+len(a.IntValues)+len(a.StringValues)+len(a.VersionValues))
	}
	return n
}

// longestName is that of an attribute with its domain.
const longestName = resourcev1.DeviceMaxDomainLength + 1 + resourcev1.DeviceMaxIDLength

// short leaves out the middle of a name that is too long to be shown.
func short(name string) string {
	if len(name) <= longestName {
		return name
	}
	const dots = "..."
	left := longestName - len(dots)
	return name[:(left+1)/2] + dots + name[len(name)-left/2:]
}

func validateConsumption(c *resourcev1.DeviceCounterConsumption, p *field.Path) (errs field.ErrorList) {
	if c.CounterSet == "" {
		errs = append(errs, field.Required(p.Child("counterSet"), ""))
	} else {
		errs = append(errs, validateLabel(c.CounterSet, p.Child("counterSet"))...)
	}
	return append(errs, validateCounterNames(c.Counters,
		resourcev1.ResourceSliceMaxCountersPerDeviceCounterConsumption, p.Child("counters"))...)
}

// hasLists tells of lists that an object has from before: they are of a feature
// that is off.
func hasLists(d *resourcev1.Device) bool {
	for _, a := range d.Attributes {
		if a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil {
			return true
		}
	}
	return false
}

func validateCounterNames(counters map[string]resourcev1.Counter, most int, p *field.Path) (errs field.ErrorList) {
	if len(counters) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	if many := tooMany(len(counters), most, p); many != nil {
		return many
	}
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		errs = append(errs, validateLabel(name, p)...)
	}
	return errs
}

func validateAttribute(a *resourcev1.DeviceAttribute, p *field.Path) (errs field.ErrorList) {
	n := 0
	for _, set := range []bool{
		a.BoolValue != nil, a.IntValue != nil, a.StringValue != nil, a.VersionValue != nil,
		a.BoolValues != nil, a.IntValues != nil, a.StringValues != nil, a.VersionValues != nil,
	} {
		if set {
			n++
		}
	}
	if s := a.StringValue; s != nil && len(*s) > resourcev1.DeviceAttributeMaxValueLength {
		errs = append(errs, field.TooLong(p.Child("string"), "", resourcev1.DeviceAttributeMaxValueLength))
	}
	if v := a.VersionValue; v != nil && !semantic.MatchString(*v) {
		errs = append(errs, field.Invalid(p.Child("version"), *v, "must be a string compatible with semver.org spec 2.0.0"))
	}
	if v := a.VersionValue; v != nil && len(*v) > resourcev1.DeviceAttributeMaxValueLength {
		errs = append(errs, field.TooLong(p.Child("version"), "", resourcev1.DeviceAttributeMaxValueLength))
	}
	switch n {
	case 0:
		errs = append(errs, field.Invalid(p, "", "exactly one value must be specified"))
	case 1:
	default:
		errs = append(errs, field.Invalid(p, *a, "exactly one value must be specified"))
	}
	return errs
}

func validateTaints(list []resourcev1.DeviceTaint, p *field.Path) field.ErrorList {
	if many := tooMany(len(list), resourcev1.DeviceTaintsMaxLength, p); many != nil {
		return many
	}
	var errs field.ErrorList
	for i, t := range list {
		at := p.Index(i)
		errs = append(errs, fieldrule.Invalid(at.Child("key"), t.Key, validation.IsQualifiedName(t.Key))...)
		if t.Value != "" {
			errs = append(errs, fieldrule.Invalid(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		}
		if t.Effect == "" {
			errs = append(errs, field.Required(at.Child("effect"), ""))
		}
		errs = append(errs, validateEffect(t.Effect, at.Child("effect"))...)
	}
	return errs
}

func validateCounters(list []resourcev1.CounterSet, p *field.Path) field.ErrorList {
	return eachOnce(list, resourcev1.ResourceSliceMaxCounterSets, p,
		func(c *resourcev1.CounterSet, at *field.Path) (errs field.ErrorList) {
			if c.Name == "" {
				errs = append(errs, field.Required(at.Child("name"), ""))
			} else {
				errs = append(errs, validateLabel(c.Name, at.Child("name"))...)
			}
			return append(errs, validateCounterNames(c.Counters,
				resourcev1.ResourceSliceMaxCountersPerCounterSet, at.Child("counters"))...)
		}, func(c *resourcev1.CounterSet) string { return c.Name })
}
