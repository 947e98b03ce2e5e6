package pod

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// Restarts tells whether a container that ended with this code runs again:
// its own rules, its own policy, then the pod's (KEP-5307).
func Restarts(p *corev1.Pod, c *corev1.Container, code int32) bool {
	if record.Sidecar(c) {
		return true
	}
	switch ruled(c, code) {
	case corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers:
		return true
	}
	policy := string(p.Spec.RestartPolicy)
	if c.RestartPolicy != nil {
		policy = string(*c.RestartPolicy)
	}
	init := false
	for i := range p.Spec.InitContainers {
		init = init || p.Spec.InitContainers[i].Name == c.Name
	}
	switch policy {
	case string(corev1.RestartPolicyNever):
		return false
	case string(corev1.RestartPolicyOnFailure):
		return code != 0
	default:
		return !init || code != 0
	}
}

// ruled is the action of the first of the container's rules that is about an exit
// code, "" for none.
func ruled(c *corev1.Container, code int32) corev1.ContainerRestartRuleAction {
	for _, r := range c.RestartPolicyRules {
		if r.ExitCodes != nil && matches(r.ExitCodes, code) {
			return r.Action
		}
	}
	return ""
}

func matches(r *corev1.ContainerRestartRuleOnExitCodes, code int32) bool {
	in := false
	for _, v := range r.Values {
		in = in || v == code
	}
	return in == (r.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
}
