package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const appArmorDeprecated = `deprecated since v1.30; use the "appArmorProfile" field instead`

// AdoptAppArmor gives containers the AppArmor profiles that a new pod's annotations
// name, where the fields name none, and warns of each annotation that it took or
// could not read (KEP-24).
func AdoptAppArmor(p *corev1.Pod) []string {
	if p.Spec.OS != nil && p.Spec.OS.Name == corev1.Windows {
		return nil
	}
	w := &warnings{}
	Visit(&p.Spec, nil, func(c *corev1.Container, _ *field.Path) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		noted, ok := p.Annotations[key]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := appArmorOf(noted)
		if len(validateAppArmor(profile, nil)) > 0 {
			profile = nil
		}
		if profile != nil && equality.Semantic.DeepEqual(profile, podAppArmor(&p.Spec)) {
			return
		}
		if profile != nil {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		w.add(field.NewPath("metadata", "annotations").Key(key), appArmorDeprecated)
	})
	return w.list
}

func podAppArmor(s *corev1.PodSpec) *corev1.AppArmorProfile {
	if s.SecurityContext == nil {
		return nil
	}
	return s.SecurityContext.AppArmorProfile
}

// appArmorOf reads the value of an annotation; nil for one that names no profile.
func appArmorOf(noted string) *corev1.AppArmorProfile {
	switch name, local := strings.CutPrefix(noted, corev1.DeprecatedAppArmorBetaProfileNamePrefix); {
	case noted == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case noted == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case local && name != "":
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
