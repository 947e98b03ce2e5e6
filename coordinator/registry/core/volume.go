package core

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func persistentVolume() kind.Kind {
	spec, status := corev1.PersistentVolumeSpec{}.SwaggerDoc(), corev1.PersistentVolumeStatus{}.SwaggerDoc()
	return kind.Of[corev1.PersistentVolume]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "persistentvolumes", Singular: "persistentvolume",
			ShortNames: []string{"pv"}, ClusterScoped: true, List: &corev1.PersistentVolumeList{},
		},
		Default: defaultVolume,
		Create: func(_ context.Context, v *corev1.PersistentVolume) {
			v.Status = corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
		},
		Validate: func(_ context.Context, v *corev1.PersistentVolume) field.ErrorList { return validateVolume(v) },
		ValidateUpdate: func(_ context.Context, v, old *corev1.PersistentVolume) field.ErrorList {
			errs := validateVolume(v)
			if !equality.Semantic.DeepEqual(v.Spec.PersistentVolumeSource, old.Spec.PersistentVolumeSource) {
				errs = append(errs, field.Forbidden(field.NewPath("spec", "persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
			}
			errs = append(errs, immutable(v.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
			if old.Spec.NodeAffinity != nil {
				errs = append(errs, immutable(v.Spec.NodeAffinity, old.Spec.NodeAffinity, field.NewPath("nodeAffinity"))...)
			}
			return errs
		},
		Status: &kind.StatusOf[corev1.PersistentVolume]{
			Copy: func(to, from *corev1.PersistentVolume) { to.Status = from.Status },
		},
		Fields: func(v *corev1.PersistentVolume) fields.Set { return fields.Set{"name": v.Name} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Capacity", "string", spec["capacity"]),
			kind.Column("Access Modes", "string", spec["accessModes"]),
			kind.Column("Reclaim Policy", "string", spec["persistentVolumeReclaimPolicy"]),
			kind.Column("Status", "string", status["phase"]),
			kind.Column("Claim", "string", spec["claimRef"]),
			kind.Column("StorageClass", "string", "StorageClass of the pv"),
			kind.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pv"),
			kind.Column("Reason", "string", status["reason"]),
			kind.AgeColumn(),
			kind.Wide("VolumeMode", "string", spec["volumeMode"]),
		},
		Row: volumeRow,
	}.Kind()
}

func defaultVolume(v *corev1.PersistentVolume) {
	if v.Status.Phase == "" {
		v.Status.Phase = corev1.VolumePending
	}
	if v.Spec.PersistentVolumeReclaimPolicy == "" {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	if v.Spec.VolumeMode == nil {
		mode := corev1.PersistentVolumeFilesystem
		v.Spec.VolumeMode = &mode
	}
	if h := v.Spec.HostPath; h != nil && h.Type == nil {
		unset := corev1.HostPathUnset
		h.Type = &unset
	}
	if ref := v.Spec.ClaimRef; ref != nil && ref.Kind == "" && ref.APIVersion == "" && ref.UID == "" && ref.Name == "" {
		v.Spec.ClaimRef = nil
	}
	podspec.RoundResources(v.Spec.Capacity)
}

func volumeRow(v *corev1.PersistentVolume) []any {
	claim := ""
	if ref := v.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	phase := string(v.Status.Phase)
	if v.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	class := v.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" {
		class = v.Spec.StorageClassName
	}
	size := v.Spec.Capacity[corev1.ResourceStorage]
	return []any{
		v.Name, size.String(), accessModes(v.Spec.AccessModes), string(v.Spec.PersistentVolumeReclaimPolicy), phase, claim, class,
		orUnset(deref(v.Spec.VolumeAttributesClassName)), v.Status.Reason, kind.Age(v.CreationTimestamp), orUnset(string(deref(v.Spec.VolumeMode))),
	}
}

func orUnset(s string) string {
	if s == "" {
		return "<unset>"
	}
	return s
}

// accessModes prints modes in one order: RWO,ROX,RWX,RWOP.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode corev1.PersistentVolumeAccessMode
		text string
	}{{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"}} {
		if slices.Contains(modes, m.mode) {
			out = append(out, m.text)
		}
	}
	return strings.Join(out, ",")
}

var knownModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}

func validateVolume(v *corev1.PersistentVolume) (errs field.ErrorList) {
	p, s := field.NewPath("spec"), &v.Spec
	if len(s.AccessModes) == 0 {
		errs = append(errs, field.Required(p.Child("accessModes"), ""))
	}
	for _, m := range s.AccessModes {
		if !slices.Contains(knownModes, m) {
			errs = append(errs, field.NotSupported(p.Child("accessModes"), m, knownModes))
		}
	}
	size, ok := s.Capacity[corev1.ResourceStorage]
	switch {
	case len(s.Capacity) == 0:
		errs = append(errs, field.Required(p.Child("capacity"), ""))
	case !ok || len(s.Capacity) > 1:
		errs = append(errs, field.NotSupported(p.Child("capacity"), s.Capacity, []corev1.ResourceName{corev1.ResourceStorage}))
	case size.Sign() <= 0:
		errs = append(errs, field.Invalid(p.Child("capacity").Key("storage"), size.String(), "must be greater than zero"))
	}
	switch s.PersistentVolumeReclaimPolicy {
	case corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain:
	default:
		errs = append(errs, field.NotSupported(p.Child("persistentVolumeReclaimPolicy"), s.PersistentVolumeReclaimPolicy,
			[]corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain}))
	}
	if s.StorageClassName != "" {
		errs = append(errs, subdomain(s.StorageClassName, p.Child("storageClassName"))...)
	}
	if s.NodeAffinity != nil && s.NodeAffinity.Required != nil {
		errs = append(errs, podspec.ValidateNodeSelector(s.NodeAffinity.Required, p.Child("nodeAffinity", "required"))...)
	}
	return append(errs, validateVolumeSource(s, p)...)
}

func validateVolumeSource(s *corev1.PersistentVolumeSpec, p *field.Path) (errs field.ErrorList) {
	switch n := countSources(&s.PersistentVolumeSource); {
	case n == 0:
		return field.ErrorList{field.Required(p, "must specify a volume type")}
	case n > 1:
		errs = append(errs, field.Forbidden(p, "may not specify more than 1 volume type"))
	}
	switch {
	case s.CSI != nil:
		errs = append(errs, podspec.ValidateDriverName(s.CSI.Driver, p.Child("csi", "driver"))...)
		if s.CSI.VolumeHandle == "" {
			errs = append(errs, field.Required(p.Child("csi", "volumeHandle"), ""))
		}
	case s.Local != nil:
		if s.Local.Path == "" {
			errs = append(errs, field.Required(p.Child("local", "path"), ""))
		}
		if s.NodeAffinity == nil {
			errs = append(errs, field.Required(p.Child("nodeAffinity"), "Local volume requires node affinity"))
		}
	case s.HostPath != nil:
		if s.HostPath.Path == "" {
			errs = append(errs, field.Required(p.Child("hostPath", "path"), ""))
		}
		if s.HostPath.Path == "/" && s.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRecycle {
			errs = append(errs, field.Forbidden(p.Child("persistentVolumeReclaimPolicy"), "may not be 'recycle' for a hostPath mount of '/'"))
		}
	case s.NFS != nil:
		for _, f := range []struct{ name, value string }{{"server", s.NFS.Server}, {"path", s.NFS.Path}} {
			if f.value == "" {
				errs = append(errs, field.Required(p.Child("nfs", f.name), ""))
			}
		}
	}
	return errs
}

func persistentVolumeClaim() kind.Kind {
	spec, status := corev1.PersistentVolumeClaimSpec{}.SwaggerDoc(), corev1.PersistentVolumeClaimStatus{}.SwaggerDoc()
	return kind.Of[corev1.PersistentVolumeClaim]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "persistentvolumeclaims", Singular: "persistentvolumeclaim",
			ShortNames: []string{"pvc"}, List: &corev1.PersistentVolumeClaimList{},
		},
		Default: func(c *corev1.PersistentVolumeClaim) {
			if c.Status.Phase == "" {
				c.Status.Phase = corev1.ClaimPending
			}
			podspec.DefaultClaim(&c.Spec)
		},
		Create: func(_ context.Context, c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			matchSources(&c.Spec)
		},
		Validate: func(_ context.Context, c *corev1.PersistentVolumeClaim) field.ErrorList {
			return podspec.ValidateClaim(&c.Spec, field.NewPath("spec"))
		},
		ValidateUpdate: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
			return append(podspec.ValidateClaim(&c.Spec, field.NewPath("spec")), validateClaimUpdate(c, old)...)
		},
		Status: &kind.StatusOf[corev1.PersistentVolumeClaim]{
			Copy: func(to, from *corev1.PersistentVolumeClaim) { to.Status = from.Status },
		},
		Fields: func(c *corev1.PersistentVolumeClaim) fields.Set { return fields.Set{"name": c.Name} },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Status", "string", status["phase"]),
			kind.Column("Volume", "string", spec["volumeName"]),
			kind.Column("Capacity", "string", status["capacity"]),
			kind.Column("Access Modes", "string", status["accessModes"]),
			kind.Column("StorageClass", "string", "StorageClass of the pvc"),
			kind.Column("VolumeAttributesClass", "string", "VolumeAttributesClass of the pvc"),
			kind.AgeColumn(),
			kind.Wide("VolumeMode", "string", spec["volumeMode"]),
		},
		Row: claimRow,
	}.Kind()
}

// matchSources keeps dataSource and dataSourceRef equal where either may say it.
func matchSources(s *corev1.PersistentVolumeClaimSpec) {
	switch {
	case s.DataSource != nil && s.DataSourceRef == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: s.DataSource.APIGroup, Kind: s.DataSource.Kind, Name: s.DataSource.Name}
	case s.DataSource == nil && s.DataSourceRef != nil && deref(s.DataSourceRef.Namespace) == "":
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: s.DataSourceRef.APIGroup, Kind: s.DataSourceRef.Kind, Name: s.DataSourceRef.Name}
	}
}

func claimRow(c *corev1.PersistentVolumeClaim) []any {
	phase, capacity, modes := string(c.Status.Phase), "", ""
	if c.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if c.Spec.VolumeName != "" {
		size := c.Status.Capacity[corev1.ResourceStorage]
		capacity, modes = size.String(), accessModes(c.Status.AccessModes)
	}
	class := c.Annotations[corev1.BetaStorageClassAnnotation]
	if class == "" {
		class = deref(c.Spec.StorageClassName)
	}
	return []any{
		c.Name, phase, c.Spec.VolumeName, capacity, modes, class, orUnset(deref(c.Spec.VolumeAttributesClassName)),
		kind.Age(c.CreationTimestamp), orUnset(string(deref(c.Spec.VolumeMode))),
	}
}

// validateClaimUpdate: a claim's spec is fixed, but for binding, growth and class.
func validateClaimUpdate(c, old *corev1.PersistentVolumeClaim) (errs field.ErrorList) {
	now, was := c.Spec.DeepCopy(), old.Spec.DeepCopy()
	if was.VolumeName == "" {
		now.VolumeName = ""
	}
	if was.StorageClassName == nil {
		now.StorageClassName = nil
	}
	now.VolumeAttributesClassName, was.VolumeAttributesClassName = nil, nil
	size, before := now.Resources.Requests[corev1.ResourceStorage], was.Resources.Requests[corev1.ResourceStorage]
	if old.Status.Phase == corev1.ClaimBound {
		now.Resources.Requests = was.Resources.Requests
	}
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	if status := old.Status.Capacity[corev1.ResourceStorage]; size.Cmp(before) < 0 && size.Cmp(status) <= 0 {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	return errs
}
