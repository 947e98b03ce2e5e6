package tokensecret_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/tokensecret"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) {
		return tokensecret.New(env, tokensecret.Deps{
			RootCA: []byte("PEM"),
			Token: func(sa *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
				return "token of " + sa.Name + " in " + s.Name, nil
			},
		})
	})
}
