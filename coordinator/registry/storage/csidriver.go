package storage

import (
	"context"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

const tokensInAttributes = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes"

func csiDriver() kind.Kind {
	doc := storagev1.CSIDriverSpec{}.SwaggerDoc()
	return kind.Of[storagev1.CSIDriver]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "csidrivers", Singular: "csidriver",
			ClusterScoped: true, List: &storagev1.CSIDriverList{},
		},
		Default: func(d *storagev1.CSIDriver) { defaultDriver(&d.Spec) },
		// Not set at creation: a driver that never changed has no generation.
		Update: func(_ context.Context, d, old *storagev1.CSIDriver) {
			if !equality.Semantic.DeepEqual(d.Spec, old.Spec) {
				d.Generation = old.Generation + 1
			}
		},
		Validate: func(_ context.Context, d *storagev1.CSIDriver) field.ErrorList {
			return validateDriver(&d.Spec, field.NewPath("spec"))
		},
		ValidateUpdate: func(_ context.Context, d, old *storagev1.CSIDriver) field.ErrorList {
			p := field.NewPath("spec")
			errs := validateDriver(&d.Spec, p)
			errs = append(errs,
				immutable(d.Spec.AttachRequired, old.Spec.AttachRequired, p.Child("attachedRequired"))...)
			return append(errs,
				immutable(d.Spec.VolumeLifecycleModes, old.Spec.VolumeLifecycleModes,
					p.Child("volumeLifecycleModes"))...)
		},
		Warnings: func(_ context.Context, d, old *storagev1.CSIDriver) []string {
			same := old != nil && equality.Semantic.DeepEqual(d.Spec.TokenRequests, old.Spec.TokenRequests)
			if len(d.Spec.TokenRequests) == 0 || d.Spec.ServiceAccountTokenInSecrets != nil || same {
				return nil
			}
			return []string{tokensInAttributes}
		},
		DenyUnconditionalUpdate: true,
		ReturnDeleted:           true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("AttachRequired", "boolean", doc["attachRequired"]),
			kind.Column("PodInfoOnMount", "boolean", doc["podInfoOnMount"]),
			kind.Column("StorageCapacity", "boolean", doc["storageCapacity"]),
			kind.Column("TokenRequests", "string", doc["tokenRequests"]),
			kind.Column("RequiresRepublish", "boolean", doc["requiresRepublish"]),
			kind.Column("Modes", "string", doc["volumeLifecycleModes"]),
			kind.AgeColumn(),
		},
		Row: driverRow,
	}.Kind()
}

func defaultDriver(s *storagev1.CSIDriverSpec) {
	fieldrule.Default(&s.AttachRequired, true)
	fieldrule.Default(&s.PodInfoOnMount, false)
	fieldrule.Default(&s.StorageCapacity, false)
	fieldrule.Default(&s.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	if len(s.VolumeLifecycleModes) == 0 {
		s.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	fieldrule.Default(&s.RequiresRepublish, false)
	fieldrule.Default(&s.SELinuxMount, false)
}

func driverRow(d *storagev1.CSIDriver) []any {
	tokens := "<unset>"
	if d.Spec.TokenRequests != nil {
		var audiences []string
		for _, t := range d.Spec.TokenRequests {
			audiences = append(audiences, t.Audience)
		}
		tokens = strings.Join(audiences, ",")
	}
	var modes []string
	for _, m := range d.Spec.VolumeLifecycleModes {
		modes = append(modes, string(m))
	}
	shown := strings.Join(modes, ",")
	if shown == "" {
		shown = "<none>"
	}
	return []any{
		d.Name, ptr.Deref(d.Spec.AttachRequired, true), ptr.Deref(d.Spec.PodInfoOnMount, false),
		ptr.Deref(d.Spec.StorageCapacity, false),
		tokens, ptr.Deref(d.Spec.RequiresRepublish, false), shown, kind.Age(d.CreationTimestamp),
	}
}

func validateDriver(s *storagev1.CSIDriverSpec, p *field.Path) (errs field.ErrorList) {
	for _, f := range []struct {
		name  string
		value *bool
	}{
		{"attachedRequired", s.AttachRequired}, {"podInfoOnMount", s.PodInfoOnMount},
		{"storageCapacity", s.StorageCapacity},
	} {
		if f.value == nil {
			errs = append(errs, field.Required(p.Child(f.name), ""))
		}
	}
	groups := []storagev1.FSGroupPolicy{storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy,
		storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy}
	if g := s.FSGroupPolicy; g != nil && !slices.Contains(groups, *g) {
		errs = append(errs, field.NotSupported(p.Child("fsGroupPolicy"), *g, groups))
	}
	errs = append(errs, validateTokens(s.TokenRequests, p.Child("tokenRequests"))...)
	modes := []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}
	for _, m := range s.VolumeLifecycleModes {
		if !slices.Contains(modes, m) {
			errs = append(errs, field.NotSupported(p.Child("volumeLifecycleModes"), m, modes))
		}
	}
	if s.SELinuxMount == nil {
		errs = append(errs, field.Required(p.Child("seLinuxMount"), ""))
	}
	if period := s.NodeAllocatableUpdatePeriodSeconds; period != nil && *period < 10 {
		errs = append(errs, field.Invalid(p.Child("nodeAllocatableUpdatePeriodSeconds"), *period, "must be greater than or equal to 10 seconds"))
	}
	if s.ServiceAccountTokenInSecrets != nil && len(s.TokenRequests) == 0 {
		errs = append(errs, field.Invalid(p.Child("serviceAccountTokenInSecrets"), *s.ServiceAccountTokenInSecrets,
			"serviceAccountTokenInSecrets is set but no tokenRequests are specified"))
	}
	return errs
}

// validateTokens wants each audience once; one may be left empty.
func validateTokens(tokens []storagev1.TokenRequest, p *field.Path) (errs field.ErrorList) {
	audiences := sets.New[string]()
	for i, t := range tokens {
		at, seconds := p.Index(i), ptr.Deref(t.ExpirationSeconds, 600)
		switch {
		case audiences.Has(t.Audience):
			errs = append(errs, field.Duplicate(at.Child("audience"), t.Audience))
		case seconds < 600:
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), seconds, "may not specify a duration less than 10 minutes"))
		case seconds > 1<<32:
			errs = append(errs, field.Invalid(at.Child("expirationSeconds"), seconds, "may not specify a duration larger than 2^32 seconds"))
		}
		audiences.Insert(t.Audience)
	}
	return errs
}
