package core

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

func validatePod(p *corev1.Pod) field.ErrorList {
	errs := podspec.ValidateAnnotations(p.Annotations, &p.Spec, field.NewPath("metadata", "annotations"))
	return append(errs, podspec.Validate(&p.Spec, &p.ObjectMeta, field.NewPath("spec"))...)
}

func validatePodCreate(p *corev1.Pod) field.ErrorList {
	errs, at := validatePod(p), field.NewPath("spec")
	if len(p.Spec.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(at.Child("ephemeralContainers"), "cannot be set on create"))
	}
	if p.Spec.NodeName != "" && len(p.Spec.SchedulingGates) > 0 {
		errs = append(errs, field.Forbidden(at.Child("nodeName"), "cannot be set until all schedulingGates have been cleared"))
	}
	return append(errs, podspec.ValidateSeccompAgrees(p.Annotations, &p.Spec, at)...)
}

var updatable = strings.Join([]string{
	"`spec.containers[*].image`",
	"`spec.initContainers[*].image`",
	"`spec.activeDeadlineSeconds`",
	"`spec.tolerations` (only additions to existing tolerations)",
	"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
}, ",")

// validatePodUpdate allows new images, a shorter deadline, more tolerations and
// fewer gates; a gated pod may be narrowed to fewer nodes (KEP-3838).
func validatePodUpdate(p, old *corev1.Pod) field.ErrorList {
	errs, at := validatePod(p), field.NewPath("spec")
	errs = append(errs, validateFixedAnnotations(p, old)...)
	for _, l := range []struct {
		name     string
		now, was []corev1.Container
	}{{"containers", p.Spec.Containers, old.Spec.Containers},
		{"initContainers", p.Spec.InitContainers, old.Spec.InitContainers}} {
		if len(l.now) != len(l.was) {
			return append(errs, field.Forbidden(at.Child(l.name), "pod updates may not add or remove containers"))
		}
		errs = append(errs, podspec.ValidateImages(l.now, at.Child(l.name))...)
	}
	bad, stop := validateDeadline(p.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds, at.Child("activeDeadlineSeconds"))
	errs = append(errs, bad...)
	if stop {
		return errs
	}
	errs = append(errs, onlyMoreTolerations(p.Spec.Tolerations, old.Spec.Tolerations, at.Child("tolerations"))...)
	errs = append(errs, onlyFewerGates(p.Spec.SchedulingGates, old.Spec.SchedulingGates, at.Child("schedulingGates"))...)
	if equality.Semantic.DeepEqual(p.Spec, old.Spec) {
		return errs
	}
	munged := p.Spec.DeepCopy()
	for i := range munged.Containers {
		munged.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range munged.InitContainers {
		munged.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	munged.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	munged.SchedulingGates = old.Spec.SchedulingGates
	munged.Tolerations = old.Spec.Tolerations
	if deref(old.Spec.TerminationGracePeriodSeconds) < 0 && deref(munged.TerminationGracePeriodSeconds) == 1 {
		munged.TerminationGracePeriodSeconds = old.Spec.TerminationGracePeriodSeconds
	}
	if len(old.Spec.SchedulingGates) > 0 {
		errs = append(errs, narrowGated(munged, &old.Spec, at)...)
	}
	if !equality.Semantic.DeepEqual(*munged, old.Spec) {
		errs = append(errs,
			field.Forbidden(at,
				fmt.Sprintf("pod updates may not change fields other than %s\n%v", updatable,
					diff.Diff(old.Spec, *munged))))
	}
	return errs
}

func validateFixedAnnotations(p, old *corev1.Pod) (errs field.ErrorList) {
	at := field.NewPath("metadata", "annotations")
	for _, key := range changedKeys(p.Annotations, old.Annotations) {
		_, had := old.Annotations[key]
		appArmor := strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		mirror := key == corev1.MirrorPodAnnotationKey
		switch {
		case appArmor && had:
			errs = append(errs, field.Forbidden(at.Key(key), "may not remove or update AppArmor annotations"))
		case appArmor:
			errs = append(errs, field.Forbidden(at.Key(key), "may not add AppArmor annotations"))
		case mirror && had:
			errs = append(errs, field.Forbidden(at.Key(key), "may not remove or update mirror pod annotation"))
		case mirror:
			errs = append(errs, field.Forbidden(at.Key(key), "may not add mirror pod annotation"))
		}
	}
	return errs
}

func changedKeys(now, was map[string]string) (keys []string) {
	for key, value := range was {
		if v, ok := now[key]; !ok || v != value {
			keys = append(keys, key)
		}
	}
	for key := range now {
		if _, ok := was[key]; !ok {
			keys = append(keys, key)
		}
	}
	return keys
}

func validateDeadline(now, was *int64, p *field.Path) (errs field.ErrorList, stop bool) {
	switch {
	case now == nil && was != nil:
		return field.ErrorList{field.Invalid(p, now, "must not update from a positive integer to nil value")}, false
	case now == nil:
		return nil, false
	case *now < 0 || *now > math.MaxInt32:
		return field.ErrorList{field.Invalid(p, *now, validation.InclusiveRangeError(0, math.MaxInt32))}, true
	case was != nil && *was < *now:
		return field.ErrorList{field.Invalid(p, *now, "must be less than or equal to previous value")}, true
	}
	return nil, false
}

func onlyMoreTolerations(now, was []corev1.Toleration, p *field.Path) field.ErrorList {
	for _, old := range was {
		found := false
		for _, t := range now {
			old.TolerationSeconds = t.TolerationSeconds
			if equality.Semantic.DeepEqual(old, t) {
				found = true
				break
			}
		}
		if !found {
			return field.ErrorList{field.Forbidden(p, "existing toleration can not be modified except its tolerationSeconds")}
		}
	}
	return podspec.ValidateTolerations(now, p) // twice, as upstream
}

func onlyFewerGates(now, was []corev1.PodSchedulingGate, p *field.Path) (errs field.ErrorList) {
	known := map[string]bool{}
	for _, g := range was {
		known[g.Name] = true
	}
	for i, g := range now {
		again := slices.Contains(now[i+1:], g) // the last of a name is told of
		if !known[g.Name] && !again {
			errs = append(errs,
				field.Forbidden(p.Index(i).Child("name"),
					fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", g.Name)))
		}
	}
	return errs
}

// narrowGated allows additions to nodeSelector and node affinity, and takes
// them out of munged.
func narrowGated(munged, old *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	for key, value := range old.NodeSelector {
		if v, ok := munged.NodeSelector[key]; !ok || v != value {
			errs = append(errs, field.Invalid(p.Child("nodeSelector"), munged.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}
	munged.NodeSelector = old.NodeSelector
	now, was := nodeAffinity(munged), nodeAffinity(old)
	if equality.Semantic.DeepEqual(now, was) {
		return errs
	}
	errs = append(errs,
		onlyAddedTerms(now, was,
			p.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
				"nodeSelectorTerms"))...)
	if munged.Affinity == nil {
		munged.Affinity = &corev1.Affinity{}
	}
	munged.Affinity.NodeAffinity = was
	if old.Affinity == nil && *munged.Affinity == (corev1.Affinity{}) {
		munged.Affinity = nil
	}
	return errs
}

func nodeAffinity(s *corev1.PodSpec) *corev1.NodeAffinity {
	if s.Affinity == nil {
		return nil
	}
	return s.Affinity.NodeAffinity
}

func requiredTerms(a *corev1.NodeAffinity) []corev1.NodeSelectorTerm {
	if a == nil || a.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

func onlyAddedTerms(now, was *corev1.NodeAffinity, p *field.Path) (errs field.ErrorList) {
	old, terms := requiredTerms(was), requiredTerms(now)
	if len(old) == 0 {
		return nil
	}
	if len(old) != len(terms) {
		return field.ErrorList{field.Invalid(p, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")}
	}
	for i := range old {
		if !extends(terms[i].MatchExpressions, old[i].MatchExpressions) ||
			!extends(terms[i].MatchFields, old[i].MatchFields) ||
			(len(old[i].MatchExpressions)+len(old[i].MatchFields) == 0 &&
				len(terms[i].MatchExpressions)+len(terms[i].MatchFields) > 0) {
			errs = append(errs, field.Invalid(p.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

func extends(now, was []corev1.NodeSelectorRequirement) bool {
	return len(now) >= len(was) && equality.Semantic.DeepEqual(now[:len(was)], was)
}
