// Package discovery declares the API group discovery.k8s.io/v1: EndpointSlice.
package discovery

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

// Upstream's limits of one slice.
const (
	maxEndpoints = 1000
	maxAddresses = 100
	maxPorts     = 20000
	maxTopology  = 16
	maxHints     = 8
)

// Kinds lists the group's kinds.
func Kinds() []kind.Kind { return []kind.Kind{endpointSlice()} }

func endpointSlice() kind.Kind {
	return kind.Of[discoveryv1.EndpointSlice]{
		Names: kind.Names{
			GroupVersion: discoveryv1.SchemeGroupVersion,
			Resource:     "endpointslices", Singular: "endpointslice", List: &discoveryv1.EndpointSliceList{},
		},
		Default:  defaultPorts,
		Create:   func(_ context.Context, s *discoveryv1.EndpointSlice) { dropTopology(s, nil) },
		Update:   func(_ context.Context, s, old *discoveryv1.EndpointSlice) { dropTopology(s, old) },
		Validate: func(_ context.Context, s *discoveryv1.EndpointSlice) field.ErrorList { return validate(s, nil) },
		ValidateUpdate: func(_ context.Context, s, old *discoveryv1.EndpointSlice) field.ErrorList {
			return append(validate(s, old),
				apivalidation.ValidateImmutableField(s.AddressType, old.AddressType, field.NewPath("addressType"))...)
		},
		Warnings: warnings,
		// The whole slice is its desired state.
		Spec: func(s *discoveryv1.EndpointSlice) any {
			return []any{s.AddressType, s.Endpoints, s.Ports, s.Labels}
		},
		AllowCreateOnUpdate: false,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("AddressType", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["addressType"]),
			kind.Column("Ports", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["ports"]),
			kind.Column("Endpoints", "string", discoveryv1.EndpointSlice{}.SwaggerDoc()["endpoints"]),
			kind.AgeColumn(),
		},
		Row: func(s *discoveryv1.EndpointSlice) []any {
			return []any{s.Name, string(s.AddressType), firstThree(ports(s)), firstThree(addresses(s)),
				kind.Age(s.CreationTimestamp)}
		},
	}.Kind()
}

// dropTopology ignores what a client of this version writes into the field that the
// version before it had; old is nil for a new slice. Unchanged endpoints keep theirs,
// and an endpoint that names its node there and nowhere else keeps the node.
func dropTopology(s, old *discoveryv1.EndpointSlice) {
	if old != nil && equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		return
	}
	known := sets.New[string]()
	if old != nil {
		s.Generation = old.Generation + 1 // also if what is ignored is all that differs
		for i := range old.Endpoints {
			known.Insert(old.Endpoints[i].DeprecatedTopology[corev1.LabelHostname])
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node := e.DeprecatedTopology[corev1.LabelHostname]
		if e.NodeName == nil && node != "" && known.Has(node) && len(apivalidation.NameIsDNSSubdomain(node, false)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

// managed are the controllers that write addresses in their usual form.
var managed = sets.New("endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io")

func warnings(_ context.Context, s, old *discoveryv1.EndpointSlice) (out []string) {
	if old == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
		out = append(out, "spec.addressType: FQDN endpoints are deprecated")
	}
	if managed.Has(s.Labels[discoveryv1.LabelManagedBy]) {
		return out
	}
	for i := range s.Endpoints {
		for j, address := range s.Endpoints[i].Addresses {
			at := field.NewPath("endpoints").Index(i).Child("addresses").Index(j)
			if _, err := netip.ParseAddr(address); err != nil && s.AddressType == discoveryv1.AddressTypeFQDN {
				continue
			}
			out = append(out, validation.GetWarningsForIP(at, address)...)
		}
	}
	return out
}

func defaultPorts(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		if s.Ports[i].Name == nil {
			s.Ports[i].Name = ptr.To("")
		}
		if s.Ports[i].Protocol == nil {
			s.Ports[i].Protocol = ptr.To(corev1.ProtocolTCP)
		}
	}
}

func ports(s *discoveryv1.EndpointSlice) []string {
	var all []string
	for _, p := range s.Ports {
		switch {
		case p.Port != nil:
			all = append(all, strconv.Itoa(int(*p.Port)))
		case p.Name != nil && *p.Name != "":
			all = append(all, *p.Name)
		default:
			all = append(all, "*")
		}
	}
	return all
}

func addresses(s *discoveryv1.EndpointSlice) []string {
	var all []string
	for _, e := range s.Endpoints {
		all = append(all, e.Addresses...)
	}
	return all
}

func firstThree(all []string) string {
	switch {
	case len(all) == 0:
		return "<unset>"
	case len(all) > 3:
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:3], ","), len(all)-3)
	}
	return strings.Join(all, ",")
}

// validate checks a slice; endpoints that stay as they were have been checked.
func validate(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	errs := validateAddressType(s.AddressType)
	errs = append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
	bad := validateEndpoints(s)
	if len(bad) > 0 && old != nil && equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		return errs
	}
	return append(errs, bad...)
}

func validateEndpoints(s *discoveryv1.EndpointSlice) (errs field.ErrorList) {
	p := field.NewPath("endpoints")
	if len(s.Endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(p, len(s.Endpoints), maxEndpoints)}
	}
	for i := range s.Endpoints {
		errs = append(errs, validateEndpoint(&s.Endpoints[i], s.AddressType, p.Index(i))...)
	}
	return errs
}

func validateAddressType(t discoveryv1.AddressType) field.ErrorList {
	supported := []discoveryv1.AddressType{discoveryv1.AddressTypeFQDN, discoveryv1.AddressTypeIPv4,
		discoveryv1.AddressTypeIPv6}
	switch {
	case t == "":
		return field.ErrorList{field.Required(field.NewPath("addressType"), "")}
	case !slices.Contains(supported, t):
		return field.ErrorList{field.NotSupported(field.NewPath("addressType"), t, supported)}
	}
	return nil
}

func validateEndpoint(e *discoveryv1.Endpoint, t discoveryv1.AddressType, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	path := p.Child("addresses")
	switch n := len(e.Addresses); {
	case n == 0:
		errs = append(errs, field.Required(path, "must contain at least 1 address"))
	case n > maxAddresses:
		errs = append(errs, field.TooMany(path, n, maxAddresses))
	}
	for i, a := range e.Addresses {
		errs = append(errs, validateAddress(a, t, path, i)...)
	}
	if e.NodeName != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("nodeName"), *e.NodeName, apivalidation.NameIsDNSSubdomain(*e.NodeName, false))...)
	}
	topology := p.Child("deprecatedTopology")
	if len(e.DeprecatedTopology) > maxTopology {
		errs = append(errs, field.TooMany(topology, len(e.DeprecatedTopology), maxTopology))
	}
	errs = append(errs, metavalidation.ValidateLabels(e.DeprecatedTopology, topology)...)
	if e.Hostname != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))...)
	}
	if e.Hints != nil {
		errs = append(errs, validateHints(e.Hints, p.Child("hints"))...)
	}
	return errs
}

// validateAddress checks one of the addresses at a path. Those of IPv6 are in their
// canonical form; neither family has zones, or addresses of the other mapped into it.
func validateAddress(a string, t discoveryv1.AddressType, at *field.Path, i int) (errs field.ErrorList) {
	p := at.Index(i)
	switch t {
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(p, a)
	case discoveryv1.AddressTypeIPv4:
		errs = validation.IsValidIPForLegacyField(p, a, true, nil)
	case discoveryv1.AddressTypeIPv6:
		errs = validation.IsValidIP(p, a)
	default:
		return nil
	}
	ip, err := netip.ParseAddr(a)
	if len(errs) > 0 || err != nil {
		return errs
	}
	if ip.Is4() != (t == discoveryv1.AddressTypeIPv4) {
		errs = append(errs, field.Invalid(at, a, "must be an "+string(t)+" address"))
	}
	return append(errs, validateReachable(a, ip, p)...)
}

// validateReachable refuses addresses that would reach the node itself or its
// link instead of an endpoint.
func validateReachable(text string, ip netip.Addr, p *field.Path) (errs field.ErrorList) {
	refuse := func(bad bool, why string) {
		if bad {
			errs = append(errs, field.Invalid(p, text, why))
		}
	}
	refuse(ip.IsUnspecified(), fmt.Sprintf("may not be unspecified (%s)", text))
	refuse(ip.IsLoopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	refuse(ip.IsLinkLocalUnicast(), "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	refuse(ip.IsLinkLocalMulticast(), "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, p *field.Path) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(p, len(ports), maxPorts)}
	}
	var errs field.ErrorList
	seen := map[string]bool{}
	protocols := []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
	for i, port := range ports {
		p, name := p.Index(i), ptr.Deref(port.Name, "")
		if name != "" {
			errs = append(errs, fieldrule.Invalid(p.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		if seen[name] {
			errs = append(errs, field.Duplicate(p.Child("name"), name))
		}
		seen[name] = true
		if port.Protocol == nil {
			errs = append(errs, field.Required(p.Child("protocol"), ""))
		} else if !slices.Contains(protocols, *port.Protocol) {
			errs = append(errs, field.NotSupported(p.Child("protocol"), *port.Protocol, protocols))
		}
		if port.AppProtocol != nil {
			errs = append(errs,
				fieldrule.Invalid(p.Child("appProtocol"), *port.AppProtocol,
					validation.IsQualifiedName(*port.AppProtocol))...)
		}
	}
	return errs
}

func validateHints(h *discoveryv1.EndpointHints, p *field.Path) field.ErrorList {
	zones := make([]string, len(h.ForZones))
	for i, z := range h.ForZones {
		zones[i] = z.Name
	}
	nodes := make([]string, len(h.ForNodes))
	for i, n := range h.ForNodes {
		nodes[i] = n.Name
	}
	nodeName := func(s string) []string { return apivalidation.NameIsDNSSubdomain(s, false) }
	return append(validateNames(zones, validation.IsValidLabelValue, p.Child("forZones")),
		validateNames(nodes, nodeName, p.Child("forNodes"))...)
}

func validateNames(names []string, check func(string) []string, p *field.Path) field.ErrorList {
	if len(names) > maxHints {
		return field.ErrorList{field.TooMany(p, len(names), maxHints)}
	}
	var errs field.ErrorList
	for i, name := range names {
		p := p.Index(i).Child("name")
		if slices.Contains(names[:i], name) {
			errs = append(errs, field.Duplicate(p, name))
		}
		errs = append(errs, fieldrule.Invalid(p, name, check(name))...)
	}
	return errs
}
