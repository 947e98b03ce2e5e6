package pod

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// oneSecret is a namespace with one Secret.
type oneSecret struct{ secret *corev1.Secret }

func (o oneSecret) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return nil, errors.New("there is none")
}

func (o oneSecret) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return o.secret, nil
}

// FuzzPullSecret: a pull secret gives its logins to images of the registry that it
// names, whatever its author wrote.
func FuzzPullSecret(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://reg.example.com/v2/":{"auth":"YTpi"},"*.example.com":{"username":"a"}}}`), true, "reg.example.com/a/b:1")
	f.Add([]byte(`{"docker.io":{"auth":"YTpi"},"[":{},"":{"username":"a"}}`), false, "busybox")
	f.Add([]byte(`{"auths":{"\\":null,"*":{},"localhost:5000/a":{"identitytoken":"x"}}}`), true, "localhost:5000/a/b@sha256:00")
	f.Fuzz(func(t *testing.T, data []byte, config bool, image string) {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Type: corev1.SecretTypeDockercfg,
			Data: map[string][]byte{corev1.DockerConfigKey: data}}
		if config {
			s.Type, s.Data = corev1.SecretTypeDockerConfigJson, map[string][]byte{corev1.DockerConfigJsonKey: data}
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"},
			Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "s"}}}}
		list, err := credentials(t.Context(), oneSecret{s}, p, image)
		for _, c := range list {
			key := strings.TrimPrefix(strings.TrimPrefix(c.auth.ServerAddress, "https://"), "http://")
			host, _, _ := strings.Cut(key, "/")
			if err != nil || c.secret.Name != "s" ||
				strings.Count(host, ".") > strings.Count("registry-1.docker.io/"+image, ".") {
				t.Errorf("%q for %q gave %+v, %v", data, image, c.auth, err)
			}
		}
	})
}
