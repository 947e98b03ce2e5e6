package core

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/allocate"
	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// validateService checks a service after its addresses and ports are allocated.
func validateService(v, old *corev1.Service) (errs field.ErrorList) {
	s, p := &v.Spec, field.NewPath("spec")
	mode, set := v.Annotations[corev1.AnnotationTopologyMode]
	if hints, old := v.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; set && old && mode != hints {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode),
			mode, fmt.Sprintf("must match annotations[%s] when both are specified",
				corev1.DeprecatedAnnotationTopologyAwareHints)))
	}
	if len(s.Ports) == 0 && !allocate.IsHeadless(v) && s.Type != corev1.ServiceTypeExternalName {
		errs = append(errs, field.Required(p.Child("ports"), ""))
	}
	switch s.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if allocate.IsHeadless(v) {
			errs = append(errs,
				field.Invalid(p.Child("clusterIPs").Index(0), s.ClusterIPs[0],
					fmt.Sprintf("may not be set to 'None' for %s services", s.Type)))
		}
	case corev1.ServiceTypeExternalName:
		errs = append(errs, validateExternalName(s, p)...)
	}
	errs = append(errs, validateServicePorts(v, p.Child("ports"))...)
	errs = append(errs, metavalidation.ValidateLabels(s.Selector, p.Child("selector"))...)
	errs = append(errs, validateSession(s, p)...)
	errs = append(errs, allocate.ValidateClusterIPs(v, old)...)
	for i, ip := range s.ExternalIPs {
		at := p.Child("externalIPs").Index(i)
		bad := validation.IsValidIPForLegacyField(at, ip, true, nil)
		if len(bad) == 0 {
			bad = validateReachable(ip, at)
		}
		errs = append(errs, bad...)
	}
	errs = append(errs, podspec.OneOf(s.Type, p.Child("type"),
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeNodePort)...)
	errs = append(errs, validatePortsTogether(s, p.Child("ports"))...)
	errs = append(errs, validateBalancerFields(s, p)...)
	return append(errs, validateTraffic(v, p)...)
}

func validateExternalName(s *corev1.ServiceSpec, p *field.Path) (errs field.ErrorList) {
	for _, f := range []struct {
		name string
		set  bool
	}{{"clusterIPs", len(s.ClusterIPs) > 0}, {"ipFamilies", len(s.IPFamilies) > 0},
		{"ipFamilyPolicy", s.IPFamilyPolicy != nil}} {
		if f.set {
			errs = append(errs, field.Forbidden(p.Child(f.name), "may not be set for ExternalName services"))
		}
	}
	name := strings.TrimSuffix(s.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(p.Child("externalName"), ""))
	}
	return append(errs, fieldrule.Invalid(p.Child("externalName"), name, validation.IsDNS1123Subdomain(name))...)
}

func validateServicePorts(v *corev1.Service, p *field.Path) (errs field.ErrorList) {
	names := sets.New[string]()
	for i := range v.Spec.Ports {
		sp, at := &v.Spec.Ports[i], p.Index(i)
		if sp.Name == "" && len(v.Spec.Ports) > 1 {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else if sp.Name != "" {
			errs = append(errs, fieldrule.Invalid(at.Child("name"), sp.Name, validation.IsDNS1123Label(sp.Name))...)
			if names.Has(sp.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), sp.Name))
			}
			names.Insert(sp.Name)
		}
		errs = append(errs, fieldrule.Invalid(at.Child("port"), sp.Port, validation.IsValidPortNum(int(sp.Port)))...)
		errs = append(errs, validateProtocol(sp.Protocol, at.Child("protocol"))...)
		errs = append(errs, podspec.ValidatePort(sp.TargetPort, at.Child("targetPort"))...)
		if sp.AppProtocol != nil {
			errs = append(errs,
				fieldrule.Invalid(at.Child("appProtocol"), *sp.AppProtocol,
					validation.IsQualifiedName(*sp.AppProtocol))...)
		}
	}
	return errs
}

// validatePortsTogether tells of node ports where there may be none, then of those that
// are given twice, then of ports that are.
func validatePortsTogether(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	ports, nodePorts := map[key]bool{}, map[key]bool{}
	var unwanted, nodePortsTwice, portsTwice field.ErrorList
	for i := range s.Ports {
		sp, at := &s.Ports[i], p.Index(i)
		if s.Type == corev1.ServiceTypeClusterIP && sp.NodePort != 0 {
			unwanted = append(unwanted, field.Forbidden(at.Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
		if k := (key{sp.Protocol, sp.NodePort}); sp.NodePort != 0 {
			if nodePorts[k] {
				nodePortsTwice = append(nodePortsTwice, field.Duplicate(at.Child("nodePort"), sp.NodePort))
			}
			nodePorts[k] = true
		}
		k := key{sp.Protocol, sp.Port}
		if ports[k] {
			portsTwice = append(portsTwice, field.Duplicate(at, shownPort{Protocol: sp.Protocol, Port: sp.Port}))
		}
		ports[k] = true
	}
	return slices.Concat(unwanted, nodePortsTwice, portsTwice)
}

// shownPort is a port as upstream shows it, by the Go fields of its inner type.
type shownPort struct {
	Name        string
	Protocol    corev1.Protocol
	AppProtocol *string
	Port        int32
	TargetPort  intstr.IntOrString
	NodePort    int32
}

// maxAffinity is a day, in seconds.
const maxAffinity = 86400

func validateSession(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	errs := podspec.OneOf(s.SessionAffinity, p.Child("sessionAffinity"), corev1.ServiceAffinityClientIP,
		corev1.ServiceAffinityNone)
	at := p.Child("sessionAffinityConfig")
	switch c := s.SessionAffinityConfig; {
	case s.SessionAffinity == corev1.ServiceAffinityNone && c != nil:
		errs = append(errs, field.Forbidden(at, "must not be set when session affinity is None"))
	case s.SessionAffinity != corev1.ServiceAffinityClientIP:
	case c == nil:
		errs = append(errs, field.Required(at, "when session affinity type is ClientIP"))
	case c.ClientIP == nil:
		errs = append(errs, field.Required(at.Child("clientIP"), "when session affinity type is ClientIP"))
	case c.ClientIP.TimeoutSeconds == nil:
		errs = append(errs, field.Required(at.Child("clientIP", "timeoutSeconds"), "when session affinity type is ClientIP"))
	case *c.ClientIP.TimeoutSeconds <= 0 || *c.ClientIP.TimeoutSeconds > maxAffinity:
		errs = append(errs, field.Invalid(at.Child("clientIP", "timeoutSeconds"), c.ClientIP.TimeoutSeconds,
			fmt.Sprintf("must be greater than 0 and less than %d", maxAffinity)))
	}
	return errs
}

func validateBalancerFields(s *corev1.ServiceSpec, p *field.Path) (errs field.ErrorList) {
	const only = "may only be used when `type` is 'LoadBalancer'"
	balancer := s.Type == corev1.ServiceTypeLoadBalancer
	ranges := p.Child("LoadBalancerSourceRanges")
	if len(s.LoadBalancerSourceRanges) > 0 && !balancer {
		errs = append(errs, field.Forbidden(ranges, only))
	}
	for i, cidr := range s.LoadBalancerSourceRanges {
		errs = append(errs, validation.IsValidCIDRForLegacyField(ranges.Index(i), strings.TrimSpace(cidr), true, nil)...)
	}
	if s.AllocateLoadBalancerNodePorts != nil && !balancer {
		errs = append(errs, field.Forbidden(p.Child("allocateLoadBalancerNodePorts"), only))
	}
	return append(errs, validateBalancerClass(s, p.Child("loadBalancerClass"))...)
}

func validateBalancerClass(s *corev1.ServiceSpec, p *field.Path) field.ErrorList {
	switch {
	case s.LoadBalancerClass == nil:
		return nil
	case s.Type != corev1.ServiceTypeLoadBalancer:
		return field.ErrorList{field.Forbidden(p, "may only be used when `type` is 'LoadBalancer'")}
	}
	return fieldrule.Invalid(p, *s.LoadBalancerClass, validation.IsQualifiedName(*s.LoadBalancerClass))
}

func validateTraffic(v *corev1.Service, p *field.Path) (errs field.ErrorList) {
	s := &v.Spec
	policy := p.Child("externalTrafficPolicy")
	if isExternal(v) {
		errs = append(errs,
			podspec.OneOf(s.ExternalTrafficPolicy, policy, corev1.ServiceExternalTrafficPolicyCluster,
				corev1.ServiceExternalTrafficPolicyLocal)...)
	} else if s.ExternalTrafficPolicy != "" {
		errs = append(errs, field.Invalid(policy, s.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	health := p.Child("healthCheckNodePort")
	switch {
	case !allocate.NeedsHealthPort(v) && s.HealthCheckNodePort != 0:
		errs = append(errs, field.Invalid(health, s.HealthCheckNodePort, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	case allocate.NeedsHealthPort(v) && s.HealthCheckNodePort == 0:
		errs = append(errs, field.Required(health, ""))
	case allocate.NeedsHealthPort(v):
		errs = append(errs,
			fieldrule.Invalid(health, s.HealthCheckNodePort, validation.IsValidPortNum(int(s.HealthCheckNodePort)))...)
	}
	internal := p.Child("internalTrafficPolicy")
	if s.InternalTrafficPolicy != nil {
		errs = append(errs,
			podspec.Among(*s.InternalTrafficPolicy, internal, corev1.ServiceInternalTrafficPolicyCluster,
				corev1.ServiceInternalTrafficPolicyLocal)...)
	} else if allocate.HasNodePorts(v) || s.Type == corev1.ServiceTypeClusterIP {
		errs = append(errs, field.Required(internal, ""))
	}
	if s.TrafficDistribution != nil {
		errs = append(errs, podspec.Among(*s.TrafficDistribution, p.Child("trafficDistribution"),
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
			corev1.ServiceTrafficDistributionPreferSameNode)...)
	}
	return errs
}

// validateServiceUpdate: the first address and family stay; a second one may
// come, and go with ipFamilyPolicy SingleStack.
func validateServiceUpdate(v, old *corev1.Service) (errs field.ErrorList) {
	s, o, p := &v.Spec, &old.Spec, field.NewPath("spec")
	if o.Type == corev1.ServiceTypeLoadBalancer && s.Type == corev1.ServiceTypeLoadBalancer &&
		!equalPointers(s.LoadBalancerClass, o.LoadBalancerClass) {
		errs = append(errs, field.Invalid(p.Child("loadBalancerClass"), s.LoadBalancerClass, "may not change once set"))
	}
	errs = append(errs, validateBalancerClass(s, p.Child("loadBalancerClass"))...) // twice, as upstream
	if allocate.NeedsHealthPort(v) && allocate.NeedsHealthPort(old) && s.HealthCheckNodePort != o.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(p.Child("healthCheckNodePort"), "field is immutable"))
	}
	if s.Type == corev1.ServiceTypeExternalName || o.Type == corev1.ServiceTypeExternalName || allocate.IsHeadless(v) &&
		allocate.IsHeadless(old) {
		return errs
	}
	at := p.Child("clusterIPs")
	if len(o.ClusterIPs) > 0 && len(s.ClusterIPs) == 0 {
		errs = append(errs, field.Invalid(at.Index(0), s.ClusterIPs, "primary clusterIP can not be unset"))
	}
	for i := range min(len(s.ClusterIPs), len(o.ClusterIPs)) {
		if s.ClusterIPs[i] != o.ClusterIPs[i] {
			errs = append(errs, field.Invalid(at.Index(i), s.ClusterIPs, "may not change once set"))
		}
	}
	single := deref(s.IPFamilyPolicy) == corev1.IPFamilyPolicySingleStack
	if len(s.ClusterIPs) == 1 && len(o.ClusterIPs) == 2 && !single {
		errs = append(errs, field.Invalid(p.Child("ipFamilyPolicy"), s.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary clusterIP"))
	}
	if allocate.IsHeadless(v) != allocate.IsHeadless(old) {
		return errs
	}
	for i := range min(len(s.IPFamilies), len(o.IPFamilies)) {
		if s.IPFamilies[i] != o.IPFamilies[i] {
			errs = append(errs, field.Invalid(p.Child("ipFamilies").Index(0), s.IPFamilies, "may not change once set"))
		}
	}
	if len(s.IPFamilies) == 1 && len(o.IPFamilies) == 2 && !single {
		errs = append(errs, field.Invalid(p.Child("ipFamilyPolicy"), s.IPFamilyPolicy, "must be set to 'SingleStack' when releasing the secondary ipFamily"))
	}
	return errs
}

func equalPointers[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

func validateLoadBalancer(v *corev1.Service) (errs field.ErrorList) {
	p := field.NewPath("status", "loadBalancer", "ingress")
	list := v.Status.LoadBalancer.Ingress
	if len(list) > 0 && v.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return field.ErrorList{field.Forbidden(p, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	for i, in := range list {
		at := p.Index(i)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), in.IP, true, nil)...)
		}
		switch {
		case in.IP != "" && in.IPMode == nil:
			errs = append(errs, field.Required(at.Child("ipMode"), "must be specified when `ip` is set"))
		case in.IP == "" && in.IPMode != nil:
			errs = append(errs, field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
		case in.IPMode != nil:
			errs = append(errs,
				podspec.OneOf(*in.IPMode, at.Child("ipMode"), corev1.LoadBalancerIPModeProxy,
					corev1.LoadBalancerIPModeVIP)...)
		}
		if in.Hostname == "" {
			continue
		}
		errs = append(errs,
			fieldrule.Invalid(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))...)
		if _, err := netip.ParseAddr(in.Hostname); err == nil {
			errs = append(errs, field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}
