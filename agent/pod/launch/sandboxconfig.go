package launch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// Labels and annotations that the CRI's users know pods and containers by.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash     = "io.kubernetes.container.hash"
	annotationRestarts = "io.kubernetes.container.restartCount"
	annotationTermPath = "io.kubernetes.container.terminationMessagePath"
	annotationTermPol  = "io.kubernetes.container.terminationMessagePolicy"
	annotationPodGrace = "io.kubernetes.pod.terminationGracePeriod"
)

// Host is what pods take from the node they run on.
type Host struct {
	NodeName string
	Hostname string
	// IPs are the node's addresses, the first is the main one.
	IPs []string
	// MemoryBytes is the node's capacity.
	MemoryBytes int64
	Allocatable v1.ResourceList
	// PageSizes are the sizes of the node's huge pages, as in "2Mi".
	PageSizes []string

	// SeccompDefault gives containers that name no profile the runtime's.
	SeccompDefault bool

	// Unified are v2 control files of every container and their values.
	Unified map[string]string

	RootDir, PodLogsDir, ContainerLogsDir string

	ClusterDNS    []string
	ClusterDomain string
	ResolvConf    string
	// CgroupParent is the pod's cgroup, made by a step before the sandbox.
	CgroupParent func(*v1.Pod) string
}

// LogDir is the directory of the pod's logs.
func (h *Host) LogDir(p *v1.Pod) string {
	return filepath.Join(h.PodLogsDir, p.Namespace+"_"+p.Name+"_"+string(p.UID))
}

// Dir is the pod's directory under the kubelet's root directory.
func (h *Host) Dir(p *v1.Pod) string { return filepath.Join(h.RootDir, "pods", string(p.UID)) }

// SandboxFacts is all that one sandbox is made of.
type SandboxFacts struct {
	Host *Host
	Pod  *v1.Pod
	// Attempt counts the pod's sandboxes, from 0.
	Attempt uint32
	// Users are those that the pod has on the node instead of the node's own.
	Users Users
	// NodeResolver is the node's own resolver configuration.
	NodeResolver func() ([]byte, error)
}

// Sandbox is the CRI's form of the pod.
func Sandbox(f *SandboxFacts) (*runtimeapi.PodSandboxConfig, error) {
	h, p := f.Host, f.Pod
	dns, err := f.dns()
	if err != nil {
		return nil, err
	}
	c := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID), Attempt: f.Attempt},
		LogDirectory: h.LogDir(p),
		DnsConfig:    dns,
		Labels:       map[string]string{},
		Annotations:  p.Annotations,
		PortMappings: portMappings(p),
	}
	for k, v := range p.Labels {
		c.Labels[k] = v
	}
	c.Labels[labelPodName], c.Labels[labelPodNamespace], c.Labels[LabelPodUID] = p.Name, p.Namespace, string(p.UID)
	if c.Hostname, _, err = h.hostname(p); err != nil {
		return nil, err
	}
	c.Linux = h.linuxSandbox(p)
	c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = f.Users.namespace()
	return c, nil
}

func (h *Host) linuxSandbox(p *v1.Pod) *runtimeapi.LinuxPodSandboxConfig {
	sc := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(p),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	l := &runtimeapi.LinuxPodSandboxConfig{CgroupParent: h.CgroupParent(p), SecurityContext: sc}
	limits := PodLimits(p)
	l.Resources = &runtimeapi.LinuxContainerResources{CpuShares: limits.CPUShares, CpuQuota: limits.CPUQuota,
		CpuPeriod: limits.CPUPeriod, MemoryLimitInBytes: limits.MemoryBytes}
	record.EachContainer(p, func(c *v1.Container) {
		if c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged {
			sc.Privileged = true
		}
	})
	ps := p.Spec.SecurityContext
	if ps == nil {
		return l
	}
	if ps.RunAsUser != nil {
		sc.RunAsUser = &runtimeapi.Int64Value{Value: *ps.RunAsUser}
	}
	if ps.RunAsGroup != nil {
		sc.RunAsGroup = &runtimeapi.Int64Value{Value: *ps.RunAsGroup}
	}
	if ps.FSGroup != nil {
		sc.SupplementalGroups = append(sc.SupplementalGroups, *ps.FSGroup)
	}
	sc.SupplementalGroups = append(sc.SupplementalGroups, ps.SupplementalGroups...)
	sc.SupplementalGroupsPolicy = groupsPolicy(ps)
	sc.SelinuxOptions = selinux(ps.SELinuxOptions)
	if len(ps.Sysctls) > 0 {
		l.Sysctls = map[string]string{}
		for _, s := range ps.Sysctls {
			l.Sysctls[s.Name] = s.Value
		}
	}
	return l
}

func groupsPolicy(ps *v1.PodSecurityContext) runtimeapi.SupplementalGroupsPolicy {
	if ps != nil && ps.SupplementalGroupsPolicy != nil && *ps.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func namespaces(p *v1.Pod) *runtimeapi.NamespaceOption {
	o := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	if p.Spec.HostNetwork {
		o.Network = runtimeapi.NamespaceMode_NODE
	}
	if p.Spec.HostIPC {
		o.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case p.Spec.HostPID:
		o.Pid = runtimeapi.NamespaceMode_NODE
	case p.Spec.ShareProcessNamespace != nil && *p.Spec.ShareProcessNamespace:
		o.Pid = runtimeapi.NamespaceMode_POD
	}
	return o
}

func portMappings(p *v1.Pod) []*runtimeapi.PortMapping {
	if p.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	record.EachContainer(p, func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort == 0 {
				continue
			}
			m := &runtimeapi.PortMapping{HostPort: port.HostPort, ContainerPort: port.ContainerPort, HostIp: port.HostIP}
			switch port.Protocol {
			case v1.ProtocolUDP:
				m.Protocol = runtimeapi.Protocol_UDP
			case v1.ProtocolSCTP:
				m.Protocol = runtimeapi.Protocol_SCTP
			}
			out = append(out, m)
		}
	})
	return out
}

// hostname returns the pod's host name and its DNS domain, if it has one.
func (h *Host) hostname(p *v1.Pod) (name, domain string, err error) {
	if p.Spec.HostNetwork {
		return h.Hostname, "", nil
	}
	name = p.Name
	if p.Spec.Hostname != "" {
		name = p.Spec.Hostname
	} else if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-.")
	}
	if p.Spec.HostnameOverride != nil {
		return *p.Spec.HostnameOverride, "", nil
	}
	if p.Spec.Subdomain != "" {
		domain = p.Spec.Subdomain + "." + p.Namespace + ".svc." + h.ClusterDomain
	}
	if p.Spec.SetHostnameAsFQDN != nil && *p.Spec.SetHostnameAsFQDN && domain != "" {
		name += "." + domain
		if len(name) > 64 {
			return "", "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (64 characters is the max, %d characters requested)", name, len(name))
		}
	}
	return name, domain, nil
}

// dns is the pod's resolver configuration (dnsPolicy, dnsConfig).
func (f *SandboxFacts) dns() (*runtimeapi.DNSConfig, error) {
	h, p := f.Host, f.Pod
	out := &runtimeapi.DNSConfig{}
	policy := p.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && p.Spec.HostNetwork || policy == v1.DNSClusterFirst && len(h.ClusterDNS) == 0 || policy == "" {
		policy = v1.DNSDefault
	}
	if policy != v1.DNSNone {
		data, err := f.NodeResolver()
		if err != nil {
			return nil, fmt.Errorf("resolver configuration: %w", err)
		}
		out = parseResolvConf(data)
	}
	if policy == v1.DNSClusterFirst || policy == v1.DNSClusterFirstWithHostNet {
		out.Servers = h.ClusterDNS
		out.Searches = append([]string{p.Namespace + ".svc." + h.ClusterDomain, "svc." + h.ClusterDomain, h.ClusterDomain}, out.Searches...)
		out.Options = []string{"ndots:5"}
	}
	if c := p.Spec.DNSConfig; c != nil {
		out.Servers = merged(out.Servers, c.Nameservers)
		out.Searches = merged(out.Searches, c.Searches)
		for _, o := range c.Options {
			v := o.Name
			if o.Value != nil && *o.Value != "" {
				v += ":" + *o.Value
			}
			out.Options = setOption(out.Options, o.Name, v)
		}
	}
	// The resolver takes 3 servers; more are dropped here rather than there.
	if len(out.Servers) > 3 {
		out.Servers = out.Servers[:3]
	}
	if len(out.Searches) > 32 {
		out.Searches = out.Searches[:32]
	}
	return out, nil
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

func parseResolvConf(data []byte) *runtimeapi.DNSConfig {
	out := &runtimeapi.DNSConfig{}
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
			out.Options = f[1:]
		}
	}
	return out
}

// hostsFile is the content of the pod's /etc/hosts.
func (f *Facts) hostsFile() ([]byte, error) {
	p := f.Pod
	var b strings.Builder
	if p.Spec.HostNetwork {
		host, err := f.NodeHosts()
		if err != nil {
			return nil, err
		}
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(host)
	} else {
		name, domain, err := f.Host.hostname(p)
		if err != nil {
			return nil, err
		}
		b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::\tip6-localnet\nfe00::\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		for _, ip := range f.PodIPs {
			if domain != "" && !strings.HasSuffix(name, "."+domain) {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, name, domain, name)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, name)
			}
		}
	}
	if len(p.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range p.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return []byte(b.String()), nil
}
