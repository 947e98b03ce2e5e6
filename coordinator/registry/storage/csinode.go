package storage

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// maxNodeID is the longest name of a node that the CSI specification allows, in bytes.
const maxNodeID = 256

func csiNode() kind.Kind {
	return kind.Of[storagev1.CSINode]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "csinodes", Singular: "csinode",
			ClusterScoped: true, List: &storagev1.CSINodeList{},
		},
		Validate: func(_ context.Context, n *storagev1.CSINode) field.ErrorList { return validateNode(n) },
		ValidateUpdate: func(_ context.Context, n, old *storagev1.CSINode) field.ErrorList {
			return append(validateNode(n), validateNodeUpdate(n, old)...)
		},
		DenyUnconditionalUpdate: true,
		ReturnDeleted:           true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Drivers", "integer", "Drivers indicates the number of CSI drivers registered on the node"),
			kind.AgeColumn(),
		},
		Row: func(n *storagev1.CSINode) []any {
			return []any{n.Name, int64(len(n.Spec.Drivers)), kind.Age(n.CreationTimestamp)}
		},
	}.Kind()
}

func validateNode(n *storagev1.CSINode) (errs field.ErrorList) {
	names := sets.New[string]()
	for i := range n.Spec.Drivers {
		d, p := &n.Spec.Drivers[i], field.NewPath("spec", "drivers").Index(i)
		errs = append(errs, podspec.ValidateDriverName(d.Name, p.Child("name"))...)
		if d.NodeID == "" {
			errs = append(errs, field.Required(p.Child("nodeID"), ""))
		} else if len(d.NodeID) > maxNodeID {
			errs = append(errs,
				field.Invalid(p.Child("nodeID"), d.NodeID, fmt.Sprintf("must be %d characters or less", maxNodeID)))
		}
		if a := d.Allocatable; a != nil && a.Count != nil && *a.Count < 0 {
			errs = append(errs, field.Invalid(p.Child("allocatable", "count"), int64(*a.Count), "must be greater than or equal to 0"))
		}
		if names.Has(d.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), d.Name))
		}
		names.Insert(d.Name)
		errs = append(errs, validateTopologyKeys(d.TopologyKeys, p)...)
	}
	return errs
}

func validateTopologyKeys(keys []string, p *field.Path) (errs field.ErrorList) {
	seen := sets.New[string]()
	for _, k := range keys {
		if k == "" {
			errs = append(errs, field.Required(p, ""))
		}
		if seen.Has(k) {
			errs = append(errs, field.Duplicate(p, k))
		}
		seen.Insert(k)
		errs = append(errs, fieldrule.Invalid(p, k, validation.IsQualifiedName(k))...)
	}
	return errs
}

// validateNodeUpdate: a driver that stays keeps all but its count of volumes.
func validateNodeUpdate(n, old *storagev1.CSINode) (errs field.ErrorList) {
	for i := range old.Spec.Drivers {
		for j := range n.Spec.Drivers {
			was, is := old.Spec.Drivers[i], n.Spec.Drivers[j]
			if was.Name == is.Name {
				was.Allocatable, is.Allocatable = nil, nil
				errs = append(errs, immutable(is, was, field.NewPath("spec", "drivers"))...)
			}
		}
	}
	return errs
}
