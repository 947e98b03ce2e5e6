package launch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/record"
)

// network gives the sandbox its resolver, its host name and the node's ports
// that lead to it. Its addresses are the runtime's to find.
func network(s *sandbox) (err error) {
	if s.config.DnsConfig, err = s.resolver(); err != nil {
		return err
	}
	if !s.Pod.Spec.HostNetwork { // where it is the node's, which runtimes refuse to set again
		if s.config.Hostname, err = s.Host.kernelHostname(s.Pod); err != nil {
			return err
		}
	}
	s.config.PortMappings = portMappings(s.Pod)
	return nil
}

func portMappings(p *corev1.Pod) []*criv1.PortMapping {
	if p.Spec.HostNetwork {
		return nil
	}
	var out []*criv1.PortMapping
	record.EachContainer(p, func(c *corev1.Container) {
		for _, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			m := &criv1.PortMapping{HostPort: port.HostPort, ContainerPort: port.ContainerPort, HostIp: port.HostIP}
			switch port.Protocol {
			case corev1.ProtocolUDP:
				m.Protocol = criv1.Protocol_UDP
			case corev1.ProtocolSCTP:
				m.Protocol = criv1.Protocol_SCTP
			}
			out = append(out, m)
		}
	})
	return out
}

// hostname returns the pod's host name without its DNS domain, and that, if it has one.
func (h *Host) hostname(p *corev1.Pod) (name, domain string) {
	switch {
	case p.Spec.HostNetwork:
		return h.Hostname, ""
	case p.Spec.HostnameOverride != nil:
		return shortHostname(*p.Spec.HostnameOverride), ""
	case p.Spec.Subdomain != "":
		domain = p.Spec.Subdomain + "." + p.Namespace + ".svc." + h.ClusterDomain
	}
	return shortHostname(cmp.Or(p.Spec.Hostname, p.Name)), domain
}

func shortHostname(name string) string {
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-.")
	}
	return name
}

// kernelHostname is what the pod's processes are told by the kernel.
func (h *Host) kernelHostname(p *corev1.Pod) (string, error) {
	name, domain := h.hostname(p)
	if !ptr.Deref(p.Spec.SetHostnameAsFQDN, false) || domain == "" {
		return name, nil
	}
	name += "." + domain
	if len(name) > 64 {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, "+
			"FQDN %s is too long (64 characters is the max, %d characters requested)", name, len(name))
	}
	return name, nil
}

// resolver is the pod's resolver configuration (dnsPolicy, dnsConfig).
func (f *SandboxFacts) resolver() (*criv1.DNSConfig, error) {
	out := &criv1.DNSConfig{}
	policy, wanted := f.dnsPolicy(), f.Pod.Spec.DNSPolicy
	if policy != wanted && wanted != "" && !(wanted == corev1.DNSClusterFirst && f.Pod.Spec.HostNetwork) {
		f.warn("MissingClusterDNS", fmt.Sprintf("the node has no address of a cluster DNS (clusterDNS) for the policy %q. "+
			"Falling back to %q policy.", wanted, policy))
	}
	if policy != corev1.DNSNone {
		data, err := f.NodeResolver()
		if err != nil {
			return nil, fmt.Errorf("resolver configuration: %w", err)
		}
		out = parseResolvConf(data)
	}
	if policy == corev1.DNSClusterFirst || policy == corev1.DNSClusterFirstWithHostNet {
		domain := f.Host.ClusterDomain
		out.Servers = f.Host.ClusterDNS
		out.Searches = merged([]string{f.Pod.Namespace + ".svc." + domain, "svc." + domain, domain}, out.Searches)
		out.Options = []string{"ndots:5"}
	}
	if c := f.Pod.Spec.DNSConfig; c != nil {
		out.Servers = merged(out.Servers, c.Nameservers)
		out.Searches = merged(out.Searches, c.Searches)
		for _, o := range c.Options {
			v := o.Name
			if value := ptr.Deref(o.Value, ""); value != "" {
				v += ":" + value
			}
			out.Options = setOption(out.Options, o.Name, v)
		}
	}
	f.limit(out)
	return out, nil
}

// Resolvers take no more: servers, domains to search, and the characters of one and of all.
const (
	maxServers     = 3
	maxSearches    = 32
	maxSearch      = 253
	maxSearchesLen = 2048
)

// limit drops what resolvers do not take, here rather than there, and tells of it.
func (f *SandboxFacts) limit(c *criv1.DNSConfig) {
	if len(c.Servers) > maxServers {
		c.Servers = c.Servers[:maxServers]
		f.warn("DNSConfigForming", "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+
			strings.Join(c.Servers, " "))
	}
	var list []string
	length := 0
	for _, s := range c.Searches[:min(len(c.Searches), maxSearches)] {
		if len(s) > maxSearch {
			continue
		}
		if length += len(s); length > maxSearchesLen {
			break
		}
		list, length = append(list, s), length+1
	}
	if len(list) < len(c.Searches) {
		c.Searches = list
		f.warn("DNSConfigForming", "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+
			strings.Join(list, " "))
	}
}

func (f *SandboxFacts) warn(reason, message string) {
	if f.Warn != nil {
		f.Warn(reason, message)
	}
}

// dnsPolicy is the policy that the pod can have on this node.
func (f *SandboxFacts) dnsPolicy() corev1.DNSPolicy {
	policy := f.Pod.Spec.DNSPolicy
	switch {
	case policy == "", policy == corev1.DNSClusterFirst && f.Pod.Spec.HostNetwork,
		policy != corev1.DNSNone && len(f.Host.ClusterDNS) == 0:
		return corev1.DNSDefault
	}
	return policy
}

func setOption(options []string, name, value string) []string {
	for i, o := range options {
		if n, _, _ := strings.Cut(o, ":"); n == name {
			options[i] = value
			return options
		}
	}
	return append(options, value)
}

func merged(a, b []string) []string {
	out := append([]string(nil), a...)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func parseResolvConf(data []byte) *criv1.DNSConfig {
	out := &criv1.DNSConfig{}
	for line := range strings.SplitSeq(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			out.Servers = append(out.Servers, f[1])
		case "search":
			out.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					out.Searches = append(out.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range f[1:] {
				name, _, _ := strings.Cut(o, ":")
				out.Options = setOption(out.Options, name, o)
			}
		}
	}
	return out
}
