package plugins

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shoal-project/shoal/coordinator/scheduler/framework"
)

// defaultBinder binds through the pod's binding subresource.
type defaultBinder struct{ client kubernetes.Interface }

func (*defaultBinder) Name() string { return DefaultBinderName }

func (b *defaultBinder) Bind(ctx context.Context, pod *framework.PodInfo, node string) *framework.Status {
	return framework.AsStatus(b.client.CoreV1().Pods(pod.Pod.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Pod.Namespace, Name: pod.Pod.Name, UID: pod.Pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{}))
}
