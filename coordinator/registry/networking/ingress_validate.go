package networking

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

var (
	pathTypes = []networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific,
		networkingv1.PathTypePrefix}
	badPathSequences = []string{"//", "/./", "/../", "%2f", "%2F"}
	badPathEnds      = []string{"/..", "/."}
)

func validateNewIngress(i *networkingv1.Ingress) field.ErrorList {
	errs := validateIngress(&i.Spec, nil)
	class, ok := i.Annotations[classAnnotation]
	if ok && i.Spec.IngressClassName != nil && class != *i.Spec.IngressClassName {
		errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classAnnotation), class, "must match `ingressClassName` when both are specified"))
	}
	return errs
}

// validateIngress checks a spec; what old (nil for a create) had wrong in
// earlier versions may stay wrong.
func validateIngress(spec, old *networkingv1.IngressSpec) (errs field.ErrorList) {
	p := field.NewPath("spec")
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(p, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, p.Child("defaultBackend"))...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateIngressRule(&spec.Rules[i], hadBadWildcardRule(old), p.Child("rules").Index(i))...)
	}
	secrets := !hadBadSecretName(old)
	for i := range spec.TLS {
		errs = append(errs, validateTLS(&spec.TLS[i], secrets, p.Child("tls").Index(i))...)
	}
	if spec.IngressClassName != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("ingressClassName"), *spec.IngressClassName,
				apivalidation.NameIsDNSSubdomain(*spec.IngressClassName, false))...)
	}
	return errs
}

func hadBadWildcardRule(old *networkingv1.IngressSpec) bool {
	if old == nil {
		return false
	}
	for i := range old.Rules {
		if strings.Contains(old.Rules[i].Host, "*") && len(validateHTTP(old.Rules[i].HTTP, nil)) > 0 {
			return true
		}
	}
	return false
}

func hadBadSecretName(old *networkingv1.IngressSpec) bool {
	if old == nil {
		return false
	}
	for _, t := range old.TLS {
		if t.SecretName != "" && len(apivalidation.NameIsDNSSubdomain(t.SecretName, false)) > 0 {
			return true
		}
	}
	return false
}

func hostMessages(host string) []string {
	if strings.Contains(host, "*") {
		return validation.IsWildcardDNS1123Subdomain(host)
	}
	return validation.IsDNS1123Subdomain(host)
}

func validateTLS(t *networkingv1.IngressTLS, secret bool, p *field.Path) (errs field.ErrorList) {
	for i, host := range t.Hosts {
		errs = append(errs, fieldrule.Invalid(p.Child("hosts").Index(i), host, hostMessages(host))...)
	}
	if secret && t.SecretName != "" {
		errs = append(errs,
			fieldrule.Invalid(p.Child("secretName"), t.SecretName,
				apivalidation.NameIsDNSSubdomain(t.SecretName, false))...)
	}
	return errs
}

func validateIngressRule(r *networkingv1.IngressRule, wildcardsPass bool, p *field.Path) (errs field.ErrorList) {
	if r.Host != "" {
		if netutils.ParseIPSloppy(r.Host) != nil {
			errs = append(errs, field.Invalid(p.Child("host"), r.Host, "must be a DNS name, not an IP address"))
		}
		errs = append(errs, fieldrule.Invalid(p.Child("host"), r.Host, hostMessages(r.Host))...)
	}
	if wildcardsPass && strings.Contains(r.Host, "*") {
		return errs
	}
	return append(errs, validateHTTP(r.HTTP, p.Child("http"))...)
}

func validateHTTP(http *networkingv1.HTTPIngressRuleValue, p *field.Path) (errs field.ErrorList) {
	if http == nil {
		return nil
	}
	if len(http.Paths) == 0 {
		errs = append(errs, field.Required(p.Child("paths"), ""))
	}
	for i := range http.Paths {
		errs = append(errs, validateHTTPPath(&http.Paths[i], p.Child("paths").Index(i))...)
	}
	return errs
}

func validateHTTPPath(h *networkingv1.HTTPIngressPath, p *field.Path) (errs field.ErrorList) {
	if h.PathType == nil {
		return field.ErrorList{field.Required(p.Child("pathType"), "pathType must be specified")}
	}
	relative := !strings.HasPrefix(h.Path, "/")
	switch *h.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if relative {
			errs = append(errs, field.Invalid(p.Child("path"), h.Path, "must be an absolute path"))
		}
		for _, bad := range badPathSequences {
			if strings.Contains(h.Path, bad) {
				errs = append(errs, field.Invalid(p.Child("path"), h.Path, fmt.Sprintf("must not contain '%s'", bad)))
			}
		}
		for _, bad := range badPathEnds {
			if strings.HasSuffix(h.Path, bad) {
				errs = append(errs, field.Invalid(p.Child("path"), h.Path, fmt.Sprintf("cannot end with '%s'", bad)))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if relative && h.Path != "" {
			errs = append(errs, field.Invalid(p.Child("path"), h.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, field.NotSupported(p.Child("pathType"), *h.PathType, pathTypes))
	}
	return append(errs, validateBackend(&h.Backend, p.Child("backend"))...)
}

func validateBackend(b *networkingv1.IngressBackend, p *field.Path) field.ErrorList {
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(p, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateTypedReference(b.Resource, p.Child("resource"))
	case b.Service != nil:
		return validateServiceBackend(b.Service, p)
	}
	return field.ErrorList{field.Invalid(p, "", "resource or service backend is required")}
}

func validateServiceBackend(s *networkingv1.IngressServiceBackend, p *field.Path) (errs field.ErrorList) {
	if s.Name == "" {
		errs = append(errs, field.Required(p.Child("service", "name"), ""))
	} else {
		errs = append(errs,
			fieldrule.Invalid(p.Child("service", "name"), s.Name, apivalidation.NameIsDNSLabel(s.Name, false))...)
	}
	switch {
	case s.Port.Name != "" && s.Port.Number != 0:
		return append(errs, field.Invalid(p, "", "cannot set both port name & port number"))
	case s.Port.Name != "":
		return append(errs,
			fieldrule.Invalid(p.Child("service", "port", "name"), s.Port.Name,
				validation.IsValidPortName(s.Port.Name))...)
	case s.Port.Number != 0:
		return append(errs,
			fieldrule.Invalid(p.Child("service", "port", "number"), s.Port.Number,
				validation.IsValidPortNum(int(s.Port.Number)))...)
	}
	return append(errs, field.Required(p, "port name or number is required"))
}

func validateTypedReference(r *corev1.TypedLocalObjectReference, p *field.Path) (errs field.ErrorList) {
	if r.APIGroup != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("apiGroup"), *r.APIGroup, validation.IsDNS1123Subdomain(*r.APIGroup))...)
	}
	errs = append(errs, validateSegment(r.Kind, p.Child("kind"))...)
	return append(errs, validateSegment(r.Name, p.Child("name"))...)
}

func validateSegment(s string, p *field.Path) field.ErrorList {
	if s == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return fieldrule.Invalid(p, s, path.IsValidPathSegmentName(s))
}

func validateBalancer(points, old []networkingv1.IngressLoadBalancerIngress) (errs field.ErrorList) {
	var known []string
	for _, o := range old {
		if o.IP != "" {
			known = append(known, o.IP)
		}
	}
	for i, point := range points {
		p := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if point.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(p.Child("ip"), point.IP, true, known)...)
		}
		if point.Hostname == "" {
			continue
		}
		errs = append(errs,
			fieldrule.Invalid(p.Child("hostname"), point.Hostname, validation.IsDNS1123Subdomain(point.Hostname))...)
		if netutils.ParseIPSloppy(point.Hostname) != nil {
			errs = append(errs, field.Invalid(p.Child("hostname"), point.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}
