package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
)

// evictionSeconds is how long a pod stays on a node that has failed when it
// says nothing itself (NODE-41).
const evictionSeconds = 300

// defaultTolerationSeconds lets pods stay on a failed node for five minutes.
type defaultTolerationSeconds struct{ *admission.Handler }

func newDefaultTolerationSeconds() defaultTolerationSeconds {
	return defaultTolerationSeconds{admission.NewHandler(admission.Create, admission.Update)}
}

// Admit adds the two tolerations to a pod that has none of its own for the taint.
func (defaultTolerationSeconds) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	pod := podOf(a)
	if pod == nil {
		return nil
	}
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if !toleratesNoExecute(pod.Spec.Tolerations, taint) {
			seconds := int64(evictionSeconds)
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &seconds,
			})
		}
	}
	return nil
}

func toleratesNoExecute(tolerations []corev1.Toleration, taint string) bool {
	for _, t := range tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
