package batch

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
	"github.com/shoal-project/shoal/coordinator/registry/podspec"
)

// Upstream's limits.
const (
	maxIndexedParallelism = 100_000
	maxFailedIndexes      = 100_000
	manyCompletions       = 100_000 // above it, the two below hold for jobs with a limit per index
	maxFailedOfMany       = 10_000
	maxParallelismOfMany  = 10_000
	maxRules              = 20
	maxExitCodes          = 255
	maxManagedBy          = 63
	maxSuccessIndexes     = 64 * 1024
)

func validateJob(j *batchv1.Job, newLabels bool) field.ErrorList {
	errs := validateGeneratedSelector(j, newLabels)
	errs = append(errs, validateSpec(&j.Spec, field.NewPath("spec"))...)
	if n := ptr.Deref(j.Spec.Completions, 0); indexed(&j.Spec) && n > 0 {
		hostname := fmt.Sprintf("%s-%d", j.Name, n-1)
		if msgs := validation.IsDNS1123Label(hostname); len(msgs) > 0 {
			errs = append(errs,
				field.Invalid(field.NewPath("metadata", "name"), j.Name,
					"will not able to create pod with invalid DNS label: "+hostname))
		}
	}
	return errs
}

func indexed(s *batchv1.JobSpec) bool {
	return ptr.Deref(s.CompletionMode, batchv1.NonIndexedCompletion) == batchv1.IndexedCompletion
}

// validateGeneratedSelector checks that labels and selector are those that
// generateSelector makes, unless the user manages them.
func validateGeneratedSelector(j *batchv1.Job, newLabels bool) field.ErrorList {
	if ptr.Deref(j.Spec.ManualSelector, false) || j.Spec.Selector == nil {
		return nil
	}
	keys, expected := []string{legacyUIDLabel, legacyNameLabel}, labels.Set{}
	if newLabels {
		keys = append(keys, batchv1.ControllerUidLabel, batchv1.JobNameLabel)
	}
	var errs field.ErrorList
	p := field.NewPath("spec", "template", "metadata", "labels")
	for i, key := range keys {
		if expected[key] = string(j.UID); i%2 == 1 {
			expected[key] = j.Name
		}
		switch got, ok := j.Spec.Template.Labels[key]; {
		case !ok:
			errs = append(errs, field.Required(p.Key(key), fmt.Sprintf("must be '%s'", expected[key])))
		case got != expected[key]:
			errs = append(errs, field.Invalid(p.Key(key), j.Spec.Template.Labels,
				fmt.Sprintf("must be '%s'", expected[key])))
		}
	}
	if selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector); err == nil &&
		!selector.Matches(expected) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "selector"), j.Spec.Selector, "`selector` not auto-generated"))
	}
	return errs
}

func validateSpec(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	return append(validateSpecParts(s, p), validateSelector(s, p)...)
}

// validateSpecParts checks all of a job but its selector.
func validateSpecParts(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	number := func(v *int32) int64 { return int64(ptr.Deref(v, 0)) }
	for _, n := range []struct {
		name  string
		value int64
	}{
		{"parallelism", number(s.Parallelism)}, {"completions", number(s.Completions)},
		{"activeDeadlineSeconds", ptr.Deref(s.ActiveDeadlineSeconds, 0)}, {"backoffLimit", number(s.BackoffLimit)},
		{"ttlSecondsAfterFinished", number(s.TTLSecondsAfterFinished)},
		{"backoffLimitPerIndex", number(s.BackoffLimitPerIndex)}, {"maxFailedIndexes", number(s.MaxFailedIndexes)},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(n.value, p.Child(n.name))...)
	}
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(p.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	if s.ManagedBy != nil {
		errs = append(errs, validation.IsDomainPrefixedPath(p.Child("managedBy"), *s.ManagedBy)...)
		if len(*s.ManagedBy) > maxManagedBy {
			errs = append(errs, field.TooLong(p.Child("managedBy"), "", maxManagedBy))
		}
	}
	errs = append(errs, validateMode(s, p)...)
	if s.PodFailurePolicy != nil {
		errs = append(errs, validateFailurePolicy(s, p.Child("podFailurePolicy", "rules"))...)
	}
	if s.SuccessPolicy != nil {
		errs = append(errs, validateSuccessPolicy(s, p.Child("successPolicy"))...)
	}
	errs = append(errs, validateReplacement(s, p.Child("podReplacementPolicy"))...)
	errs = append(errs, podspec.ValidateTemplate(&s.Template, p.Child("template"))...)
	return append(errs, validateRestartPolicy(s, p.Child("template", "spec", "restartPolicy"))...)
}

func validateSelector(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Selector == nil {
		errs = append(errs, field.Required(p.Child("selector"), ""))
	}
	// A selector that is missing matches nothing.
	errs = append(errs, metavalidation.ValidateLabelSelector(s.Selector, metavalidation.LabelSelectorValidationOptions{},
		p.Child("selector"))...)
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil &&
		!selector.Matches(labels.Set(s.Template.Labels)) {
		errs = append(errs, field.Invalid(p.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

func validateMode(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch ptr.Deref(s.CompletionMode, batchv1.NonIndexedCompletion) {
	case batchv1.IndexedCompletion:
		return validateIndexed(s, p)
	case batchv1.NonIndexedCompletion:
	default:
		return field.ErrorList{field.NotSupported(p.Child("completionMode"), *s.CompletionMode,
			[]batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion})}
	}
	if s.BackoffLimitPerIndex != nil {
		errs = append(errs, field.Invalid(p.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
	}
	if s.MaxFailedIndexes != nil {
		errs = append(errs, field.Invalid(p.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "requires indexed completion mode"))
	}
	return errs
}

func validateIndexed(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	parallelism, failed := ptr.Deref(s.Parallelism, 0), ptr.Deref(s.MaxFailedIndexes, 0)
	if s.Completions == nil {
		errs = append(errs,
			field.Required(p.Child("completions"), fmt.Sprintf("when completion mode is %s", batchv1.IndexedCompletion)))
	}
	if parallelism > maxIndexedParallelism {
		errs = append(errs, field.Invalid(p.Child("parallelism"), parallelism,
			fmt.Sprintf("must be less than or equal to %d when completion mode is %s", maxIndexedParallelism,
				batchv1.IndexedCompletion)))
	}
	if s.Completions != nil && failed > *s.Completions {
		errs = append(errs, field.Invalid(p.Child("maxFailedIndexes"), failed, "must be less than or equal to completions"))
	}
	if failed > maxFailedIndexes {
		errs = append(errs,
			field.Invalid(p.Child("maxFailedIndexes"), failed,
				fmt.Sprintf("must be less than or equal to %d", maxFailedIndexes)))
	}
	if s.Completions == nil || *s.Completions <= manyCompletions || s.BackoffLimitPerIndex == nil {
		return errs
	}
	const why = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if s.MaxFailedIndexes == nil {
		errs = append(errs,
			field.Required(p.Child("maxFailedIndexes"),
				fmt.Sprintf("must be specified when completions is above %d", manyCompletions)))
	}
	if parallelism > maxParallelismOfMany {
		errs = append(errs,
			field.Invalid(p.Child("parallelism"), parallelism, fmt.Sprintf(why, maxParallelismOfMany, manyCompletions)))
	}
	if failed > maxFailedOfMany {
		errs = append(errs,
			field.Invalid(p.Child("maxFailedIndexes"), failed, fmt.Sprintf(why, maxFailedOfMany, manyCompletions)))
	}
	return errs
}

func validateRestartPolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	switch policy := s.Template.Spec.RestartPolicy; {
	case policy == corev1.RestartPolicyAlways || policy == "":
		return field.ErrorList{
			field.Required(p,
				fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))}
	case policy != corev1.RestartPolicyOnFailure && policy != corev1.RestartPolicyNever:
		return field.ErrorList{
			field.NotSupported(p, policy,
				[]corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever})}
	case s.PodFailurePolicy != nil && policy != corev1.RestartPolicyNever:
		return field.ErrorList{
			field.Invalid(p, policy,
				fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever))}
	}
	return nil
}

func validateReplacement(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if s.PodReplacementPolicy == nil {
		return nil
	}
	supported := []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}
	if s.PodFailurePolicy != nil {
		supported = supported[:1]
	}
	if !slices.Contains(supported, *s.PodReplacementPolicy) {
		return field.ErrorList{field.NotSupported(p, *s.PodReplacementPolicy, supported)}
	}
	return nil
}

func validateFailurePolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	rules := s.PodFailurePolicy.Rules
	if len(rules) > maxRules {
		errs = append(errs, field.TooMany(p, len(rules), maxRules))
	}
	for i := range rules {
		errs = append(errs, validateFailureRule(s, &rules[i], p.Index(i))...)
	}
	return errs
}

func validateFailureRule(s *batchv1.JobSpec, r *batchv1.PodFailurePolicyRule, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := []batchv1.PodFailurePolicyAction{
		batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailIndex,
		batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore,
	}
	switch action := p.Child("action"); {
	case r.Action == "":
		errs = append(errs, field.Required(action, fmt.Sprintf("valid values: %q", supported)))
	case r.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil:
		errs = append(errs, field.Invalid(action, r.Action, "requires the backoffLimitPerIndex to be set"))
	case !slices.Contains(supported, r.Action):
		errs = append(errs, field.NotSupported(action, r.Action, supported))
	}
	codes, conditions := r.OnExitCodes != nil, len(r.OnPodConditions) > 0
	if codes {
		errs = append(errs, validateExitCodes(s, r.OnExitCodes, p.Child("onExitCodes"))...)
	}
	if conditions {
		errs = append(errs, validateConditions(r.OnPodConditions, p.Child("onPodConditions"))...)
	}
	switch {
	case codes && conditions:
		errs = append(errs, field.Invalid(p, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported"))
	case !codes && !conditions:
		errs = append(errs, field.Invalid(p, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required"))
	}
	return errs
}

func validateConditions(patterns []batchv1.PodFailurePolicyOnPodConditionsPattern, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(patterns) > maxRules {
		errs = append(errs, field.TooMany(p, len(patterns), maxRules))
	}
	supported := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
	for i, c := range patterns {
		errs = append(errs,
			fieldrule.Invalid(p.Index(i).Child("type"), string(c.Type), validation.IsQualifiedName(string(c.Type)))...)
		if !slices.Contains(supported, c.Status) {
			errs = append(errs, field.NotSupported(p.Index(i).Child("status"), c.Status, supported))
		}
	}
	return errs
}

func validateExitCodes(s *batchv1.JobSpec, r *batchv1.PodFailurePolicyOnExitCodesRequirement,
	p *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := []batchv1.PodFailurePolicyOnExitCodesOperator{batchv1.PodFailurePolicyOnExitCodesOpIn,
		batchv1.PodFailurePolicyOnExitCodesOpNotIn}
	if r.Operator == "" {
		errs = append(errs, field.Required(p.Child("operator"), fmt.Sprintf("valid values: %q", supported)))
	} else if !slices.Contains(supported, r.Operator) {
		errs = append(errs, field.NotSupported(p.Child("operator"), r.Operator, supported))
	}
	if r.ContainerName != nil && !hasContainer(&s.Template.Spec, *r.ContainerName) {
		errs = append(errs, field.Invalid(p.Child("containerName"), *r.ContainerName, "must be one of the container or initContainer names in the pod template"))
	}
	values := p.Child("values")
	switch n := len(r.Values); {
	case n == 0:
		errs = append(errs, field.Invalid(values, r.Values, "at least one value is required"))
	case n > maxExitCodes:
		errs = append(errs, field.TooMany(values, n, maxExitCodes))
	}
	for i, v := range r.Values {
		if v == 0 && r.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			errs = append(errs, field.Invalid(values.Index(i), v, "must not be 0 for the In operator"))
		}
		if slices.Contains(r.Values[:i], v) {
			errs = append(errs, field.Duplicate(values.Index(i), v))
		}
	}
	if !slices.IsSorted(r.Values) {
		errs = append(errs, field.Invalid(values, r.Values, "must be ordered"))
	}
	return errs
}

func hasContainer(s *corev1.PodSpec, name string) bool {
	named := func(c corev1.Container) bool { return c.Name == name }
	return slices.ContainsFunc(s.Containers, named) || slices.ContainsFunc(s.InitContainers, named)
}

func validateSuccessPolicy(s *batchv1.JobSpec, p *field.Path) field.ErrorList {
	if !indexed(s) {
		return field.ErrorList{field.Invalid(p, *s.SuccessPolicy, "requires indexed completion mode")}
	}
	var errs field.ErrorList
	rules, p := s.SuccessPolicy.Rules, p.Child("rules")
	switch {
	case len(rules) == 0:
		errs = append(errs, field.Required(p, "at least one rules must be specified when the successPolicy is specified"))
	case len(rules) > maxRules:
		errs = append(errs, field.TooMany(p, len(rules), maxRules))
	}
	for i := range rules {
		errs = append(errs, validateSuccessRule(&rules[i], ptr.Deref(s.Completions, 0), p.Index(i))...)
	}
	return errs
}

func validateSuccessRule(r *batchv1.SuccessPolicyRule, completions int32, p *field.Path) field.ErrorList {
	if r.SucceededCount == nil && r.SucceededIndexes == nil {
		return field.ErrorList{field.Required(p, "at least one of succeededCount or succeededIndexes must be specified")}
	}
	var errs field.ErrorList
	total := completions
	if r.SucceededIndexes != nil {
		if len(*r.SucceededIndexes) > maxSuccessIndexes {
			errs = append(errs, field.TooLong(p.Child("succeededIndexes"), "", maxSuccessIndexes))
		}
		n, err := countIndexes(*r.SucceededIndexes, completions)
		if err != nil {
			errs = append(errs,
				field.Invalid(p.Child("succeededIndexes"), *r.SucceededIndexes,
					"error parsing succeededIndexes: "+err.Error()))
		}
		total = n
	}
	if r.SucceededCount == nil {
		return errs
	}
	n, p := *r.SucceededCount, p.Child("succeededCount")
	errs = append(errs, apivalidation.ValidateNonnegativeField(int64(n), p)...)
	if n > completions {
		errs = append(errs,
			field.Invalid(p, n,
				fmt.Sprintf("must be less than or equal to %d (the number of specified completions)", completions)))
	}
	if r.SucceededIndexes != nil && n > total {
		errs = append(errs,
			field.Invalid(p, n,
				fmt.Sprintf(
					"must be less than or equal to %d (the number of indexes in the specified succeededIndexes field)",
					total)))
	}
	return errs
}

// countIndexes counts the indexes of "1,3-5"; they rise and stay below completions.
func countIndexes(text string, completions int32) (total int32, err error) {
	intervals, err := parseIndexes(text, completions)
	for _, i := range intervals {
		total += int32(i.last - i.first + 1)
	}
	return total, err
}

func validateJobUpdate(_ context.Context, j, old *batchv1.Job) field.ErrorList {
	_, hadName := old.Spec.Template.Labels[batchv1.JobNameLabel]
	_, hadUID := old.Spec.Template.Labels[batchv1.ControllerUidLabel]
	errs := validateJob(j, hadName && hadUID)
	p, s, o := field.NewPath("spec"), &j.Spec, &old.Spec
	immutable := func(name string, now, before any) {
		errs = append(errs, apivalidation.ValidateImmutableField(now, before, p.Child(name))...)
	}
	errs = append(errs, validateSpec(s, p)...) // twice, as upstream
	if !indexed(s) {
		immutable("completions", s.Completions, o.Completions)
	} else if c := s.Completions; c != nil && !ptr.Equal(c, o.Completions) && !ptr.Equal(c, s.Parallelism) {
		// An elastic indexed job (KEP-3715) has as many completions as pods at a time.
		errs = append(errs, field.Invalid(p.Child("completions"), s.Completions,
			"can only be modified in tandem with spec.parallelism"))
	}
	immutable("selector", s.Selector, o.Selector)
	errs = append(errs, validateTemplateUpdate(j, old, p)...)
	immutable("completionMode", s.CompletionMode, o.CompletionMode)
	immutable("podFailurePolicy", s.PodFailurePolicy, o.PodFailurePolicy)
	immutable("backoffLimitPerIndex", s.BackoffLimitPerIndex, o.BackoffLimitPerIndex)
	immutable("managedBy", s.ManagedBy, o.ManagedBy)
	immutable("successPolicy", s.SuccessPolicy, o.SuccessPolicy)
	return errs
}

// validateTemplateUpdate lets scheduling directives and container resources of a
// job's template change while the job is suspended and has no active pod
// (KEP-2926), and the template's metadata with them.
func validateTemplateUpdate(j, old *batchv1.Job, p *field.Path) field.ErrorList {
	idle := old.Status.Active == 0 && (old.Status.StartTime == nil || isTrue(old, batchv1.JobSuspended))
	if !ptr.Deref(old.Spec.Suspend, false) || !idle {
		return apivalidation.ValidateImmutableField(j.Spec.Template, old.Spec.Template, p.Child("template"))
	}
	return apivalidation.ValidateImmutableField(j.Spec.Template.Spec, *mutableTemplate(j, old),
		p.Child("template", "spec"))
}

// mutableTemplate returns the old template's pod with those fields taken from the
// new one that may change.
func mutableTemplate(j, old *batchv1.Job) *corev1.PodSpec {
	t, n := old.Spec.Template.Spec.DeepCopy(), &j.Spec.Template.Spec
	t.NodeSelector, t.Tolerations, t.SchedulingGates = n.NodeSelector, n.Tolerations, n.SchedulingGates
	switch {
	case n.Affinity != nil && t.Affinity != nil:
		t.Affinity.NodeAffinity = n.Affinity.NodeAffinity
	case n.Affinity != nil:
		t.Affinity = &corev1.Affinity{NodeAffinity: n.Affinity.NodeAffinity}
	case t.Affinity != nil:
		if t.Affinity.NodeAffinity = nil; *t.Affinity == (corev1.Affinity{}) {
			t.Affinity = nil
		}
	}
	takeResources(t.Containers, n.Containers)
	takeResources(t.InitContainers, n.InitContainers)
	return t
}

func takeResources(to, from []corev1.Container) {
	if len(to) != len(from) {
		return
	}
	for i := range to {
		if to[i].Name == from[i].Name {
			to[i].Resources = from[i].Resources
		}
	}
}
