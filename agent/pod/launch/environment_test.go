package launch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestServiceEnv(t *testing.T) {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "my-svc"}}
	s.Spec.ClusterIP = "10.0.0.9"
	s.Spec.Ports = []corev1.ServicePort{{Name: "http-x", Port: 80}}
	got := serviceEnv([]*corev1.Service{s}, "ns", true)
	for k, want := range map[string]string{"MY_SVC_SERVICE_HOST": "10.0.0.9", "MY_SVC_SERVICE_PORT_HTTP_X": "80",
		"MY_SVC_PORT": "tcp://10.0.0.9:80", "MY_SVC_PORT_80_TCP_ADDR": "10.0.0.9"} {
		if got[k] != want {
			t.Errorf("%s=%q, want %q", k, got[k], want)
		}
	}
	if len(serviceEnv([]*corev1.Service{s}, "other", true))+len(serviceEnv([]*corev1.Service{s}, "ns", false)) != 0 {
		t.Error("services of others show")
	}
}
