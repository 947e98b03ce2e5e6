package core

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func podTemplate() kind.Kind {
	validate := func(_ context.Context, t *corev1.PodTemplate) field.ErrorList {
		return podspec.ValidateTemplate(&t.Template, field.NewPath("template"))
	}
	return kind.Of[corev1.PodTemplate]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "podtemplates", Singular: "podtemplate", List: &corev1.PodTemplateList{},
		},
		Default:        func(t *corev1.PodTemplate) { podspec.DefaultTemplate(&t.Template) },
		Validate:       validate,
		ValidateUpdate: onBoth(validate),
		Warnings: func(_ context.Context, t, old *corev1.PodTemplate) []string {
			if old != nil && t.Generation == old.Generation {
				return nil
			}
			return podspec.TemplateWarnings(&t.Template, field.NewPath("template"))
		},
		Spec: func(t *corev1.PodTemplate) any { return &t.Template },
		Columns: []metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Containers", "string", "Names of each container in the template."),
			kind.Column("Images", "string", "Images referenced by each container in the template."),
			kind.Column("Pod Labels", "string", "The labels for the pod template."),
		},
		Row: func(t *corev1.PodTemplate) []any {
			names, images := kind.ContainerCells(t.Template.Spec.Containers)
			return []any{t.Name, names, images, labels.FormatLabels(t.Template.Labels)}
		},
		ReturnDeleted: true,
	}.Kind()
}
