package podspec

import (
	"encoding/json"
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
