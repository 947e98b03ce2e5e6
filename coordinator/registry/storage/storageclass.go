package storage

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

const (
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
	betaDefaultClass = "storageclass.beta.kubernetes.io/is-default-class"
)

func storageClass() kind.Kind {
	doc := storagev1.StorageClass{}.SwaggerDoc()
	return kind.Of[storagev1.StorageClass]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "storageclasses", Singular: "storageclass",
			ShortNames: []string{"sc"}, ClusterScoped: true, List: &storagev1.StorageClassList{},
		},
		Default: func(c *storagev1.StorageClass) {
			if c.ReclaimPolicy == nil {
				c.ReclaimPolicy = ptr.To(corev1.PersistentVolumeReclaimDelete)
			}
			if c.VolumeBindingMode == nil {
				c.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
			}
		},
		Validate: func(_ context.Context, c *storagev1.StorageClass) field.ErrorList { return validateClass(c) },
		ValidateUpdate: func(_ context.Context, c, old *storagev1.StorageClass) field.ErrorList {
			return append(validateClass(c), validateClassUpdate(c, old)...)
		},
		Warnings:      func(_ context.Context, c, _ *storagev1.StorageClass) []string { return classWarnings(c) },
		ReturnDeleted: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Provisioner", "string", doc["provisioner"]),
			kind.Column("ReclaimPolicy", "string", doc["reclaimPolicy"]),
			kind.Column("VolumeBindingMode", "string", doc["volumeBindingMode"]),
			kind.Column("AllowVolumeExpansion", "string", doc["allowVolumeExpansion"]),
			kind.AgeColumn(),
		},
		Row: func(c *storagev1.StorageClass) []any {
			name := c.Name
			if c.Annotations[defaultClass] == "true" || c.Annotations[betaDefaultClass] == "true" {
				name += " (default)"
			}
			return []any{
				name, c.Provisioner, string(ptr.Deref(c.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
				string(ptr.Deref(c.VolumeBindingMode, storagev1.VolumeBindingImmediate)),
				ptr.Deref(c.AllowVolumeExpansion, false), kind.Age(c.CreationTimestamp),
			}
		},
	}.Kind()
}

func validateClass(c *storagev1.StorageClass) field.ErrorList {
	errs := validateProvisioner(c.Provisioner, field.NewPath("provisioner"))
	errs = append(errs, validateParameters(c.Parameters, true, field.NewPath("parameters"))...)
	policies := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete,
		corev1.PersistentVolumeReclaimRetain}
	if r := ptr.Deref(c.ReclaimPolicy, ""); r != "" && !slices.Contains(policies, r) {
		errs = append(errs, field.NotSupported(field.NewPath("reclaimPolicy"), r, policies))
	}
	modes := []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer}
	if c.VolumeBindingMode == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else if !slices.Contains(modes, *c.VolumeBindingMode) {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), *c.VolumeBindingMode, modes))
	}
	return append(errs, validateTopologies(c.AllowedTopologies, field.NewPath("allowedTopologies"))...)
}

func validateClassUpdate(c, old *storagev1.StorageClass) field.ErrorList {
	errs := immutable(c.Parameters, old.Parameters, field.NewPath("parameters"))
	errs = append(errs, immutable(c.Provisioner, old.Provisioner, field.NewPath("provisioner"))...)
	errs = append(errs, immutable(c.ReclaimPolicy, old.ReclaimPolicy, field.NewPath("reclaimPolicy"))...)
	return append(errs, immutable(c.VolumeBindingMode, old.VolumeBindingMode, field.NewPath("volumeBindingMode"))...)
}

// validateProvisioner checks the name of a driver, which need not be CSI.
func validateProvisioner(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return fieldrule.Invalid(p, strings.ToLower(name), validation.IsQualifiedName(strings.ToLower(name)))
}

// validateTopologies refuses a term that says the same as one before, and one
// that says nothing.
func validateTopologies(terms []corev1.TopologySelectorTerm, p *field.Path) (errs field.ErrorList) {
	seen := make([]map[string]sets.Set[string], len(terms)) // upstream tells a term that says nothing so often
	for i := range terms {
		values, bad := validateTopology(&terms[i], p.Index(i).Child("matchLabelExpressions"))
		errs = append(errs, bad...)
		for _, other := range seen {
			if equality.Semantic.DeepEqual(values, other) {
				errs = append(errs, field.Duplicate(p.Index(i).Child("matchLabelExpressions"), ""))
			}
		}
		seen = append(seen, values)
	}
	return errs
}

func validateTopology(t *corev1.TopologySelectorTerm, p *field.Path) (map[string]sets.Set[string], field.ErrorList) {
	byKey, errs := map[string]sets.Set[string]{}, field.ErrorList{}
	for i, e := range t.MatchLabelExpressions {
		at, values := p.Index(i), sets.New[string]()
		if len(e.Values) == 0 {
			errs = append(errs, field.Required(at.Child("values"), ""))
		}
		for j, v := range e.Values {
			if values.Has(v) {
				errs = append(errs, field.Duplicate(at.Child("values").Index(j), v))
			}
			values.Insert(v)
		}
		errs = append(errs, metavalidation.ValidateLabelName(e.Key, at.Child("key"))...)
		if _, again := byKey[e.Key]; again {
			errs = append(errs, field.Duplicate(at.Child("key"), e.Key))
		}
		byKey[e.Key] = values
	}
	return byKey, errs
}

func classWarnings(c *storagev1.StorageClass) (out []string) {
	p := field.NewPath("allowedTopologies")
	for i, t := range c.AllowedTopologies {
		for j, e := range t.MatchLabelExpressions {
			if message, ok := podspec.DeprecatedNodeLabel(e.Key); ok {
				out = append(out,
					fmt.Sprintf("%s: %s", p.Index(i).Child("matchLabelExpressions").Index(j).Child("key"), message))
			}
		}
	}
	return out
}
