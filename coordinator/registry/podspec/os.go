package podspec

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

// validateOS refuses fields that the pod's operating system does not have.
func validateOS(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	if s.OS == nil {
		return nil
	}
	switch s.OS.Name {
	case "":
		return field.ErrorList{field.Required(p.Child("os", "name"), "")}
	case corev1.Linux:
		return refuseWindowsOptions(s, p)
	case corev1.Windows:
		return refuseLinuxFields(s, p)
	}
	return field.ErrorList{field.NotSupported(p.Child("os"), s.OS.Name, []corev1.OSName{corev1.Linux, corev1.Windows})}
}

func refuseWindowsOptions(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	const detail = "windows options cannot be set for a linux pod"
	if s.SecurityContext != nil && s.SecurityContext.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(p.Child("securityContext", "windowsOptions"), detail))
	}
	Visit(s, p, func(c *corev1.Container, at *field.Path) {
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(at.Child("securityContext", "windowsOptions"), detail))
		}
	})
	return errs
}

func refuseLinuxFields(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	refuse := func(p *field.Path, values map[string]any, order ...string) {
		for _, name := range order {
			if v := reflect.ValueOf(values[name]); v.IsValid() && !v.IsZero() {
				errs = append(errs, field.Forbidden(p.Child(name), "cannot be set for a windows pod"))
			}
		}
	}
	refuse(p,
		map[string]any{"hostUsers": s.HostUsers, "hostPID": s.HostPID, "hostIPC": s.HostIPC,
			"shareProcessNamespace": s.ShareProcessNamespace},
		"hostUsers", "hostPID", "hostIPC", "shareProcessNamespace")
	if c := s.SecurityContext; c != nil {
		refuse(p.Child("securityContext"), map[string]any{
			"appArmorProfile": c.AppArmorProfile, "seLinuxOptions": c.SELinuxOptions, "seccompProfile": c.SeccompProfile,
			"fsGroup": c.FSGroup, "fsGroupChangePolicy": c.FSGroupChangePolicy, "sysctls": c.Sysctls,
			"runAsUser":  c.RunAsUser,
			"runAsGroup": c.RunAsGroup, "supplementalGroups": c.SupplementalGroups,
			"supplementalGroupsPolicy": c.SupplementalGroupsPolicy, "seLinuxChangePolicy": c.SELinuxChangePolicy,
		}, "appArmorProfile", "seLinuxOptions", "seccompProfile", "fsGroup", "fsGroupChangePolicy", "sysctls", "runAsUser",
			"runAsGroup", "supplementalGroups", "supplementalGroupsPolicy", "seLinuxChangePolicy")
	}
	Visit(s, p, func(c *corev1.Container, at *field.Path) {
		if c := c.SecurityContext; c != nil {
			refuse(at.Child("securityContext"), map[string]any{
				"appArmorProfile": c.AppArmorProfile, "seLinuxOptions": c.SELinuxOptions,
				"seccompProfile": c.SeccompProfile,
				"capabilities":   c.Capabilities, "readOnlyRootFilesystem": c.ReadOnlyRootFilesystem,
				"privileged":               c.Privileged,
				"allowPrivilegeEscalation": c.AllowPrivilegeEscalation, "procMount": c.ProcMount,
				"runAsUser": c.RunAsUser, "runAsGroup": c.RunAsGroup,
			}, "appArmorProfile", "seLinuxOptions", "seccompProfile", "capabilities", "readOnlyRootFilesystem", "privileged",
				"allowPrivilegeEscalation", "procMount", "runAsUser", "runAsGroup")
		}
	})
	return errs
}

func validateWindowsOptions(w *corev1.WindowsSecurityContextOptions, p *field.Path) (errs field.ErrorList) {
	if w == nil {
		return nil
	}
	if w.GMSACredentialSpecName != nil {
		errs = append(errs, subdomainMessages(*w.GMSACredentialSpecName, p.Child("gmsaCredentialSpecName"))...)
	}
	if spec := w.GMSACredentialSpec; spec != nil && *spec == "" {
		errs = append(errs, field.Invalid(p.Child("gmsaCredentialSpec"), "", "gmsaCredentialSpec cannot be an empty string"))
	} else if spec != nil && len(*spec) > maxCredentialSpec {
		errs = append(errs, field.Invalid(p.Child("gmsaCredentialSpec"), *spec, "gmsaCredentialSpec size must be under 64 KiB"))
	}
	if w.RunAsUserName != nil {
		errs = append(errs,
			fieldrule.Invalid(p.Child("runAsUserName"), w.RunAsUserName, windowsUserFaults(*w.RunAsUserName))...)
	}
	return errs
}

const (
	maxCredentialSpec = 64 << 10 // bytes
	maxUserDomain     = 256      // characters, and less
	maxUser           = 104
)

var (
	dnsPart    = `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`
	userDomain = regexp.MustCompile(`^[^\\/:*?"<>|.][^\\/:*?"<>|]{0,14}$|^` + dnsPart + `(?:\.` + dnsPart + `)*$`)
)

// windowsUserFaults reads "DOMAIN\USER" or "USER"; the domain is one of NetBIOS or
// of DNS.
func windowsUserFaults(name string) (faults []string) {
	if name == "" {
		return []string{"runAsUserName cannot be an empty string"}
	}
	if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return []string{"runAsUserName cannot contain control characters"}
	}
	domain, user, qualified := strings.Cut(name, `\`)
	if !qualified {
		domain, user = "", name
	}
	if strings.Contains(user, `\`) {
		return []string{"runAsUserName cannot contain more than one backslash"}
	}
	if len(domain) >= maxUserDomain {
		faults = append(faults, fmt.Sprintf("runAsUserName's Domain length must be under %d characters", maxUserDomain))
	}
	if qualified && !userDomain.MatchString(domain) {
		faults = append(faults, "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	if user == "" {
		faults = append(faults, "runAsUserName's User cannot be empty")
	} else if len(user) > maxUser {
		faults = append(faults, fmt.Sprintf("runAsUserName's User length must not be longer than %d characters", maxUser))
	}
	if user != "" && strings.Trim(user, ". ") == "" {
		faults = append(faults, "runAsUserName's User cannot contain only periods or spaces")
	}
	if strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`) {
		faults = append(faults, `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
	return faults
}

// validateHostProcess: either every container of a pod is a host process on the
// host's network, or none.
func validateHostProcess(s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	var pod *bool
	if s.SecurityContext != nil && s.SecurityContext.WindowsOptions != nil {
		pod = s.SecurityContext.WindowsOptions.HostProcess
	}
	all, host := 0, 0
	Visit(s, p, func(c *corev1.Container, at *field.Path) {
		all++
		own := pod
		if c.SecurityContext != nil && c.SecurityContext.WindowsOptions != nil &&
			c.SecurityContext.WindowsOptions.HostProcess != nil {
			own = c.SecurityContext.WindowsOptions.HostProcess
		}
		if pod != nil && own != nil && *pod != *own {
			errs = append(errs, field.Invalid(at.Child("securityContext", "windowsOptions", "hostProcess"), *own,
				fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *pod)))
		}
		if ptr.Deref(own, false) {
			host++
		}
	})
	if host == 0 {
		return errs
	}
	if host != all {
		errs = append(errs, field.Invalid(p, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers"))
	}
	if !s.HostNetwork {
		errs = append(errs, field.Invalid(p.Child("hostNetwork"), s.HostNetwork, "hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}
