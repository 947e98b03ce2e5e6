package core

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func endpoints() kind.Kind {
	return kind.Of[corev1.Endpoints]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "endpoints", Singular: "endpoints",
			ShortNames: []string{"ep"}, List: &corev1.EndpointsList{},
		},
		Default: func(e *corev1.Endpoints) {
			for i := range e.Subsets {
				for j := range e.Subsets[i].Ports {
					if p := &e.Subsets[i].Ports[j]; p.Protocol == "" {
						p.Protocol = corev1.ProtocolTCP
					}
				}
			}
		},
		Validate: func(_ context.Context, e *corev1.Endpoints) field.ErrorList { return validateSubsets(e.Subsets) },
		ValidateUpdate: func(_ context.Context, e, old *corev1.Endpoints) field.ErrorList {
			if equality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
				return nil
			}
			return validateSubsets(e.Subsets)
		},
		Warnings: func(_ context.Context, e, _ *corev1.Endpoints) []string { return endpointsWarnings(e) },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(), kind.Column("Endpoints", "string", corev1.Endpoints{}.SwaggerDoc()["subsets"]),
			kind.AgeColumn(),
		},
		Row: func(e *corev1.Endpoints) []any {
			return []any{e.Name, formatSubsets(e.Subsets), kind.Age(e.CreationTimestamp)}
		},
		AllowCreateOnUpdate: true,
	}.Kind()
}

// endpointsWarnings tells of addresses that are not in their usual form; the
// controller's always are.
func endpointsWarnings(e *corev1.Endpoints) (out []string) {
	if e.Labels[endpointsManagedBy] == endpointsController {
		return nil
	}
	for i := range e.Subsets {
		at := field.NewPath("subsets").Index(i)
		for j, a := range e.Subsets[i].Addresses {
			out = append(out, validation.GetWarningsForIP(at.Child("addresses").Index(j).Child("ip"), a.IP)...)
		}
		for j, a := range e.Subsets[i].NotReadyAddresses {
			out = append(out, validation.GetWarningsForIP(at.Child("notReadyAddresses").Index(j).Child("ip"), a.IP)...)
		}
	}
	return out
}

const (
	endpointsManagedBy  = "endpoints.kubernetes.io/managed-by"
	endpointsController = "endpoint-controller"
)

// formatSubsets lists up to three addresses.
func formatSubsets(subsets []corev1.EndpointSubset) string {
	const shown = 3
	if len(subsets) == 0 {
		return "<none>"
	}
	var list []string
	count := 0
	add := func(addresses []corev1.EndpointAddress, port string) {
		count += len(addresses)
		for _, a := range addresses {
			if len(list) == shown {
				return
			}
			if port == "" {
				list = append(list, a.IP)
			} else {
				list = append(list, net.JoinHostPort(a.IP, port))
			}
		}
	}
	for i := range subsets {
		if len(subsets[i].Ports) == 0 {
			add(subsets[i].Addresses, "")
		}
		for _, p := range subsets[i].Ports {
			add(subsets[i].Addresses, strconv.Itoa(int(p.Port)))
		}
	}
	out := strings.Join(list, ",")
	if count > shown {
		return fmt.Sprintf("%s + %d more...", out, count-shown)
	}
	return out
}

func validateSubsets(subsets []corev1.EndpointSubset) (errs field.ErrorList) {
	for i := range subsets {
		s, at := &subsets[i], field.NewPath("subsets").Index(i)
		if len(s.Addresses)+len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(at, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			errs = append(errs, validateAddress(&s.Addresses[j], at.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			errs = append(errs, validateAddress(&s.NotReadyAddresses[j], at.Child("notReadyAddresses").Index(j))...)
		}
		for j := range s.Ports {
			errs = append(errs, validateEndpointPort(&s.Ports[j], len(s.Ports) > 1, at.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateAddress(a *corev1.EndpointAddress, p *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(p.Child("ip"), a.IP, true, nil)
	if a.Hostname != "" {
		errs = append(errs, fieldrule.Invalid(p.Child("hostname"), a.Hostname, validation.IsDNS1123Label(a.Hostname))...)
	}
	if a.NodeName != nil {
		errs = append(errs, subdomain(*a.NodeName, p.Child("nodeName"))...)
	}
	return append(errs, validateReachable(a.IP, p.Child("ip"))...)
}

// validateReachable refuses addresses that no other machine can be told.
func validateReachable(value string, p *field.Path) (errs field.ErrorList) {
	ip := netutils.ParseIPSloppy(value)
	if ip == nil {
		return field.ErrorList{field.Invalid(p, value, "must be a valid IP address")}
	}
	if ip.IsUnspecified() {
		errs = append(errs, field.Invalid(p, value, fmt.Sprintf("may not be unspecified (%v)", value)))
	}
	if ip.IsLoopback() {
		errs = append(errs, field.Invalid(p, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	}
	if ip.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(p, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
	}
	if ip.IsLinkLocalMulticast() {
		errs = append(errs, field.Invalid(p, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))
	}
	return errs
}

func validateEndpointPort(e *corev1.EndpointPort, needName bool, p *field.Path) (errs field.ErrorList) {
	if needName && e.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), ""))
	} else if e.Name != "" {
		errs = append(errs, fieldrule.Invalid(p.Child("name"), e.Name, validation.IsDNS1123Label(e.Name))...)
	}
	errs = append(errs, fieldrule.Invalid(p.Child("port"), e.Port, validation.IsValidPortNum(int(e.Port)))...)
	errs = append(errs, validateProtocol(e.Protocol, p.Child("protocol"))...)
	if e.AppProtocol != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("appProtocol"), *e.AppProtocol, validation.IsQualifiedName(*e.AppProtocol))...)
	}
	return errs
}

func validateProtocol(protocol corev1.Protocol, p *field.Path) field.ErrorList {
	switch protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return nil
	case "":
		return field.ErrorList{field.Required(p, "")}
	}
	return field.ErrorList{
		field.NotSupported(p, protocol, []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP})}
}
