package core

import (
	"context"
	"slices"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/allocate"
	"github.com/shoal-project/shoal/coordinator/registry/connect"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func service() kind.Kind {
	spec := corev1.ServiceSpec{}.SwaggerDoc()
	return kind.Of[corev1.Service]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "services", Singular: "service", ShortNames: []string{"svc"},
			Categories: []string{"all"}, NameRule: apivalidation.NameIsDNSLabel, List: &corev1.ServiceList{},
		},
		Default: defaultService,
		Create:  func(_ context.Context, s *corev1.Service) { s.Status = corev1.ServiceStatus{} },
		Update:  func(_ context.Context, s, old *corev1.Service) { dropUnused(s, old) },
		Validate: func(_ context.Context, s *corev1.Service) field.ErrorList {
			return validateService(s, nil)
		},
		ValidateUpdate: func(_ context.Context, s, old *corev1.Service) field.ErrorList {
			return append(validateServiceUpdate(s, old), validateService(s, old)...)
		},
		Warnings: func(_ context.Context, s, _ *corev1.Service) []string { return serviceWarnings(s) },
		Status: &kind.StatusOf[corev1.Service]{
			Copy: func(to, from *corev1.Service) { to.Status = from.Status },
			Validate: func(_ context.Context, s, _ *corev1.Service) field.ErrorList {
				return validateLoadBalancer(s)
			},
			Warnings: func(s *corev1.Service) (out []string) {
				for i, point := range s.Status.LoadBalancer.Ingress {
					if point.IP != "" {
						at := field.NewPath("status", "loadBalancer", "ingress").Index(i)
						out = append(out, validation.GetWarningsForIP(at, point.IP)...)
					}
				}
				return out
			},
		},
		Fields: func(s *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Type", "string", spec["type"]),
			kind.Column("Cluster-IP", "string", spec["clusterIP"]),
			kind.Column("External-IP", "string", spec["externalIPs"]),
			kind.Column("Port(s)", "string", spec["ports"]),
			kind.AgeColumn(),
			kind.Wide("Selector", "string", spec["selector"]),
		},
		Row: func(s *corev1.Service) []any {
			ip := ""
			if len(s.Spec.ClusterIPs) > 0 {
				ip = s.Spec.ClusterIPs[0]
			}
			return []any{
				s.Name, string(s.Spec.Type), orNone(ip), externalIP(s), orNone(portCell(s.Spec.Ports)),
				kind.Age(s.CreationTimestamp), labels.FormatLabels(s.Spec.Selector),
			}
		},
		AllowCreateOnUpdate: true,
		ReturnDeleted:       true,
		Canonicalize: func(s *corev1.Service) {
			if s.Spec.Type == corev1.ServiceTypeExternalName {
				s.Spec.InternalTrafficPolicy = nil // nobody shows it of such a service
			}
		},
		Main: func(env *kind.Env, stores kind.Stores, main *kind.REST) rest.Storage {
			allocateOnWrite(main.Store, allocate.New(env, stores), env.Client)
			return main
		},
		Subresources: func(_ *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"proxy": connect.ServiceProxy(stores)}
		},
	}.Kind()
}

// affinityTimeout is the default of ClientIP affinity, in seconds.
const affinityTimeout = corev1.DefaultClientIPServiceAffinitySeconds

func defaultService(v *corev1.Service) {
	s := &v.Spec
	if s.SessionAffinity == "" {
		s.SessionAffinity = corev1.ServiceAffinityNone
	}
	switch c := s.SessionAffinityConfig; {
	case s.SessionAffinity == corev1.ServiceAffinityNone:
		s.SessionAffinityConfig = nil
	case s.SessionAffinity == corev1.ServiceAffinityClientIP &&
		(c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil):
		seconds := affinityTimeout
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	if s.Type == "" {
		s.Type = corev1.ServiceTypeClusterIP
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol == "" {
			p.Protocol = corev1.ProtocolTCP
		}
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if isExternal(v) && s.ExternalTrafficPolicy == "" {
		s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	}
	if s.InternalTrafficPolicy == nil && (allocate.HasNodePorts(v) || s.Type == corev1.ServiceTypeClusterIP) {
		cluster := corev1.ServiceInternalTrafficPolicyCluster
		s.InternalTrafficPolicy = &cluster
	}
	if s.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	if s.AllocateLoadBalancerNodePorts == nil {
		yes := true
		s.AllocateLoadBalancerNodePorts = &yes
	}
	for i := range v.Status.LoadBalancer.Ingress {
		if in := &v.Status.LoadBalancer.Ingress[i]; in.IP != "" && in.IPMode == nil {
			vip := corev1.LoadBalancerIPModeVIP
			in.IPMode = &vip
		}
	}
}

// isExternal: traffic may come from outside the cluster.
func isExternal(s *corev1.Service) bool {
	return allocate.HasNodePorts(s) || s.Spec.Type == corev1.ServiceTypeClusterIP && len(s.Spec.ExternalIPs) > 0
}

// dropUnused clears fields that a new type has no use for, if the client left
// them as they were.
func dropUnused(s, old *corev1.Service) {
	n, o := &s.Spec, &old.Spec
	if o.Type != corev1.ServiceTypeExternalName && n.Type == corev1.ServiceTypeExternalName {
		if n.ClusterIP == o.ClusterIP && slices.Equal(n.ClusterIPs, o.ClusterIPs) {
			n.ClusterIP, n.ClusterIPs = "", nil
		}
		if slices.Equal(n.IPFamilies, o.IPFamilies) {
			n.IPFamilies = nil
		}
		if deref(n.IPFamilyPolicy) == deref(o.IPFamilyPolicy) {
			n.IPFamilyPolicy = nil
		}
	}
	if allocate.HasNodePorts(old) && !allocate.HasNodePorts(s) && !newNodePorts(n.Ports, o.Ports) {
		for i := range n.Ports {
			n.Ports[i].NodePort = 0
		}
	}
	if allocate.NeedsHealthPort(old) && !allocate.NeedsHealthPort(s) && n.HealthCheckNodePort == o.HealthCheckNodePort {
		n.HealthCheckNodePort = 0
	}
	if o.Type == corev1.ServiceTypeLoadBalancer && n.Type != corev1.ServiceTypeLoadBalancer {
		if equalPointers(n.AllocateLoadBalancerNodePorts, o.AllocateLoadBalancerNodePorts) {
			n.AllocateLoadBalancerNodePorts = nil
		}
		if equalPointers(n.LoadBalancerClass, o.LoadBalancerClass) {
			n.LoadBalancerClass = nil
		}
	}
	if isExternal(old) && !isExternal(s) && n.ExternalTrafficPolicy == o.ExternalTrafficPolicy {
		n.ExternalTrafficPolicy = ""
	}
	if n.Type != corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

// serviceWarnings tells which fields of a service have no effect, or are not in their
// usual form.
func serviceWarnings(v *corev1.Service) (out []string) {
	s, p := &v.Spec, field.NewPath("spec")
	if _, ok := v.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		out = append(out, "annotation "+corev1.DeprecatedAnnotationTopologyAwareHints+" is deprecated, please use "+
			corev1.AnnotationTopologyMode+" instead")
	}
	if s.ClusterIP != "" && s.ClusterIP != corev1.ClusterIPNone {
		for i, ip := range s.ClusterIPs {
			out = append(out, validation.GetWarningsForIP(p.Child("clusterIPs").Index(i), ip)...)
		}
	}
	headless := s.Type == corev1.ServiceTypeClusterIP && s.ClusterIP == corev1.ClusterIPNone
	if headless {
		out = append(out, headlessWarnings(s)...)
	}
	for i, ip := range s.ExternalIPs {
		out = append(out, validation.GetWarningsForIP(p.Child("externalIPs").Index(i), ip)...)
	}
	if len(s.ExternalIPs) > 0 && !headless && s.Type != corev1.ServiceTypeExternalName {
		out = append(out, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if s.LoadBalancerIP != "" {
		out = append(out, validation.GetWarningsForIP(p.Child("loadBalancerIP"), s.LoadBalancerIP)...)
	}
	for i, cidr := range s.LoadBalancerSourceRanges {
		out = append(out, validation.GetWarningsForCIDR(p.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if s.Type == corev1.ServiceTypeExternalName && len(s.ExternalIPs) > 0 {
		out = append(out, `spec.externalIPs is ignored when spec.type is "ExternalName"`)
	}
	if s.Type != corev1.ServiceTypeExternalName && s.ExternalName != "" {
		out = append(out, `spec.externalName is ignored when spec.type is not "ExternalName"`)
	}
	if deref(s.TrafficDistribution) == corev1.ServiceTrafficDistributionPreferClose {
		out = append(out, `spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"`)
	}
	return out
}

func headlessWarnings(s *corev1.ServiceSpec) (out []string) {
	if s.LoadBalancerIP != "" {
		out = append(out, "spec.loadBalancerIP is ignored for headless services")
	}
	if len(s.ExternalIPs) > 0 {
		out = append(out, "spec.externalIPs is ignored for headless services")
	}
	if s.SessionAffinity != corev1.ServiceAffinityNone {
		out = append(out, "spec.SessionAffinity is ignored for headless services")
	}
	return out
}

func newNodePorts(now, was []corev1.ServicePort) bool {
	for i := range now {
		port := now[i].NodePort
		if port != 0 && !slices.ContainsFunc(was, func(p corev1.ServicePort) bool { return p.NodePort == port }) {
			return true
		}
	}
	return false
}

// externalIPWidth cuts a load balancer's addresses in the table.
const externalIPWidth = 16

func externalIP(s *corev1.Service) string {
	switch s.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return orNone(strings.Join(s.Spec.ExternalIPs, ","))
	case corev1.ServiceTypeLoadBalancer:
		var list []string
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				list = append(list, in.IP)
			} else if in.Hostname != "" {
				list = append(list, in.Hostname)
			}
		}
		sort.Strings(list)
		text := strings.Join(slices.Compact(list), ",")
		if len(text) > externalIPWidth {
			text = text[:externalIPWidth-3] + "..."
		}
		all := append([]string{}, s.Spec.ExternalIPs...)
		if text != "" {
			all = append([]string{text}, all...)
		}
		if len(all) == 0 {
			return "<pending>"
		}
		return strings.Join(all, ",")
	}
	return "<unknown>"
}

func portCell(ports []corev1.ServicePort) string {
	cells := make([]string, len(ports))
	for i := range ports {
		p := &ports[i]
		cells[i] = strconv.Itoa(int(p.Port))
		if p.NodePort > 0 {
			cells[i] += ":" + strconv.Itoa(int(p.NodePort))
		}
		cells[i] += "/" + string(p.Protocol)
	}
	return strings.Join(cells, ",")
}
