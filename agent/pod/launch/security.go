package launch

import (
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/agent/record"
	"github.com/shoal-project/shoal/agent/selinux"
)

// containerSecurity says as whom a container runs and what it may do, and
// refuses one that would be root and must not.
func containerSecurity(c *container) error {
	if err := c.checkUser(); err != nil {
		return err
	}
	sc, ps := contexts(c.Pod, c.Container)
	out := &criv1.LinuxContainerSecurityContext{
		NamespaceOptions:         namespaces(c.Pod, c.Users),
		SupplementalGroups:       append([]int64(nil), ps.SupplementalGroups...),
		SupplementalGroupsPolicy: groupsPolicy(ps),
		RunAsGroup:               idValue(effective(sc.RunAsGroup, ps.RunAsGroup)),
		Privileged:               ptr.Deref(sc.Privileged, false),
		ReadonlyRootfs:           ptr.Deref(sc.ReadOnlyRootFilesystem, false),
		NoNewPrivs:               !ptr.Deref(sc.AllowPrivilegeEscalation, true),
		Capabilities:             capabilities(sc.Capabilities),
		Seccomp:                  c.Host.seccomp(effective(sc.SeccompProfile, ps.SeccompProfile)),
		Apparmor:                 apparmor(effective(sc.AppArmorProfile, ps.AppArmorProfile)),
		SelinuxOptions:           c.Host.selinux(c.Pod, effective(sc.SELinuxOptions, ps.SELinuxOptions)),
	}
	if c.Target != "" {
		out.NamespaceOptions.Pid = criv1.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = c.Target
	}
	if ps.FSGroup != nil {
		out.SupplementalGroups = append(out.SupplementalGroups, *ps.FSGroup)
	}
	for i := range c.Pod.Spec.Volumes {
		gid, ok := c.Group(c.Pod.Spec.Volumes[i].Name)
		if ok && !slices.Contains(out.SupplementalGroups, gid) {
			out.SupplementalGroups = append(out.SupplementalGroups, gid)
		}
	}
	switch u := effective(sc.RunAsUser, ps.RunAsUser); {
	case u != nil:
		out.RunAsUser = idValue(u)
	case c.Image.GetUid() != nil:
		out.RunAsUser = idValue(&c.Image.Uid.Value)
	default:
		out.RunAsUsername = c.Image.GetUsername()
	}
	if ptr.Deref(sc.ProcMount, corev1.DefaultProcMount) == corev1.DefaultProcMount {
		out.MaskedPaths = defaultMasked
		out.ReadonlyPaths = defaultReadonly
	}
	c.config.Linux.SecurityContext = out
	return nil
}

// sandboxSecurity is what the pod as a whole says of it.
func sandboxSecurity(s *sandbox) error {
	_, ps := contexts(s.Pod, &corev1.Container{})
	out := &criv1.LinuxSandboxSecurityContext{
		NamespaceOptions:         namespaces(s.Pod, s.Users),
		RunAsUser:                idValue(ps.RunAsUser),
		RunAsGroup:               idValue(ps.RunAsGroup),
		SupplementalGroupsPolicy: groupsPolicy(ps),
		Seccomp:                  &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault},
		SelinuxOptions:           s.Host.selinux(s.Pod, ps.SELinuxOptions),
	}
	if ps.FSGroup != nil {
		out.SupplementalGroups = append(out.SupplementalGroups, *ps.FSGroup)
	}
	out.SupplementalGroups = append(out.SupplementalGroups, ps.SupplementalGroups...)
	record.EachContainer(s.Pod, func(c *corev1.Container) {
		if c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false) {
			out.Privileged = true
		}
	})
	s.config.Linux.SecurityContext = out
	return nil
}

// effective returns a setting of the container's security context, or else
// of the pod's.
func effective[T any](c, p *T) *T {
	if c != nil {
		return c
	}
	return p
}

func contexts(p *corev1.Pod, c *corev1.Container) (*corev1.SecurityContext, *corev1.PodSecurityContext) {
	sc, ps := c.SecurityContext, p.Spec.SecurityContext
	if sc == nil {
		sc = &corev1.SecurityContext{}
	}
	if ps == nil {
		ps = &corev1.PodSecurityContext{}
	}
	return sc, ps
}

// checkUser holds runAsNonRoot against the user that the container would have.
func (f *Facts) checkUser() error {
	sc, ps := contexts(f.Pod, f.Container)
	if !ptr.Deref(effective(sc.RunAsNonRoot, ps.RunAsNonRoot), false) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)",
		f.Pod.Name+"_"+f.Pod.Namespace+"("+string(f.Pod.UID)+")", f.Container.Name)
	if u := effective(sc.RunAsUser, ps.RunAsUser); u != nil {
		if *u == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", where)
		}
		return nil
	}
	switch i := f.Image; {
	case i == nil:
		return nil
	case i.Uid != nil && i.Uid.Value == 0, i.Uid == nil && i.Username == "":
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)
	case i.Uid == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), "+
			"cannot verify user is non-root %s", i.Username, where)
	}
	return nil
}

func idValue(id *int64) *criv1.Int64Value {
	if id == nil {
		return nil
	}
	return &criv1.Int64Value{Value: *id}
}

func groupsPolicy(ps *corev1.PodSecurityContext) criv1.SupplementalGroupsPolicy {
	if ptr.Deref(ps.SupplementalGroupsPolicy,
		corev1.SupplementalGroupsPolicyMerge) == corev1.SupplementalGroupsPolicyStrict {
		return criv1.SupplementalGroupsPolicy_Strict
	}
	return criv1.SupplementalGroupsPolicy_Merge
}

func capabilities(c *corev1.Capabilities) *criv1.Capability {
	if c == nil {
		return nil
	}
	out := &criv1.Capability{}
	for _, name := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(name))
	}
	for _, name := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(name))
	}
	return out
}

// Paths of /proc and /sys that containers do not see or may not change, as
// the OCI runtimes agree on.
var (
	defaultMasked = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	defaultReadonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// seccomp is the profile that is asked for, or else the node's default
// (KEP-2413). Privileged containers have none: the runtime sees to that.
func (h *Host) seccomp(p *corev1.SeccompProfile) *criv1.SecurityProfile {
	if p == nil && h.SeccompDefault {
		p = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	switch {
	case p == nil:
	case p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		s := &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			s.LocalhostRef = filepath.Join(h.RootDir, "seccomp", *p.LocalhostProfile)
		}
		return s
	}
	return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Unconfined}
}

// AsksForAppArmor tells whether a pod is to be confined by a profile of AppArmor.
func AsksForAppArmor(p *corev1.Pod) bool {
	asks := func(profile *corev1.AppArmorProfile) bool {
		return profile != nil && profile.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if s := p.Spec.SecurityContext; s != nil && asks(s.AppArmorProfile) {
		return true
	}
	found := false
	record.EachContainer(p, func(c *corev1.Container) {
		found = found || c.SecurityContext != nil && asks(c.SecurityContext.AppArmorProfile)
	})
	return found
}

func apparmor(p *corev1.AppArmorProfile) *criv1.SecurityProfile {
	switch {
	case p == nil:
		return nil
	case p.Type == corev1.AppArmorProfileTypeRuntimeDefault:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}
	case p.Type == corev1.AppArmorProfileTypeLocalhost:
		return &criv1.SecurityProfile{
			ProfileType:  criv1.SecurityProfile_Localhost,
			LocalhostRef: ptr.Deref(p.LocalhostProfile, ""),
		}
	}
	return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Unconfined}
}

// selinux are the options of a container or sandbox. The level is one of the pod's, so
// that its containers share their files.
func (h *Host) selinux(p *corev1.Pod, o *corev1.SELinuxOptions) *criv1.SELinuxOption {
	if o == nil {
		return nil
	}
	out := &criv1.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
	if out.Level == "" && h.SELinux {
		out.Level = selinux.Level(string(p.UID))
	}
	return out
}

// namespaces tells which the pod's containers share, with each other or with
// the node.
func namespaces(p *corev1.Pod, u Users) *criv1.NamespaceOption {
	o := &criv1.NamespaceOption{Pid: criv1.NamespaceMode_CONTAINER, UsernsOptions: u.namespace()}
	if p.Spec.HostNetwork {
		o.Network = criv1.NamespaceMode_NODE
	}
	if p.Spec.HostIPC {
		o.Ipc = criv1.NamespaceMode_NODE
	}
	switch {
	case p.Spec.HostPID:
		o.Pid = criv1.NamespaceMode_NODE
	case ptr.Deref(p.Spec.ShareProcessNamespace, false):
		o.Pid = criv1.NamespaceMode_POD
	}
	return o
}
