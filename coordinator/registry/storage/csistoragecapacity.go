package storage

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func csiStorageCapacity() kind.Kind {
	return kind.Of[storagev1.CSIStorageCapacity]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "csistoragecapacities", Singular: "csistoragecapacity",
			List: &storagev1.CSIStorageCapacityList{},
		},
		Validate: func(_ context.Context, c *storagev1.CSIStorageCapacity) field.ErrorList {
			return validateStorageCapacity(c, metavalidation.LabelSelectorValidationOptions{})
		},
		ValidateUpdate: func(_ context.Context, c, old *storagev1.CSIStorageCapacity) field.ErrorList {
			was := metavalidation.ValidateLabelSelector(old.NodeTopology,
				metavalidation.LabelSelectorValidationOptions{}, nil)
			errs := validateStorageCapacity(c,
				metavalidation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: len(was) > 0})
			if !equality.Semantic.DeepEqual(c.NodeTopology, old.NodeTopology) {
				errs = append(errs, field.Invalid(field.NewPath("nodeTopology"), c.NodeTopology, "field is immutable"))
			}
			if c.StorageClassName != old.StorageClassName {
				errs = append(errs, field.Invalid(field.NewPath("storageClassName"), c.StorageClassName, "field is immutable"))
			}
			return errs
		},
		Warnings: func(_ context.Context, c, _ *storagev1.CSIStorageCapacity) []string {
			return topologyWarnings(c.NodeTopology)
		},
		DenyUnconditionalUpdate: true,
	}.Kind()
}

func validateStorageCapacity(c *storagev1.CSIStorageCapacity,
	o metavalidation.LabelSelectorValidationOptions) field.ErrorList {
	errs := metavalidation.ValidateLabelSelector(c.NodeTopology, o, field.NewPath("nodeTopology"))
	errs = append(errs,
		fieldrule.Invalid(field.NewPath("storageClassName"), c.StorageClassName,
			apivalidation.NameIsDNSSubdomain(c.StorageClassName, false))...)
	if c.Capacity != nil && c.Capacity.Sign() < 0 {
		errs = append(errs, field.Invalid(field.NewPath("capacity"), c.Capacity.String(), "must be greater than or equal to 0"))
	}
	return errs
}

func topologyWarnings(s *metav1.LabelSelector) (out []string) {
	if s == nil {
		return nil
	}
	p := field.NewPath("nodeTopology")
	for i, e := range s.MatchExpressions {
		if message, ok := podspec.DeprecatedNodeLabel(e.Key); ok {
			out = append(out,
				fmt.Sprintf("%s: %s is %s", p.Child("matchExpressions").Index(i).Child("key"), e.Key, message))
		}
	}
	for label := range s.MatchLabels {
		if message, ok := podspec.DeprecatedNodeLabel(label); ok {
			out = append(out, fmt.Sprintf("%s: %s", p.Child("matchLabels").Child(label), message))
		}
	}
	return out
}
