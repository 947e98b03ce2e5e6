package podspec

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

var sysctlName = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)

const maxSysctlName = 253

func validatePodSecurity(s *corev1.PodSpec, specPath *field.Path) (errs field.ErrorList) {
	c, p := s.SecurityContext, specPath.Child("securityContext")
	shared := field.ErrorList{}
	if ptr.Deref(s.ShareProcessNamespace, false) && s.HostPID {
		shared = append(shared, field.Invalid(p.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled"))
	}
	if c == nil {
		return shared
	}
	if c.FSGroup != nil {
		errs = append(errs, fieldrule.Invalid(p.Child("fsGroup"), *c.FSGroup, validation.IsValidGroupID(*c.FSGroup))...)
	}
	errs = append(errs, validateIDs(c.RunAsUser, c.RunAsGroup, p)...)
	for i, id := range c.SupplementalGroups {
		errs = append(errs,
			fieldrule.Invalid(p.Child("supplementalGroups").Index(i), id, validation.IsValidGroupID(id))...)
	}
	errs = append(errs, shared...)
	errs = append(errs, validateSysctls(s, p.Child("sysctls"))...)
	if c.FSGroupChangePolicy != nil {
		errs = append(errs,
			Among(*c.FSGroupChangePolicy, p.Child("fsGroupChangePolicy"), corev1.FSGroupChangeAlways,
				corev1.FSGroupChangeOnRootMismatch)...)
	}
	errs = append(errs, validateSeccomp(c.SeccompProfile, p.Child("seccompProfile"))...)
	errs = append(errs, validateWindowsOptions(c.WindowsOptions, p.Child("windowsOptions"))...)
	errs = append(errs, validateAppArmor(c.AppArmorProfile, p.Child("appArmorProfile"))...)
	if c.SupplementalGroupsPolicy != nil {
		errs = append(errs, Among(*c.SupplementalGroupsPolicy, p.Child("supplementalGroupsPolicy"),
			corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)...)
	}
	if c.SELinuxChangePolicy != nil {
		// MountOption waits for the feature SELinuxMount, off in v1.36.
		errs = append(errs,
			Among(*c.SELinuxChangePolicy, p.Child("seLinuxChangePolicy"), corev1.SELinuxChangePolicyRecursive)...)
	}
	return errs
}

// validateUserNamespace: what a pod with its own users may not share (KEP-127).
func validateUserNamespace(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	if ptr.Deref(s.HostUsers, true) {
		return nil
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"hostNetwork", s.HostNetwork}, {"HostPID", s.HostPID}, {"HostIPC", s.HostIPC}} {
		if f.set {
			errs = append(errs, field.Forbidden(p.Child(f.name), "when `hostUsers` is false"))
		}
	}
	Visit(s, p, func(c *corev1.Container, at *field.Path) {
		if len(c.VolumeDevices) > 0 {
			errs = append(errs, field.Forbidden(at.Child("volumeDevices"), "when `hostUsers` is false"))
		}
	})
	return errs
}

func validateIDs(user, group *int64, p *field.Path) (errs field.ErrorList) {
	if user != nil {
		errs = append(errs, fieldrule.Invalid(p.Child("runAsUser"), *user, validation.IsValidUserID(*user))...)
	}
	if group != nil {
		errs = append(errs, fieldrule.Invalid(p.Child("runAsGroup"), *group, validation.IsValidGroupID(*group))...)
	}
	return errs
}

func validateSysctls(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	seen := sets.New[string]()
	for i, c := range s.SecurityContext.Sysctls {
		at := p.Index(i).Child("name")
		switch {
		case c.Name == "":
			errs = append(errs, field.Required(at, ""))
		case len(c.Name) > maxSysctlName || !sysctlName.MatchString(c.Name):
			errs = append(errs,
				field.Invalid(at, c.Name,
					fmt.Sprintf("must have at most %d characters and match regex %s", maxSysctlName, sysctlName)))
		case seen.Has(c.Name):
			errs = append(errs, field.Duplicate(at, c.Name))
		}
		seen.Insert(c.Name)
		name := strings.ReplaceAll(c.Name, "/", ".")
		switch {
		case s.HostNetwork && strings.HasPrefix(name, "net."):
			errs = append(errs, field.Invalid(at, c.Name, "may not be specified when 'hostNetwork' is true"))
		case s.HostIPC && isIPCSysctl(name):
			errs = append(errs, field.Invalid(at, c.Name, "may not be specified when 'hostIPC' is true"))
		}
	}
	return errs
}

func isIPCSysctl(name string) bool {
	return name == "kernel.sem" || strings.HasPrefix(name, "kernel.shm") || strings.HasPrefix(name, "kernel.msg") ||
		strings.HasPrefix(name, "fs.mqueue.")
}

func validateSecurity(c *corev1.SecurityContext, hostUsers bool, p *field.Path) (errs field.ErrorList) {
	if c == nil {
		return nil
	}
	errs = append(errs, validateIDs(c.RunAsUser, c.RunAsGroup, p)...)
	if c.ProcMount != nil {
		errs = append(errs,
			Among(*c.ProcMount, p.Child("procMount"), corev1.DefaultProcMount, corev1.UnmaskedProcMount)...)
		if hostUsers && *c.ProcMount == corev1.UnmaskedProcMount {
			errs = append(errs, field.Invalid(p.Child("procMount"), c.ProcMount, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccomp(c.SeccompProfile, p.Child("seccompProfile"))...)
	if c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation {
		if ptr.Deref(c.Privileged, false) {
			errs = append(errs, field.Invalid(p, c, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if c.Capabilities != nil {
			for _, added := range c.Capabilities.Add {
				if added == "CAP_SYS_ADMIN" {
					errs = append(errs, field.Invalid(p, c, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
				}
			}
		}
	}
	errs = append(errs, validateWindowsOptions(c.WindowsOptions, p.Child("windowsOptions"))...)
	return append(errs, validateAppArmor(c.AppArmorProfile, p.Child("appArmorProfile"))...)
}

func validateSeccomp(s *corev1.SeccompProfile, p *field.Path) (errs field.ErrorList) {
	if s == nil {
		return nil
	}
	if s.Type == "" {
		errs = append(errs, field.Required(p.Child("type"), "type is required when seccompProfile is set"))
	} else {
		errs = append(errs, Among(s.Type, p.Child("type"),
			corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault,
			corev1.SeccompProfileTypeUnconfined)...)
	}
	at := p.Child("localhostProfile")
	switch {
	case s.Type == corev1.SeccompProfileTypeLocalhost && s.LocalhostProfile == nil:
		errs = append(errs, field.Required(at, "must be set when seccomp type is Localhost"))
	case s.Type == corev1.SeccompProfileTypeLocalhost:
		errs = append(errs, relativePath(*s.LocalhostProfile, at)...)
	case s.LocalhostProfile != nil:
		errs = append(errs, field.Invalid(at, s, "can only be set when seccomp type is Localhost"))
	}
	return errs
}

const maxAppArmorProfile = 4095 // PATH_MAX without its zero byte

func validateAppArmor(a *corev1.AppArmorProfile, p *field.Path) (errs field.ErrorList) {
	if a == nil {
		return nil
	}
	at := p.Child("localhostProfile")
	switch a.Type {
	case corev1.AppArmorProfileTypeLocalhost:
		name := ptr.Deref(a.LocalhostProfile, "")
		switch {
		case strings.TrimSpace(name) != name:
			errs = append(errs, field.Invalid(at, name, "must not be padded with whitespace"))
		case name == "":
			errs = append(errs, field.Required(at, "must be set when AppArmor type is Localhost"))
		}
		if len(name) > maxAppArmorProfile {
			errs = append(errs, field.TooLong(at, "", maxAppArmorProfile))
		}
	case corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined:
		if a.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(at, a.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
		}
	case "":
		errs = append(errs, field.Required(p.Child("type"), "type is required when appArmorProfile is set"))
	default:
		errs = append(errs, field.NotSupported(p.Child("type"), a.Type,
			[]corev1.AppArmorProfileType{corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault,
				corev1.AppArmorProfileTypeUnconfined}))
	}
	return errs
}
