package core

import (
	"context"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
)

func configMap() kind.Kind {
	return kind.Of[corev1.ConfigMap]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "configmaps", Singular: "configmap",
			ShortNames: []string{"cm"}, List: &corev1.ConfigMapList{},
		},
		Default: func(c *corev1.ConfigMap) {
			if c.Data == nil {
				c.Data = map[string]string{}
			}
		},
		Validate: func(_ context.Context, c *corev1.ConfigMap) field.ErrorList { return validateConfigMap(c) },
		ValidateUpdate: func(_ context.Context, c, old *corev1.ConfigMap) field.ErrorList {
			var errs field.ErrorList
			if deref(old.Immutable) {
				errs = append(errs, frozen(c.Immutable, "data", c.Data, old.Data)...)
				if !reflect.DeepEqual(c.BinaryData, old.BinaryData) {
					errs = append(errs, field.Forbidden(field.NewPath("binaryData"), whenImmutable))
				}
			}
			return append(errs, validateConfigMap(c)...)
		},
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(), kind.Column("Data", "string", corev1.ConfigMap{}.SwaggerDoc()["data"]), kind.AgeColumn(),
		},
		Row: func(c *corev1.ConfigMap) []any {
			return []any{c.Name, int64(len(c.Data) + len(c.BinaryData)), kind.Age(c.CreationTimestamp)}
		},
	}.Kind()
}

const whenImmutable = "field is immutable when `immutable` is set"

// frozen checks an update of an object that was marked immutable.
func frozen(still *bool, name string, data, old any) (errs field.ErrorList) {
	if !deref(still) {
		errs = append(errs, field.Forbidden(field.NewPath("immutable"), whenImmutable))
	}
	if !reflect.DeepEqual(data, old) {
		errs = append(errs, field.Forbidden(field.NewPath(name), whenImmutable))
	}
	return errs
}

func validateConfigMap(c *corev1.ConfigMap) (errs field.ErrorList) {
	size := 0
	for key, value := range c.Data {
		at := field.NewPath("data").Key(key)
		errs = append(errs, fieldrule.Invalid(at, key, validation.IsConfigMapKey(key))...)
		if _, twice := c.BinaryData[key]; twice {
			errs = append(errs, field.Invalid(at, key, "duplicate of key present in binaryData"))
		}
		size += len(value)
	}
	for key, value := range c.BinaryData {
		errs = append(errs,
			fieldrule.Invalid(field.NewPath("binaryData").Key(key), key, validation.IsConfigMapKey(key))...)
		size += len(value)
	}
	if size > corev1.MaxSecretSize {
		errs = append(errs, field.TooLong(field.NewPath(""), "", corev1.MaxSecretSize))
	}
	return errs
}
