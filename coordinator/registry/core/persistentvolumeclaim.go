package core

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	storagehelper "k8s.io/component-helpers/storage/volume"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
	"github.com/shoal-project/shoal/csi/locality"
)

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
			podspec.RoundResources(c.Status.Capacity)
			podspec.RoundResources(c.Status.AllocatedResources)
		},
		Create: func(_ context.Context, c *corev1.PersistentVolumeClaim) {
			c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
			settleSources(&c.Spec, nil)
		},
		Update: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) { settleSources(&c.Spec, &old.Spec) },
		Validate: func(_ context.Context, c *corev1.PersistentVolumeClaim) field.ErrorList {
			return podspec.ValidateClaim(&c.Spec, field.NewPath("spec"))
		},
		ValidateUpdate: func(_ context.Context, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
			return append(podspec.ValidateClaim(&c.Spec, field.NewPath("spec")), validateClaimUpdate(c, old)...)
		},
		Warnings: func(_ context.Context, c, _ *corev1.PersistentVolumeClaim) []string { return claimWarnings(c) },
		Status: &kind.StatusOf[corev1.PersistentVolumeClaim]{
			Copy: func(to, from *corev1.PersistentVolumeClaim) { to.Status = from.Status },
			Validate: func(_ context.Context, c, _ *corev1.PersistentVolumeClaim) field.ErrorList {
				return validateClaimStatus(c)
			},
		},
		Fields: func(c *corev1.PersistentVolumeClaim) fields.Set {
			return fields.Set{locality.SelectedNode: c.Annotations[storagehelper.AnnSelectedNode]}
		},
		Indexed: []string{locality.SelectedNode},
		RefuseField: func(label string) error { // upstream has no field of its own
			_, _, err := runtime.DefaultMetaV1FieldSelectorConversion(label, "")
			return err
		},
		ReturnDeleted: true,
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

// settleSources brings dataSource and dataSourceRef together (KEP-1495): of
// the first only claims and snapshots are kept, and either fills the other.
// old is nil for a new claim.
func settleSources(s, old *corev1.PersistentVolumeClaimSpec) {
	if s.DataSourceRef != nil && deref(s.DataSourceRef.Namespace) != "" && (old == nil || old.DataSourceRef == nil) {
		s.DataSourceRef = nil // of another namespace: CrossNamespaceVolumeDataSource, off in v1.36
	}
	had := old != nil && (old.DataSource != nil || old.DataSourceRef != nil)
	if d := s.DataSource; d != nil && !had && s.DataSourceRef == nil {
		claim := d.Kind == "PersistentVolumeClaim" && deref(d.APIGroup) == ""
		if snapshot := d.Kind == "VolumeSnapshot" && deref(d.APIGroup) == "snapshot.storage.k8s.io"; !claim && !snapshot {
			s.DataSource = nil
		}
	}
	matchSources(s)
}

// matchSources keeps dataSource and dataSourceRef equal where either may say it.
func matchSources(s *corev1.PersistentVolumeClaimSpec) {
	switch {
	case s.DataSource != nil && s.DataSourceRef == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: s.DataSource.APIGroup,
			Kind: s.DataSource.Kind, Name: s.DataSource.Name}
	case s.DataSource == nil && s.DataSourceRef != nil && deref(s.DataSourceRef.Namespace) == "":
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: s.DataSourceRef.APIGroup, Kind: s.DataSourceRef.Kind,
			Name: s.DataSourceRef.Name}
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
	errs = append(errs, settleClass(now, c, old)...)
	size, before := now.Resources.Requests[corev1.ResourceStorage], was.Resources.Requests[corev1.ResourceStorage]
	if old.Status.Phase == corev1.ClaimBound {
		if now.Resources.Requests != nil {
			now.Resources.Requests[corev1.ResourceStorage] = before
		}
		now.VolumeAttributesClassName = was.VolumeAttributesClassName
	}
	matchSources(was)
	p := field.NewPath("spec")
	if !equality.Semantic.DeepEqual(now, was) {
		errs = append(errs, field.Forbidden(p, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	if status := old.Status.Capacity[corev1.ResourceStorage]; size.Cmp(before) < 0 && size.Cmp(status) <= 0 {
		errs = append(errs, field.Forbidden(p.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	errs = append(errs, immutable(c.Spec.VolumeMode, old.Spec.VolumeMode, field.NewPath("volumeMode"))...)
	name := c.Spec.VolumeAttributesClassName
	if old.Status.CurrentVolumeAttributesClassName == nil ||
		equality.Semantic.DeepEqual(name, old.Spec.VolumeAttributesClassName) {
		return errs
	}
	if name == nil {
		errs = append(errs, field.Forbidden(p.Child("volumeAttributesClassName"), "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil"))
	} else if *name == "" {
		errs = append(errs, field.Forbidden(p.Child("volumeAttributesClassName"), "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil"))
	}
	return errs
}

// settleClass lets a claim without a class get one, once; now is the spec that
// is compared with the old one. The old annotation is fixed unless the field
// takes its place.
func settleClass(now *corev1.PersistentVolumeClaimSpec, c, old *corev1.PersistentVolumeClaim) field.ErrorList {
	noted, was := old.Annotations[corev1.BetaStorageClassAnnotation]
	note, is := c.Annotations[corev1.BetaStorageClassAnnotation]
	given := old.Spec.StorageClassName == nil && c.Spec.StorageClassName != nil
	if given && (!was || *c.Spec.StorageClassName == noted) {
		now.StorageClassName = nil
	}
	if given && was && *c.Spec.StorageClassName == noted && (!is || note == noted) {
		return nil
	}
	if note != noted {
		return field.ErrorList{
			field.Invalid(field.NewPath("metadata", "annotations", corev1.BetaStorageClassAnnotation), note, "field is immutable")}
	}
	return nil
}

var resizeStatuses = []corev1.ClaimResourceStatus{
	corev1.PersistentVolumeClaimControllerResizeInfeasible, corev1.PersistentVolumeClaimControllerResizeInProgress,
	corev1.PersistentVolumeClaimNodeResizeInfeasible, corev1.PersistentVolumeClaimNodeResizeInProgress,
	corev1.PersistentVolumeClaimNodeResizePending,
}

func validateClaimStatus(c *corev1.PersistentVolumeClaim) (errs field.ErrorList) {
	p := field.NewPath("status")
	for name, q := range c.Status.Capacity {
		errs = append(errs, validateSize(q, p.Child("capacity").Key(string(name)))...)
	}
	at := p.Child("allocatedResourceStatuses")
	for name, state := range c.Status.AllocatedResourceStatuses {
		errs = append(errs, claimResource(name, at)...)
		if !slices.Contains(resizeStatuses, state) {
			errs = append(errs, field.NotSupported(at, name, resizeStatuses))
		}
	}
	at = p.Child("allocatedResources")
	for name, q := range c.Status.AllocatedResources {
		if bad := claimResource(name, at); len(bad) > 0 {
			errs = append(errs, bad...)
			continue
		}
		if bad := validateSize(q, at.Key(string(name))); len(bad) > 0 {
			errs = append(errs, bad...)
			continue
		}
		errs = append(errs, podspec.ValidateQuantity(corev1.ResourceStorage, q, at.Key(string(name)))...)
	}
	return errs
}

// validateSize refuses what is less than nothing, or beyond an int64.
func validateSize(q resource.Quantity, p *field.Path) field.ErrorList {
	if n := q.Value(); n < 0 {
		return field.ErrorList{field.Invalid(p, n, "must be a valid resource quantity")}
	}
	return nil
}

// claimResource: "storage", or a name with a domain of its own.
func claimResource(name corev1.ResourceName, p *field.Path) field.ErrorList {
	domain, _, qualified := strings.Cut(string(name), "/")
	if errs := fieldrule.Invalid(p, string(name), validation.IsQualifiedName(string(name))); len(errs) > 0 {
		return errs
	}
	switch {
	case name == corev1.ResourceStorage:
		return nil
	case !qualified || strings.Contains(domain, "kubernetes.io"):
		return field.ErrorList{field.NotSupported(p, name, []corev1.ResourceName{corev1.ResourceStorage})}
	}
	return nil
}

func claimWarnings(c *corev1.PersistentVolumeClaim) (out []string) {
	if _, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		out = append(out, fmt.Sprintf(`%s: deprecated since v1.8; use "storageClassName" attribute instead`,
			field.NewPath("metadata", "annotations").Key(corev1.BetaStorageClassAnnotation)))
	}
	return append(out, podspec.ClaimWarnings(&c.Spec, field.NewPath("spec"))...)
}
