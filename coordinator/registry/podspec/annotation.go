package podspec

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateAnnotations checks the annotations that mean something on a pod or a
// template; p is the path of the map.
func ValidateAnnotations(a map[string]string, s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	if len(a) == 0 {
		return nil
	}
	if v, mirror := a[corev1.MirrorPodAnnotationKey]; mirror && s.NodeName == "" {
		errs = append(errs, field.Invalid(p.Key(corev1.MirrorPodAnnotationKey), v, "must set spec.nodeName if mirror pod annotation is set"))
	}
	if v := a[corev1.TolerationsAnnotationKey]; v != "" {
		var tolerations []corev1.Toleration
		if err := json.Unmarshal([]byte(v), &tolerations); err != nil {
			errs = append(errs, field.Invalid(p, corev1.TolerationsAnnotationKey, err.Error()))
		}
		errs = append(errs, ValidateTolerations(tolerations, p.Child(corev1.TolerationsAnnotationKey))...)
	}
	if v, set := a[corev1.PodDeletionCost]; set && !isDeletionCost(v) {
		errs = append(errs, field.Invalid(p.Key(corev1.PodDeletionCost), v, "must be a 32bit integer"))
	}
	errs = append(errs, validateSeccompAnnotations(a, p)...)
	for key, profile := range a {
		name, ok := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		if !ok {
			continue
		}
		if !hasContainer(s, name) {
			errs = append(errs, field.Invalid(p.Key(key), name, "container not found"))
		}
		if !isAppArmorProfile(profile) {
			errs = append(errs,
				field.Invalid(p.Key(key), profile, "invalid AppArmor profile name: "+strconv.Quote(profile)))
		}
	}
	return errs
}

// validateSeccompAnnotations checks annotations that name a seccomp profile, though no
// node looks at them.
func validateSeccompAnnotations(a map[string]string, p *field.Path) (errs field.ErrorList) {
	for _, key := range slices.Sorted(maps.Keys(a)) {
		if key != corev1.SeccompPodAnnotationKey &&
			!strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix) {
			continue
		}
		switch local, ok := strings.CutPrefix(a[key], corev1.SeccompLocalhostProfileNamePrefix); {
		case ok:
			errs = append(errs, relativePath(local, p.Child(key))...)
		case !isSeccompDefault(a[key]) && a[key] != corev1.SeccompProfileNameUnconfined:
			errs = append(errs, field.Invalid(p.Child(key), a[key], "must be a valid seccomp profile"))
		}
	}
	return errs
}

func isSeccompDefault(v string) bool {
	return v == corev1.SeccompProfileRuntimeDefault || v == corev1.DeprecatedSeccompProfileDockerDefault
}

// ValidateSeccompAgrees checks that annotations name the seccomp profiles that the
// fields of a spec do where there are both; p is the path of the spec.
func ValidateSeccompAgrees(a map[string]string, s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	if s.SecurityContext != nil {
		errs = seccompAgrees(a, corev1.SeccompPodAnnotationKey, s.SecurityContext.SeccompProfile, p)
	}
	Visit(s, p, func(c *corev1.Container, p *field.Path) {
		if c.SecurityContext != nil {
			key := corev1.SeccompContainerAnnotationKeyPrefix + c.Name
			errs = append(errs, seccompAgrees(a, key, c.SecurityContext.SeccompProfile, p)...)
		}
	})
	return errs
}

func seccompAgrees(a map[string]string, key string, s *corev1.SeccompProfile, p *field.Path) field.ErrorList {
	noted, ok := a[key]
	if !ok || s == nil {
		return nil
	}
	p = p.Child("securityContext", "seccompProfile")
	agrees := true
	switch s.Type {
	case corev1.SeccompProfileTypeUnconfined:
		agrees = noted == corev1.SeccompProfileNameUnconfined
	case corev1.SeccompProfileTypeRuntimeDefault:
		agrees = isSeccompDefault(noted)
	case corev1.SeccompProfileTypeLocalhost:
		var local string
		local, agrees = strings.CutPrefix(noted, corev1.SeccompLocalhostProfileNamePrefix)
		if agrees && s.LocalhostProfile != nil && *s.LocalhostProfile != local {
			return field.ErrorList{field.Forbidden(p.Child("localhostProfile"),
				"seccomp profile in annotation and field must match")}
		}
	}
	if agrees {
		return nil
	}
	return field.ErrorList{field.Forbidden(p.Child("type"), "seccomp type in annotation and field must match")}
}

// dropInitContainers takes out annotations that were init containers once.
func dropInitContainers(a map[string]string) {
	for _, version := range []string{"alpha", "beta"} {
		delete(a, "pod."+version+".kubernetes.io/init-containers")
		delete(a, "pod."+version+".kubernetes.io/init-container-statuses")
	}
}

// isDeletionCost: a plain decimal without plus sign or leading zeros.
func isDeletionCost(v string) bool {
	n, err := strconv.ParseInt(v, 10, 32)
	return err == nil && strconv.FormatInt(n, 10) == v
}

func isAppArmorProfile(v string) bool {
	return v == "" || v == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault ||
		v == corev1.DeprecatedAppArmorBetaProfileNameUnconfined ||
		strings.HasPrefix(v, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
}

func hasContainer(s *corev1.PodSpec, name string) (found bool) {
	Visit(s, nil, func(c *corev1.Container, _ *field.Path) { found = found || c.Name == name })
	return found
}
