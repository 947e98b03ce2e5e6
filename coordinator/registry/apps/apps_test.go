package apps

import (
	"context"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func validDeployment() *appsv1.Deployment {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx:1"}}},
			},
		},
	}
	defaultDeployment(d)
	return d
}

// TestDeploymentDefaults covers DEPLOY defaults: 1 replica, 25 % surge and
// unavailable, 10 revisions, 600 s.
func TestDeploymentDefaults(t *testing.T) {
	s := validDeployment().Spec
	if *s.Replicas != 1 || *s.RevisionHistoryLimit != 10 || *s.ProgressDeadlineSeconds != 600 {
		t.Errorf("got %d replicas, %d revisions, %d s", *s.Replicas, *s.RevisionHistoryLimit, *s.ProgressDeadlineSeconds)
	}
	if s.Strategy.RollingUpdate.MaxSurge.String() != "25%" || s.Strategy.RollingUpdate.MaxUnavailable.String() != "25%" {
		t.Errorf("got strategy %v", s.Strategy)
	}
}

func TestDeploymentValidation(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*appsv1.Deployment)
		want   string // "" for valid
	}{
		{"valid", func(*appsv1.Deployment) {}, ""},
		{"no-selector", func(d *appsv1.Deployment) { d.Spec.Selector = nil },
			"[spec.selector: Required value, spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: " +
				"`selector` does not match template `labels`]"},
		{"empty-selector", func(d *appsv1.Deployment) { d.Spec.Selector = &metav1.LabelSelector{} },
			"spec.selector: Invalid value: {}: empty selector is invalid for deployment"},
		{"mismatch", func(d *appsv1.Deployment) { d.Spec.Template.Labels = map[string]string{"app": "other"} },
			"spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`"},
		{"negative", func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](-1) },
			"spec.replicas: Invalid value: -1: must be greater than or equal to 0"},
		{"restart-policy", func(d *appsv1.Deployment) { d.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever },
			`spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`},
		{"both-zero", func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(0))
			d.Spec.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromString("0%"))
		}, "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"},
		{"over-100", func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate.MaxUnavailable = ptr.To(intstr.FromString("101%"))
		}, `spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%`},
		{"recreate", func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType },
			"spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"},
		{"deadline", func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 600 },
			"spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := validDeployment()
			c.change(d)
			got := ""
			if err := validateDeployment(d).ToAggregate(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestSelectorIsImmutable(t *testing.T) {
	d, old := validDeployment(), validDeployment()
	d.Spec.Selector.MatchLabels["tier"] = "a"
	d.Spec.Template.Labels["tier"] = "a"
	errs := validateDeploymentUpdate(context.Background(), d, old)
	if len(errs) != 1 || errs[0].Field != "spec.selector" || errs[0].Detail != "field is immutable" {
		t.Errorf("got %v", errs)
	}
}

func TestDaemonSetUpdateStrategy(t *testing.T) {
	for _, c := range []struct {
		name               string
		surge, unavailable intstr.IntOrString
		want               string
	}{
		{"default", intstr.FromInt32(0), intstr.FromInt32(1), ""},
		{"surge", intstr.FromInt32(1), intstr.FromInt32(0), ""},
		{"both", intstr.FromInt32(1), intstr.FromInt32(1), "p.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero"},
		{"neither", intstr.FromInt32(0), intstr.FromInt32(0), "p.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := &appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &c.surge, MaxUnavailable: &c.unavailable}}
			got := ""
			if err := validateUpdateStrategy(u, field.NewPath("p")).ToAggregate(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
