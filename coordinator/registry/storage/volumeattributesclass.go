package storage

import (
	"context"
	"maps"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func volumeAttributesClass() kind.Kind {
	return kind.Of[storagev1.VolumeAttributesClass]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "volumeattributesclasses", Singular: "volumeattributesclass",
			ShortNames: []string{"vac"}, ClusterScoped: true, List: &storagev1.VolumeAttributesClassList{},
		},
		Validate: func(_ context.Context, c *storagev1.VolumeAttributesClass) field.ErrorList {
			return validateAttributes(c)
		},
		ValidateUpdate: func(_ context.Context, c, old *storagev1.VolumeAttributesClass) (errs field.ErrorList) {
			if c.DriverName != old.DriverName {
				errs = append(errs, field.Forbidden(field.NewPath("driverName"), "updates to driverName are forbidden."))
			}
			if !maps.Equal(c.Parameters, old.Parameters) {
				errs = append(errs, field.Forbidden(field.NewPath("parameters"), "updates to parameters are forbidden."))
			}
			return append(errs, validateAttributes(c)...)
		},
		ReturnDeleted: true,
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("DriverName", "string", storagev1.VolumeAttributesClass{}.SwaggerDoc()["driverName"]),
			kind.AgeColumn(),
		},
		Row: func(c *storagev1.VolumeAttributesClass) []any {
			return []any{c.Name, c.DriverName, kind.Age(c.CreationTimestamp)}
		},
	}.Kind()
}

func validateAttributes(c *storagev1.VolumeAttributesClass) field.ErrorList {
	return append(validateProvisioner(c.DriverName, field.NewPath("driverName")),
		validateParameters(c.Parameters, false, field.NewPath("parameters"))...)
}
