package systemobjects_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/coordinator/controller"
	"github.com/shoal-project/shoal/coordinator/controller/controllertest"
	"github.com/shoal-project/shoal/coordinator/controller/systemobjects"
	"github.com/shoal-project/shoal/tests/leak"
)

func TestMain(m *testing.M) { leak.Check(m) }

func TestScenarios(t *testing.T) {
	controllertest.Play(t, func(env controller.Env) (*controller.Loop, error) {
		return systemobjects.New(env, deps(env))
	})
}

// deps make objects that hold nothing, or a key, and write nothing where they are right.
func deps(env controller.Env) systemobjects.Deps {
	core, meta := env.Client.CoreV1(), metav1.ObjectMeta{Name: "kubernetes"}
	slices := env.Client.DiscoveryV1().EndpointSlices("default")
	return systemobjects.Deps{
		Service: func(ctx context.Context) error {
			_, err := core.Services("default").Get(ctx, meta.Name, metav1.GetOptions{})
			return ifMissing(err, func() error {
				o := &corev1.Service{ObjectMeta: meta}
				_, err := core.Services("default").Create(ctx, o, metav1.CreateOptions{})
				return err
			})
		},
		Endpoints: func(ctx context.Context) error {
			_, err := core.Endpoints("default").Get(ctx, meta.Name, metav1.GetOptions{})
			if err := ifMissing(err, func() error {
				o := &corev1.Endpoints{ObjectMeta: meta}
				_, err := core.Endpoints("default").Create(ctx, o, metav1.CreateOptions{})
				return err
			}); err != nil {
				return err
			}
			_, err = slices.Get(ctx, meta.Name, metav1.GetOptions{})
			return ifMissing(err, func() error {
				_, err := slices.Create(ctx, &discoveryv1.EndpointSlice{ObjectMeta: meta}, metav1.CreateOptions{})
				return err
			})
		},
		DriverName: "local",
		Driver: func(ctx context.Context) error {
			_, err := env.Client.StorageV1().CSIDrivers().Get(ctx, "local", metav1.GetOptions{})
			return ifMissing(err, func() error {
				o := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "local"}}
				_, err := env.Client.StorageV1().CSIDrivers().Create(ctx, o, metav1.CreateOptions{})
				return err
			})
		},
		Authentication: configMap(env, "extension-apiserver-authentication"),
		TokenTracking:  configMap(env, "kube-apiserver-legacy-service-account-token-tracking"),
	}
}

// configMap makes one with a key, or gives it the key.
func configMap(env controller.Env, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		maps := env.Client.CoreV1().ConfigMaps("kube-system")
		want := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": "ours"}}
		have, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err == nil && have.Data["key"] == "" {
			_, err = maps.Update(ctx, want, metav1.UpdateOptions{})
		}
		return ifMissing(err, func() error {
			_, err := maps.Create(ctx, want, metav1.CreateOptions{})
			return err
		})
	}
}

func ifMissing(err error, create func() error) error {
	if apierrors.IsNotFound(err) {
		return create()
	}
	return err
}
