package policystatus_test

import (
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/policystatus"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

// typos finds fault with expressions that name what does not exist; the real
// checker is tried with the real API.
type typos struct{}

func (typos) Check(p *admissionregistrationv1.ValidatingAdmissionPolicy) (
	out []admissionregistrationv1.ExpressionWarning,
) {
	for i, v := range p.Spec.Validations {
		if strings.Contains(v.Expression, "replicaz") {
			out = append(out, admissionregistrationv1.ExpressionWarning{
				FieldRef: fmt.Sprintf("spec.validations[%d].expression", i), Warning: "undefined field 'replicaz'",
			})
		}
	}
	return out
}

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) { return policystatus.New(env, typos{}) })
}
