package podspec

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// deprecatedNodeLabels are labels of nodes that have a better name by now.
var deprecatedNodeLabels = map[string]string{
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"app.kubernetes.io/created-by":                  "deprecated since v1.9",
	"scheduler.alpha.kubernetes.io/preferAvoidPods": "deprecated since v1.22; use Taints and Tolerations instead",
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
}

// DeprecatedNodeLabel tells what to use in place of a node's label, in
// upstream's words; ok is false for a label that is well.
func DeprecatedNodeLabel(key string) (message string, ok bool) {
	message, ok = deprecatedNodeLabels[key]
	return message, ok
}

// NodeTermWarnings tells of node labels in a term that have a better name, and with
// values, of those that no label can have.
func NodeTermWarnings(t *corev1.NodeSelectorTerm, values bool, p *field.Path) (out []string) {
	for i, e := range t.MatchExpressions {
		at := p.Child("matchExpressions").Index(i)
		if message, ok := DeprecatedNodeLabel(e.Key); ok {
			out = append(out, fmt.Sprintf("%s: %s is %s", at.Child("key"), e.Key, message))
		}
		if !values {
			continue
		}
		for j, value := range e.Values {
			for _, message := range validation.IsValidLabelValue(value) {
				out = append(out, fmt.Sprintf("%s: %s is invalid, %s", at.Child("values").Index(j), value, message))
			}
		}
	}
	return out
}
