package apps

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func validStatefulSet() *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.StatefulSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "web", Image: "nginx:1", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				}}},
			},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{
				ObjectMeta: metav1.ObjectMeta{Name: "data"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				},
			}},
		},
	}
	defaultStatefulSet(s)
	return s
}

func TestStatefulSetDefaults(t *testing.T) { // STS-1, STS-24, STS-26, STS-34
	s := validStatefulSet().Spec
	if *s.Replicas != 1 || *s.RevisionHistoryLimit != 10 || s.PodManagementPolicy != appsv1.OrderedReadyPodManagement ||
		s.UpdateStrategy.Type != appsv1.RollingUpdateStatefulSetStrategyType ||
		*s.UpdateStrategy.RollingUpdate.Partition != 0 ||
		s.PersistentVolumeClaimRetentionPolicy.WhenScaled != appsv1.RetainPersistentVolumeClaimRetentionPolicyType ||
		s.PersistentVolumeClaimRetentionPolicy.WhenDeleted != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		t.Errorf("got %+v", s)
	}
	if c := s.VolumeClaimTemplates[0]; c.Kind != "PersistentVolumeClaim" || c.Status.Phase != corev1.ClaimPending ||
		*c.Spec.VolumeMode != corev1.PersistentVolumeFilesystem {
		t.Errorf("claim template %+v", c)
	}
}

func TestStatefulSetValidation(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*appsv1.StatefulSetSpec)
		want   string // "" for valid
	}{
		{"valid", func(*appsv1.StatefulSetSpec) {}, ""},
		{"STS-3", func(s *appsv1.StatefulSetSpec) { s.Template.Labels = map[string]string{"app": "x"} },
			"spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`"},
		{"empty-selector", func(s *appsv1.StatefulSetSpec) { s.Selector = &metav1.LabelSelector{} },
			"spec.selector: Invalid value: {}: empty selector is invalid for statefulset"},
		{"management", func(s *appsv1.StatefulSetSpec) { s.PodManagementPolicy = "x" },
			`spec.podManagementPolicy: Invalid value: "x": must be 'OrderedReady' or 'Parallel'`},
		{"partition", func(s *appsv1.StatefulSetSpec) { s.UpdateStrategy.RollingUpdate.Partition = ptr.To[int32](-1) },
			"spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0"},
		{"STS-31", func(s *appsv1.StatefulSetSpec) {
			s.UpdateStrategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromInt32(0))
		}, "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0"},
		{"retention", func(s *appsv1.StatefulSetSpec) { s.PersistentVolumeClaimRetentionPolicy.WhenScaled = "x" },
			`spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value: "x": supported values: "Retain", "Delete"`},
		{"ordinals", func(s *appsv1.StatefulSetSpec) { s.Ordinals = &appsv1.StatefulSetOrdinals{Start: -1} },
			"spec.ordinals.start: Invalid value: -1: must be greater than or equal to 0"},
		{"restart-policy", func(s *appsv1.StatefulSetSpec) { s.Template.Spec.RestartPolicy = corev1.RestartPolicyNever },
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`},
		{"claim", func(s *appsv1.StatefulSetSpec) { s.VolumeClaimTemplates[0].Spec.AccessModes = nil },
			"spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required"},
		{"mount", func(s *appsv1.StatefulSetSpec) { s.VolumeClaimTemplates = nil },
			`spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"`},
		{"hostname-of-template", func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Hostname = "Not a name" }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := validStatefulSet()
			c.change(&s.Spec)
			got := ""
			if err := validateStatefulSet(s).ToAggregate(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestStatefulSetUpdate(t *testing.T) {
	old := validStatefulSet()
	s := validStatefulSet()
	s.Spec.Replicas, s.Spec.MinReadySeconds, s.Spec.RevisionHistoryLimit = ptr.To[int32](3), 5, ptr.To[int32](-1)
	s.Spec.Template.Spec.Containers[0].Image, s.Spec.Ordinals = "nginx:2", &appsv1.StatefulSetOrdinals{Start: 2}
	if errs := validateStatefulSetUpdate(context.Background(), s, old); len(errs) != 0 {
		t.Errorf("got %v", errs)
	}
	s.Spec.ServiceName = "other"
	if errs := validateStatefulSetUpdate(context.Background(), s, old); len(errs) != 1 || errs[0].Field != "spec" {
		t.Errorf("got %v", errs)
	}
}
