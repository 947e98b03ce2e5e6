package apps

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shoal-project/shoal/coordinator/registry/amount"
	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/kind"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
	"github.com/shoal-project/shoal/coordinator/registry/scale"
)

func statefulSet() kind.Kind {
	return kind.Of[appsv1.StatefulSet]{
		Names: kind.Names{
			GroupVersion: groupVersion, Resource: "statefulsets", Singular: "statefulset",
			ShortNames: []string{"sts"}, Categories: []string{"all"}, List: &appsv1.StatefulSetList{},
			NameRule: apivalidation.NameIsDNSLabel,
		},
		Default:        defaultStatefulSet,
		Create:         func(_ context.Context, s *appsv1.StatefulSet) { s.Status = appsv1.StatefulSetStatus{} },
		Validate:       func(_ context.Context, s *appsv1.StatefulSet) field.ErrorList { return validateStatefulSet(s) },
		ValidateUpdate: validateStatefulSetUpdate,
		Warnings:       statefulSetWarnings,
		Spec:           func(s *appsv1.StatefulSet) any { return &s.Spec },
		Status: &kind.StatusOf[appsv1.StatefulSet]{
			Copy:     func(to, from *appsv1.StatefulSet) { to.Status = from.Status },
			Validate: validateStatefulSetStatus,
		},
		Columns: append([]metav1.TableColumnDefinition{
			kind.NameColumn(),
			kind.Column("Ready", "string", "Number of the pod with ready state"),
			kind.AgeColumn(),
		}, templateColumns(appsv1.StatefulSetSpec{}.SwaggerDoc())[:2]...),
		Row: func(s *appsv1.StatefulSet) []any {
			return append([]any{
				s.Name, fmt.Sprintf("%d/%d", s.Status.ReadyReplicas, deref32(s.Spec.Replicas)),
				kind.Age(s.CreationTimestamp),
			}, templateCells(&s.Spec.Template, s.Spec.Selector)[:2]...)
		},
		Subresources: func(env *kind.Env, stores kind.Stores) map[string]rest.Storage {
			return map[string]rest.Storage{"scale": scale.New(stores["apps/statefulsets"], scale.Of[appsv1.StatefulSet]{
				GroupVersion: groupVersion,
				Replicas:     func(s *appsv1.StatefulSet) **int32 { return &s.Spec.Replicas },
				Current:      func(s *appsv1.StatefulSet) int32 { return s.Status.Replicas },
				Selector:     func(s *appsv1.StatefulSet) *metav1.LabelSelector { return s.Spec.Selector },
			})}
		},
	}.Kind()
}

// defaultStatefulSet leaves maxUnavailable unset, as upstream does with its gate
// MaxUnavailableStatefulSet off.
func defaultStatefulSet(s *appsv1.StatefulSet) {
	spec := &s.Spec
	podspec.DefaultTemplate(&spec.Template)
	fieldrule.DefaultEmpty(&spec.PodManagementPolicy, appsv1.OrderedReadyPodManagement)
	u := &spec.UpdateStrategy
	if u.Type == "" {
		u.Type = appsv1.RollingUpdateStatefulSetStrategyType
		fieldrule.Default(&u.RollingUpdate, appsv1.RollingUpdateStatefulSetStrategy{})
	}
	if u.Type == appsv1.RollingUpdateStatefulSetStrategyType && u.RollingUpdate != nil {
		fieldrule.Default(&u.RollingUpdate.Partition, 0)
	}
	fieldrule.Default(&spec.PersistentVolumeClaimRetentionPolicy, appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{})
	fieldrule.DefaultEmpty(&spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	fieldrule.DefaultEmpty(&spec.PersistentVolumeClaimRetentionPolicy.WhenScaled,
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
	fieldrule.Default(&spec.Replicas, 1)
	fieldrule.Default(&spec.RevisionHistoryLimit, 10)
	for i := range spec.VolumeClaimTemplates {
		c := &spec.VolumeClaimTemplates[i]
		c.APIVersion, c.Kind = "v1", "PersistentVolumeClaim"
		podspec.DefaultClaim(&c.Spec)
		fieldrule.DefaultEmpty(&c.Status.Phase, corev1.ClaimPending)
		podspec.RoundResources(c.Status.Capacity)
		podspec.RoundResources(c.Status.AllocatedResources)
	}
}

func validateStatefulSet(s *appsv1.StatefulSet) field.ErrorList {
	p := field.NewPath("spec")
	return validateStatefulSetSpec(&s.Spec, p, statefulSetChecks{fixed: true, template: true})
}

// statefulSetChecks are parts of a StatefulSet that are not checked each time.
type statefulSetChecks struct {
	fixed    bool // claims and the service's name, which cannot change
	template bool
}

func validateStatefulSetSpec(s *appsv1.StatefulSetSpec, p *field.Path, checks statefulSetChecks) field.ErrorList {
	var errs field.ErrorList
	if s.PodManagementPolicy != appsv1.OrderedReadyPodManagement &&
		s.PodManagementPolicy != appsv1.ParallelPodManagement {
		errs = append(errs, field.Invalid(p.Child("podManagementPolicy"), s.PodManagementPolicy,
			fmt.Sprintf("must be '%s' or '%s'", appsv1.OrderedReadyPodManagement, appsv1.ParallelPodManagement)))
	}
	errs = append(errs, validateStatefulSetStrategy(&s.UpdateStrategy, p.Child("updateStrategy"))...)
	errs = append(errs,
		validateRetention(s.PersistentVolumeClaimRetentionPolicy, p.Child("persistentVolumeClaimRetentionPolicy"))...)
	for i := range s.VolumeClaimTemplates {
		if checks.fixed {
			errs = append(errs, podspec.ValidateClaim(&s.VolumeClaimTemplates[i].Spec,
				p.Child("volumeClaimTemplates").Index(i).Child("spec"))...)
		}
	}
	errs = append(errs,
		validateCounts(p, count{"replicas", deref32(s.Replicas)}, count{"minReadySeconds", int64(s.MinReadySeconds)})...)
	if s.Ordinals != nil {
		errs = append(errs, validateCounts(p, count{"ordinals.start", int64(s.Ordinals.Start)})...)
	}
	if name := s.ServiceName; checks.fixed && name != "" {
		errs = append(errs, fieldrule.Invalid(p.Child("serviceName"), name, validation.IsDNS1123Label(name))...)
	}
	return append(errs, workload{
		name: statefulSetName, kind: "StatefulSet", selector: s.Selector, template: templateOfPods(s),
		skipTemplate: !checks.template,
	}.validate(p)...)
}

func validateStatefulSetStrategy(u *appsv1.StatefulSetUpdateStrategy, p *field.Path) field.ErrorList {
	r, rolling := u.RollingUpdate, p.Child("rollingUpdate")
	switch u.Type {
	case appsv1.OnDeleteStatefulSetStrategyType:
		if r != nil {
			return field.ErrorList{
				field.Invalid(rolling, r,
					fmt.Sprintf("only allowed for updateStrategy '%s'", appsv1.RollingUpdateStatefulSetStrategyType))}
		}
		return nil
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if r == nil {
			return nil
		}
		errs := validateCounts(rolling, count{"partition", deref32(r.Partition)})
		if r.MaxUnavailable == nil {
			return errs
		}
		at := rolling.Child("maxUnavailable")
		errs = append(errs, amount.ValidateAtMost100(*r.MaxUnavailable, at)...)
		if amount.IsZero(r.MaxUnavailable) {
			errs = append(errs, field.Invalid(at, *r.MaxUnavailable, "cannot be 0"))
		}
		return errs
	}
	return field.ErrorList{field.Invalid(p, *u,
		fmt.Sprintf("must be '%s' or '%s'", appsv1.RollingUpdateStatefulSetStrategyType,
			appsv1.OnDeleteStatefulSetStrategyType))}
}

func validateRetention(r *appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy, p *field.Path) (errs field.ErrorList) {
	if r == nil {
		return nil
	}
	supported := []appsv1.PersistentVolumeClaimRetentionPolicyType{
		appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
	}
	check := func(name string, policy appsv1.PersistentVolumeClaimRetentionPolicyType) {
		if policy != supported[0] && policy != supported[1] {
			errs = append(errs, field.NotSupported(p.Child(name), policy, supported))
		}
	}
	check("whenDeleted", r.WhenDeleted)
	check("whenScaled", r.WhenScaled)
	return errs
}

// templateOfPods is the template as pods have it: the controller gives names of
// its own, and a volume for each claim template, which mounts may name.
func templateOfPods(s *appsv1.StatefulSetSpec) *corev1.PodTemplateSpec {
	t := s.Template
	t.Spec.Hostname, t.Spec.Subdomain = "", ""
	if len(s.VolumeClaimTemplates) == 0 {
		return &t
	}
	claimed := map[string]bool{}
	t.Spec.Volumes = nil
	for i := range s.VolumeClaimTemplates {
		name := s.VolumeClaimTemplates[i].Name
		if claimed[name] {
			continue
		}
		claimed[name] = true
		t.Spec.Volumes = append(t.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	for _, v := range s.Template.Spec.Volumes {
		if !claimed[v.Name] {
			t.Spec.Volumes = append(t.Spec.Volumes, v)
		}
	}
	return &t
}

// validateStatefulSetUpdate tolerates what may be wrong in an object that is
// stored already.
func validateStatefulSetUpdate(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
	p := field.NewPath("spec")
	wrong := len(validateStatefulSetSpec(&old.Spec, p, statefulSetChecks{template: true})) > 0
	errs := validateStatefulSetSpec(&s.Spec, p, statefulSetChecks{template: !wrong})
	fixed := s.Spec
	fixed.Replicas, fixed.Template, fixed.UpdateStrategy = old.Spec.Replicas, old.Spec.Template, old.Spec.UpdateStrategy
	fixed.MinReadySeconds, fixed.Ordinals = old.Spec.MinReadySeconds, old.Spec.Ordinals
	fixed.RevisionHistoryLimit, fixed.PersistentVolumeClaimRetentionPolicy = old.Spec.RevisionHistoryLimit,
		old.Spec.PersistentVolumeClaimRetentionPolicy
	if !equality.Semantic.DeepEqual(fixed, old.Spec) {
		errs = append(errs,
			field.Forbidden(p, "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "+
				"'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"))
	}
	return errs
}

func validateStatefulSetStatus(_ context.Context, s, old *appsv1.StatefulSet) field.ErrorList {
	p, t := field.NewPath("status"), &s.Status
	errs := validateCounts(p,
		count{"replicas", int64(t.Replicas)}, count{"readyReplicas", int64(t.ReadyReplicas)},
		count{"currentReplicas", int64(t.CurrentReplicas)},
		count{"updatedReplicas", int64(t.UpdatedReplicas)}, count{"availableReplicas", int64(t.AvailableReplicas)},
		count{"observedGeneration", t.ObservedGeneration}, count{"collisionCount", deref32(t.CollisionCount)})
	for _, c := range []count{
		{"readyReplicas", int64(t.ReadyReplicas)}, {"currentReplicas", int64(t.CurrentReplicas)},
		{"updatedReplicas", int64(t.UpdatedReplicas)}, {"availableReplicas", int64(t.AvailableReplicas)},
	} {
		if c.value > int64(t.Replicas) {
			errs = append(errs, field.Invalid(p.Child(c.field), c.value, "cannot be greater than status.replicas"))
		}
	}
	if t.AvailableReplicas > t.ReadyReplicas {
		errs = append(errs, field.Invalid(p.Child("availableReplicas"), t.AvailableReplicas, "cannot be greater than status.readyReplicas"))
	}
	return append(errs,
		validateNotDecremented(p.Child("collisionCount"), t.CollisionCount, old.Status.CollisionCount)...)
}

func statefulSetWarnings(_ context.Context, s, old *appsv1.StatefulSet) (warnings []string) {
	if old == nil || s.Generation != old.Generation {
		warnings = podspec.TemplateWarnings(&s.Spec.Template, field.NewPath("spec", "template"))
	}
	for i := range s.Spec.VolumeClaimTemplates {
		p := field.NewPath("spec", "volumeClaimTemplates").Index(i)
		if old != nil {
			p = p.Child("Spec") // the path is upstream's, as it is for a new set
		}
		warnings = append(warnings, podspec.ClaimWarnings(&s.Spec.VolumeClaimTemplates[i].Spec, p)...)
	}
	if s.Spec.RevisionHistoryLimit != nil && *s.Spec.RevisionHistoryLimit < 0 {
		warnings = append(warnings, "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended")
	}
	return warnings
}
