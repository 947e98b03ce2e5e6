package launch

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/shoal-project/shoal/agent/record"
)

// sysctls sets the kernel parameters of the pod's namespaces. Admit saw that
// the node allows them.
func sysctls(s *sandbox) error {
	_, ps := contexts(s.Pod, &corev1.Container{})
	for _, want := range ps.Sysctls {
		if s.config.Linux.Sysctls == nil {
			s.config.Linux.Sysctls = map[string]string{}
		}
		s.config.Linux.Sysctls[want.Name] = want.Value
	}
	return nil
}

// safeSysctls affect only the pod that sets them (upstream's list of v1.36;
// every kernel since 4.15 has them in a namespace).
var safeSysctls = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports",
	"net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

var sysctlPattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9*]$`)

// Sysctls are the kernel parameters that pods may set. The zero value allows
// none.
type Sysctls struct {
	names, prefixes map[string]sysctl.Namespace
}

// NewSysctls allows the safe ones and those of patterns, which may end in *.
func NewSysctls(patterns []string) (*Sysctls, error) {
	s := &Sysctls{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	for _, p := range append(append([]string(nil), safeSysctls...), patterns...) {
		if len(p) > 253 || !sysctlPattern.MatchString(p) {
			return nil, fmt.Errorf("sysctl %q must have at most 253 characters and match regex %s", p, sysctlPattern)
		}
		ns, name, prefixed := sysctl.GetNamespace(p)
		switch {
		case ns == sysctl.UnknownNamespace:
			return nil, fmt.Errorf("the sysctls %q are not known to be namespaced", name)
		case prefixed:
			s.prefixes[name] = ns
		default:
			s.names[name] = ns
		}
	}
	return s, nil
}

// Admit tells why the node does not set the pod's sysctls, nil when it does.
func (s *Sysctls) Admit(p *corev1.Pod) *record.Verdict {
	if s == nil || p.Spec.SecurityContext == nil {
		return nil
	}
	for _, want := range p.Spec.SecurityContext.Sysctls {
		if why := s.refusal(p, sysctl.NormalizeName(want.Name)); why != "" {
			return &record.Verdict{Reason: "SysctlForbidden", Message: "forbidden sysctl: " + why}
		}
	}
	return nil
}

func (s *Sysctls) refusal(p *corev1.Pod, name string) string {
	ns, ok := s.names[name]
	for prefix, n := range s.prefixes {
		if !ok && strings.HasPrefix(name, prefix) {
			ns, ok = n, true
		}
	}
	switch {
	case !ok:
		return fmt.Sprintf("%q not allowlisted", name)
	case ns == sysctl.IPCNamespace && p.Spec.HostIPC, ns == sysctl.NetNamespace && p.Spec.HostNetwork:
		return fmt.Sprintf("%q not allowed with host %s enabled", name, ns)
	}
	return ""
}
