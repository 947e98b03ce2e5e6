package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// ruling is what a Job's podFailurePolicy says about one failed pod (KEP-3329).
type ruling struct {
	action  batchv1.PodFailurePolicyAction // "" when no rule matches
	message string                         // for FailJob
}

// counts tells whether the failure counts towards backoffLimit.
func (r ruling) counts() bool { return r.action != batchv1.PodFailurePolicyActionIgnore }

func judge(policy *batchv1.PodFailurePolicy, p *corev1.Pod) ruling {
	if policy == nil {
		return ruling{}
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		switch {
		case rule.OnExitCodes != nil:
			if c := exitMatch(p, rule.OnExitCodes); c != nil {
				return ruling{rule.Action, fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d",
					c.Name, p.Namespace, p.Name, c.State.Terminated.ExitCode, rule.Action, i)}
			}
		case rule.OnPodConditions != nil:
			if c := conditionMatch(p, rule.OnPodConditions); c != nil {
				return ruling{rule.Action, fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d",
					p.Namespace, p.Name, c.Type, rule.Action, i)}
			}
		}
	}
	return ruling{}
}

func exitMatch(p *corev1.Pod, on *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range list {
			t := list[i].State.Terminated
			if t == nil || t.ExitCode == 0 || on.ContainerName != nil && *on.ContainerName != list[i].Name {
				continue
			}
			in := slices.Contains(on.Values, t.ExitCode)
			if in == (on.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
				return &list[i]
			}
		}
	}
	return nil
}

func conditionMatch(p *corev1.Pod, on []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		c := &p.Status.Conditions[i]
		for _, pattern := range on {
			if c.Type == pattern.Type && c.Status == pattern.Status {
				return c
			}
		}
	}
	return nil
}

// succeededBy tells which rule of a successPolicy is met (KEP-3998).
func succeededBy(policy *batchv1.SuccessPolicy, completions int, done indexes) (message string, met bool) {
	if policy == nil || len(done) == 0 {
		return "", false
	}
	for i, rule := range policy.Rules {
		enough := rule.SucceededCount
		switch {
		case rule.SucceededIndexes != nil:
			needed := parseIndexes(*rule.SucceededIndexes, completions)
			have := needed.common(done)
			met = len(needed) > 0 && (have == needed.total() || enough != nil && have >= int(*enough))
		case enough != nil:
			met = done.total() >= int(*enough)
		}
		if met {
			return fmt.Sprintf("Matched rules at index %d", i), true
		}
	}
	return "", false
}
