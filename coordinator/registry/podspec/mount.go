package podspec

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func (s *scope) validateMounts(c *corev1.Container, p *field.Path) (errs field.ErrorList) {
	points := make(map[string]bool, len(c.VolumeMounts))
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], p.Index(i)
		errs = append(errs, required(m.Name, at.Child("name"))...)
		if s.volumes[m.Name] == nil {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		errs = append(errs, required(m.MountPath, at.Child("mountPath"))...)
		if points[m.MountPath] {
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique"))
		}
		points[m.MountPath] = true
		for j := range c.VolumeDevices {
			if c.VolumeDevices[j].Name == m.Name {
				errs = append(errs, field.Invalid(at.Child("name"), m.Name, "must not already exist in volumeDevices"))
			}
			if c.VolumeDevices[j].DevicePath == m.MountPath {
				errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must not already exist as a path in volumeDevices"))
			}
		}
		errs = append(errs, validateSubPath(m, at, p)...)
		errs = append(errs, validatePropagation(m, c, p.Child("mountPropagation"))...)
		errs = append(errs, validateRecursive(m, p.Child("recursiveReadOnly"))...)
	}
	return errs
}

// validateSubPath reports a bad path at list (without the index), as upstream.
func validateSubPath(m *corev1.VolumeMount, at, list *field.Path) (errs field.ErrorList) {
	if m.SubPath != "" {
		errs = append(errs, relativePath(m.SubPath, list.Child("subPath"))...)
	}
	if m.SubPathExpr == "" {
		return errs
	}
	if m.SubPath != "" {
		errs = append(errs, field.Invalid(at.Child("subPathExpr"), m.SubPathExpr, "subPathExpr and subPath are mutually exclusive"))
	}
	return append(errs, relativePath(m.SubPathExpr, list.Child("subPathExpr"))...)
}

func validatePropagation(m *corev1.VolumeMount, c *corev1.Container, p *field.Path) field.ErrorList {
	if m.MountPropagation == nil {
		return nil
	}
	errs := Among(*m.MountPropagation, p, corev1.MountPropagationBidirectional, corev1.MountPropagationHostToContainer,
		corev1.MountPropagationNone)
	privileged := c.SecurityContext != nil && ptr.Deref(c.SecurityContext.Privileged, false)
	if *m.MountPropagation == corev1.MountPropagationBidirectional && !privileged {
		errs = append(errs, field.Forbidden(p, "Bidirectional mount propagation is available only to privileged containers"))
	}
	return errs
}

func validateRecursive(m *corev1.VolumeMount, p *field.Path) (errs field.ErrorList) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == corev1.RecursiveReadOnlyDisabled {
		return nil
	}
	if bad := Among(*m.RecursiveReadOnly, p,
		corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyEnabled,
		corev1.RecursiveReadOnlyIfPossible); len(bad) > 0 {
		return bad
	}
	if !m.ReadOnly {
		errs = append(errs, field.Forbidden(p, "may only be specified when readOnly is true"))
	}
	if m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone {
		errs = append(errs, field.Forbidden(p, "may only be specified when mountPropagation is None or not specified"))
	}
	return errs
}

func (s *scope) validateDevices(c *corev1.Container, p *field.Path) (errs field.ErrorList) {
	names, paths := sets.New[string](), sets.New[string]()
	for i, d := range c.VolumeDevices {
		at, v := p.Index(i), s.volumes[d.Name]
		errs = append(errs, required(d.Name, at.Child("name"))...)
		if names.Has(d.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must be unique"))
		}
		switch {
		case v == nil:
			errs = append(errs, field.NotFound(at.Child("name"), d.Name))
		case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
		}
		errs = append(errs, required(d.DevicePath, at.Child("devicePath"))...)
		if paths.Has(d.DevicePath) {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must be unique"))
		}
		if len(noBacksteps(d.DevicePath, p)) > 0 {
			errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "can not contain backsteps ('..')"))
		}
		for j := range c.VolumeMounts {
			if c.VolumeMounts[j].Name == d.Name {
				errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must not already exist in volumeMounts"))
			}
			if c.VolumeMounts[j].MountPath == d.DevicePath {
				errs = append(errs, field.Invalid(at.Child("devicePath"), d.DevicePath, "must not already exist as a path in volumeMounts"))
			}
		}
		names.Insert(d.Name)
		paths.Insert(d.DevicePath)
	}
	return errs
}
