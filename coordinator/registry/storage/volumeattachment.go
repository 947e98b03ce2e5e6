package storage

import (
	"context"
	"math"

	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
	"github.com/shoal-project/shoal/coordinator/registry/volumespec"
)

const (
	maxAttachmentMetadata = 256 << 10 // bytes, of all keys and values together
	maxErrorMessage       = 1024      // bytes
)

func volumeAttachment() kind.Kind {
	spec, status := storagev1.VolumeAttachmentSpec{}.SwaggerDoc(), storagev1.VolumeAttachmentStatus{}.SwaggerDoc()
	attacher := kind.Column("Attacher", "string", spec["attacher"])
	attacher.Format = "name"
	update := func(_ context.Context, a, old *storagev1.VolumeAttachment) field.ErrorList {
		return append(validateAttachment(a), immutable(a.Spec, old.Spec, field.NewPath("spec"))...)
	}
	return kind.Of[storagev1.VolumeAttachment]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "volumeattachments", Singular: "volumeattachment",
			ClusterScoped: true, List: &storagev1.VolumeAttachmentList{},
		},
		Default: func(a *storagev1.VolumeAttachment) {
			if s := a.Spec.Source.InlineVolumeSpec; s != nil {
				volumespec.DefaultInline(s)
			}
		},
		Create: func(_ context.Context, a *storagev1.VolumeAttachment) {
			a.Status = storagev1.VolumeAttachmentStatus{}
		},
		Validate: func(_ context.Context, a *storagev1.VolumeAttachment) field.ErrorList {
			return validateAttachment(a)
		},
		ValidateUpdate: update,
		Status: &kind.StatusOf[storagev1.VolumeAttachment]{
			Copy:        func(to, from *storagev1.VolumeAttachment) { to.Status = from.Status },
			Meta:        metav1.ResetObjectMetaForStatus,
			Validate:    update,
			ResetFields: fieldpath.NewSet(fieldpath.MakePathOrDie("metadata")),
		},
		DenyUnconditionalUpdate: true,
		ReturnDeleted:           true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			attacher,
			kind.Column("PV", "string", storagev1.VolumeAttachmentSource{}.SwaggerDoc()["persistentVolumeName"]),
			kind.Column("Node", "string", spec["nodeName"]),
			kind.Column("Attached", "boolean", status["attached"]),
			kind.AgeColumn(),
		},
		Row: func(a *storagev1.VolumeAttachment) []any {
			return []any{
				a.Name, a.Spec.Attacher, ptr.Deref(a.Spec.Source.PersistentVolumeName, ""), a.Spec.NodeName,
				a.Status.Attached, kind.Age(a.CreationTimestamp),
			}
		},
	}.Kind()
}

func validateAttachment(a *storagev1.VolumeAttachment) field.ErrorList {
	p := field.NewPath("spec")
	errs := podspec.ValidateDriverName(a.Spec.Attacher, p.Child("attacher"))
	errs = append(errs, validateAttachmentSource(&a.Spec.Source, p.Child("source"))...)
	errs = append(errs,
		fieldrule.Invalid(p.Child("nodeName"), a.Spec.NodeName,
			apivalidation.NameIsDNSSubdomain(a.Spec.NodeName, false))...)
	p = field.NewPath("status")
	size := 0
	for k, v := range a.Status.AttachmentMetadata {
		size += len(k) + len(v)
	}
	if size > maxAttachmentMetadata {
		errs = append(errs, field.TooLong(p.Child("attachmentMetadata"), "", maxAttachmentMetadata))
	}
	errs = append(errs, validateVolumeError(a.Status.AttachError, p.Child("attachError"))...)
	errs = append(errs, validateVolumeError(a.Status.DetachError, p.Child("detachError"))...)
	if name := a.Spec.Source.PersistentVolumeName; name != nil {
		errs = append(errs,
			fieldrule.Invalid(field.NewPath("spec.source.persistentVolumeName"), *name,
				apivalidation.NameIsDNSSubdomain(*name, false))...)
	}
	return errs
}

func validateAttachmentSource(s *storagev1.VolumeAttachmentSource, p *field.Path) field.ErrorList {
	const one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"
	switch {
	case s.InlineVolumeSpec == nil && s.PersistentVolumeName == nil:
		return field.ErrorList{field.Required(p, one)}
	case s.InlineVolumeSpec != nil && s.PersistentVolumeName != nil:
		return field.ErrorList{field.Forbidden(p, one)}
	case s.InlineVolumeSpec != nil:
		return volumespec.ValidateInline(s.InlineVolumeSpec, p.Child("inlineVolumeSpec"))
	case *s.PersistentVolumeName == "":
		return field.ErrorList{field.Required(p.Child("persistentVolumeName"), "must specify non empty persistentVolumeName")}
	}
	return nil
}

func validateVolumeError(e *storagev1.VolumeError, p *field.Path) (errs field.ErrorList) {
	if e == nil {
		return nil
	}
	if len(e.Message) > maxErrorMessage {
		// The limit told is that of the metadata, as upstream's.
		errs = append(errs, field.TooLong(p.Child("message"), "", maxAttachmentMetadata))
	}
	if e.ErrorCode != nil && *e.ErrorCode < 0 {
		errs = append(errs,
			field.Invalid(p.Child("errorCode"), *e.ErrorCode, validation.InclusiveRangeError(0, math.MaxInt32)))
	}
	return errs
}
