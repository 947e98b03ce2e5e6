package admission

import (
	"context"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
)

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// TestNetworkPolicyEnforcement: who makes a policy that nobody enforces is told.
func TestNetworkPolicyEnforcement(t *testing.T) {
	for name, c := range map[string]struct {
		resource, group string
		idle            func() bool
		warns           bool
	}{
		"policy": {"networkpolicies", "networking.k8s.io", func() bool { return true }, true},
		"cluster policy": {"clusternetworkpolicies", "policy.networking.k8s.io",
			func() bool { return true }, true},
		"status": {"clusternetworkpolicies/status", "policy.networking.k8s.io",
			func() bool { return true }, false},
		"enforced": {"networkpolicies", "networking.k8s.io", func() bool { return false }, false},
		"unknown":  {"networkpolicies", "networking.k8s.io", nil, false},
		"other":    {"ingresses", "networking.k8s.io", func() bool { return true }, false},
	} {
		var told warnings
		ctx := warning.WithWarningRecorder(context.Background(), &told)
		r := request{resource: c.resource, group: c.group, namespace: "ns", obj: &networkingv1.NetworkPolicy{},
			operation: admission.Create}
		if err := newIdlePolicies(c.idle).Validate(ctx, r.attributes(), nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if warns := strings.Contains(strings.Join(told, ""), "has no effect"); warns != c.warns {
			t.Errorf("%s: told %q", name, told)
		}
	}
}
