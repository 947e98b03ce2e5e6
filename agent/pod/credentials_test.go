package pod

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-project/shoal/agent/record"
)

// oneSecret is a namespace with one Secret.
type oneSecret struct{ secret *corev1.Secret }

func (o oneSecret) ConfigMap(context.Context, string, string) (*corev1.ConfigMap, error) {
	return nil, errors.New("there is none")
}

func (o oneSecret) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return o.secret, nil
}

// TestMissingPullSecret: who waits for an image is told of a pull secret that is not there, once a
// pull; the API takes references without a name, which are left out.
func TestMissingPullSecret(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f, e := newFakeCRI(), &edges{records: map[string]*record.Pod{}}
		m, stop := start(t, dir, f, e)
		defer stop()
		p := testPod(corev1.RestartPolicyAlways, "a")
		p.Spec.Containers[0].Image = "far/away:1"
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "reg"}, {}}
		m.Update(p, SourceAPI)
		time.Sleep(time.Second)
		synctest.Wait()
		if n := e.count("FailedToRetrieveImagePullSecret"); n != 1 {
			t.Errorf("told %d times: %v", n, e.events)
		}
		_, missing, err := credentials(t.Context(), e, p, "far/away:1")
		if err != nil || !slices.Equal(missing, []string{"reg"}) {
			t.Errorf("missing: %v, %v", missing, err)
		}
	})
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
		list, _, err := credentials(t.Context(), oneSecret{s}, p, image)
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
