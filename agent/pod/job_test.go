package pod

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Upstream never ran tcpSocket hooks: they fail.
func TestTCPHookFails(t *testing.T) {
	h := &corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(80)}}
	if err := (&Manager{}).hook(context.Background(), nil, nil, "", h); err == nil {
		t.Error("a tcpSocket hook passed")
	}
}
