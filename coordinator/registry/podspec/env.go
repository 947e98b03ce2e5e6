package podspec

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

var (
	envFields = sets.New("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")
	volumeFields       = sets.New("metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.uid")
	containerResources = sets.New("limits.cpu", "limits.memory", "limits.ephemeral-storage",
		"requests.cpu", "requests.memory", "requests.ephemeral-storage")
)

func validateEnv(vars []corev1.EnvVar, p *field.Path) (errs field.ErrorList) {
	for i := range vars {
		at := p.Index(i)
		if vars[i].Name == "" {
			errs = append(errs, field.Required(at.Child("name"), ""))
		} else {
			errs = append(errs,
				fieldrule.Invalid(at.Child("name"), vars[i].Name, validation.IsRelaxedEnvVarName(vars[i].Name))...)
		}
		errs = append(errs, validateEnvSource(&vars[i], at.Child("valueFrom"))...)
	}
	return errs
}

func validateEnvSource(v *corev1.EnvVar, p *field.Path) (errs field.ErrorList) {
	from := v.ValueFrom
	if from == nil {
		return nil
	}
	n := 0
	if from.FieldRef != nil {
		n++
		errs = append(errs, validateFieldRef(from.FieldRef, envFields, p.Child("fieldRef"))...)
	}
	if from.ResourceFieldRef != nil {
		n++
		errs = append(errs, validateResourceRef(from.ResourceFieldRef, p.Child("resourceFieldRef"), false)...)
	}
	if r := from.ConfigMapKeyRef; r != nil {
		n++
		errs = append(errs, validateKeyRef(r.Name, r.Key, p.Child("configMapKeyRef"))...)
	}
	if r := from.SecretKeyRef; r != nil {
		n++
		errs = append(errs, validateKeyRef(r.Name, r.Key, p.Child("secretKeyRef"))...)
	}
	if from.FileKeyRef != nil {
		n++
		errs = append(errs, validateFileRef(from.FileKeyRef, p.Child("fileKeyRef"))...)
	}
	switch {
	case n == 0:
		errs = append(errs, field.Invalid(p, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"))
	case v.Value != "":
		errs = append(errs, field.Invalid(p, "", "may not be specified when `value` is not empty"))
	case n > 1:
		errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
	}
	return errs
}

func validateKeyRef(name, key string, p *field.Path) field.ErrorList {
	errs := dnsSubdomain(name, p.Child("name"))
	if key == "" {
		return append(errs, field.Required(p.Child("key"), ""))
	}
	return append(errs, fieldrule.Invalid(p.Child("key"), key, validation.IsConfigMapKey(key))...)
}

func validateFileRef(r *corev1.FileKeySelector, p *field.Path) (errs field.ErrorList) {
	if r.Key == "" {
		errs = append(errs, field.Required(p.Child("key"), ""))
	} else {
		errs = append(errs, fieldrule.Invalid(p.Child("key"), r.Key, validation.IsRelaxedEnvVarName(r.Key))...)
	}
	if r.VolumeName == "" {
		errs = append(errs, field.Required(p.Child("volumeName"), ""))
	} else {
		errs = append(errs, dnsLabel(r.VolumeName, p.Child("volumeName"))...)
	}
	if r.Path == "" {
		return append(errs, field.Required(p.Child("path"), ""))
	}
	return append(errs, noBacksteps(r.Path, p.Child("path"))...)
}

// validateFileKeyRefs: a file that env is read from lies in an emptyDir.
func (s *scope) validateFileKeyRefs(p *field.Path) (errs field.ErrorList) {
	Visit(s.spec, p, func(c *corev1.Container, at *field.Path) {
		for i := range c.Env {
			if c.Env[i].ValueFrom == nil || c.Env[i].ValueFrom.FileKeyRef == nil {
				continue
			}
			name := c.Env[i].ValueFrom.FileKeyRef.VolumeName
			at := at.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			j := slices.IndexFunc(s.spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
			switch {
			case j < 0:
				errs = append(errs, field.NotFound(at, name))
			case s.spec.Volumes[j].EmptyDir == nil:
				errs = append(errs, field.Invalid(at, name, "referenced volume must be of type emptyDir"))
			}
		}
	})
	return errs
}

func validateEnvFrom(sources []corev1.EnvFromSource, p *field.Path) (errs field.ErrorList) {
	for i, e := range sources {
		at := p.Index(i)
		if e.Prefix != "" {
			errs = append(errs,
				fieldrule.Invalid(at.Child("prefix"), e.Prefix, validation.IsRelaxedEnvVarName(e.Prefix))...)
		}
		n := 0
		if e.ConfigMapRef != nil {
			n++
			errs = append(errs, validateEnvRef(e.ConfigMapRef.Name, at.Child("configMapRef", "name"))...)
		}
		if e.SecretRef != nil {
			n++
			errs = append(errs, validateEnvRef(e.SecretRef.Name, at.Child("secretRef", "name"))...)
		}
		switch {
		case n == 0:
			errs = append(errs, field.Invalid(p, "", "must specify one of: `configMapRef` or `secretRef`"))
		case n > 1:
			errs = append(errs, field.Invalid(p, "", "may not have more than one field specified at a time"))
		}
	}
	return errs
}

func validateEnvRef(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return dnsSubdomain(name, p)
}

// validateFieldRef checks a downward API field; only labels and annotations
// take a subscript.
func validateFieldRef(r *corev1.ObjectFieldSelector, supported sets.Set[string], p *field.Path) field.ErrorList {
	switch {
	case r.APIVersion == "":
		return field.ErrorList{field.Required(p.Child("apiVersion"), "")}
	case r.FieldPath == "":
		return field.ErrorList{field.Required(p.Child("fieldPath"), "")}
	case r.APIVersion != "v1":
		return field.ErrorList{
			field.Invalid(p.Child("fieldPath"), r.FieldPath,
				fmt.Sprintf("error converting fieldPath: unsupported pod version: %s", r.APIVersion))}
	}
	name, key, subscripted := cutSubscript(r.FieldPath)
	switch {
	case subscripted && name == "metadata.annotations":
		return qualifiedName(strings.ToLower(key), p)
	case subscripted && name == "metadata.labels":
		return qualifiedName(key, p)
	case subscripted:
		return field.ErrorList{
			field.Invalid(p.Child("fieldPath"), r.FieldPath,
				fmt.Sprintf("error converting fieldPath: field label does not support subscript: %s", r.FieldPath))}
	case !knownDownward.Has(r.FieldPath):
		return field.ErrorList{
			field.Invalid(p.Child("fieldPath"), r.FieldPath,
				fmt.Sprintf("error converting fieldPath: field label not supported: %s", r.FieldPath))}
	case !supported.Has(r.FieldPath):
		return field.ErrorList{field.NotSupported(p.Child("fieldPath"), r.FieldPath, sets.List(supported))}
	}
	return nil
}

var knownDownward = envFields.Union(volumeFields).Union(sets.New("spec.restartPolicy", "spec.schedulerName", "status.phase"))

func cutSubscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok || !strings.HasSuffix(rest, "']") {
		return path, "", false
	}
	return name, strings.TrimSuffix(rest, "']"), true
}

func validateResourceRef(r *corev1.ResourceFieldSelector, p *field.Path, inVolume bool) (errs field.ErrorList) {
	huge := strings.HasPrefix(r.Resource, "requests.hugepages-") || strings.HasPrefix(r.Resource, "limits.hugepages-")
	switch {
	case inVolume && r.ContainerName == "":
		errs = append(errs, field.Required(p.Child("containerName"), ""))
	case r.Resource == "":
		errs = append(errs, field.Required(p.Child("resource"), ""))
	case !containerResources.Has(r.Resource) && !huge:
		errs = append(errs, field.NotSupported(p.Child("resource"), r.Resource, sets.List(containerResources)))
	}
	return append(errs, validateDivisor(r, p.Child("divisor"))...)
}

var byteDivisors = sets.New("1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei")

func validateDivisor(r *corev1.ResourceFieldSelector, p *field.Path) field.ErrorList {
	if r.Divisor.IsZero() {
		return nil
	}
	_, name, _ := strings.Cut(r.Resource, ".")
	what, ok := map[string]string{"memory": "memory", "ephemeral-storage": "local ephemeral storage"}[name]
	if strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
		what, ok = "hugepages", true
	}
	value := r.Divisor.String()
	switch {
	case name == "cpu" && value != "1" && value != "1m":
		return field.ErrorList{field.Invalid(p, r.Resource, "only divisor's values 1m and 1 are supported with the cpu resource")}
	case ok && !byteDivisors.Has(value):
		return field.ErrorList{field.Invalid(p, r.Resource,
			"only divisor's values 1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the "+
				what+" resource")}
	}
	return nil
}
