package connect

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/lru"
)

// pastPods is how many deleted pods are remembered, some 300 bytes each.
const pastPods = 10_000

// Past remembers pods that were deleted, so that the logs that their nodes keep of them can
// be read. It is empty when the coordinator starts.
type Past struct {
	// byName has the newest of each name, by NAMESPACE/NAME, and all by NAMESPACE/NAME.UID.
	byName *lru.Cache
}

// NewPast remembers nothing yet.
func NewPast() *Past { return &Past{lru.New(2 * pastPods)} }

// past is what is remembered of a pod.
type past struct {
	namespace, name, node, container  string
	uid                               types.UID
	created, deleted                  metav1.Time
	phase                             corev1.PodPhase
	inits, containers, debugContainer []string
}

// Handler hears of deleted pods of an informer.
func (p *Past) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = unknown.Obj
		}
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			p.add(pod)
		}
	}}
}

func (p *Past) add(pod *corev1.Pod) {
	m := &past{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, node: pod.Spec.NodeName,
		container: pod.Annotations[defaultContainer], created: pod.CreationTimestamp, deleted: metav1.Now(),
		phase: pod.Status.Phase}
	for i := range pod.Spec.InitContainers {
		m.inits = append(m.inits, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		m.containers = append(m.containers, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		m.debugContainer = append(m.debugContainer, pod.Spec.EphemeralContainers[i].Name)
	}
	name := m.namespace + "/" + m.name
	p.byName.Add(name, m)
	p.byName.Add(name+"."+string(m.uid), m)
}

// defaultContainer is the annotation by which kubectl chooses one of several containers.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// pod is what is remembered, as a client sees it: names of containers and no more.
func (m *past) pod() *corev1.Pod {
	out := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: m.name, UID: m.uid,
			CreationTimestamp: m.created, DeletionTimestamp: &m.deleted},
		Spec:   corev1.PodSpec{NodeName: m.node},
		Status: corev1.PodStatus{Phase: m.phase},
	}
	if m.container != "" {
		out.Annotations = map[string]string{defaultContainer: m.container}
	}
	for _, c := range m.inits {
		out.Spec.InitContainers = append(out.Spec.InitContainers, corev1.Container{Name: c})
	}
	for _, c := range m.containers {
		out.Spec.Containers = append(out.Spec.Containers, corev1.Container{Name: c})
	}
	for _, c := range m.debugContainer {
		out.Spec.EphemeralContainers = append(out.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c}})
	}
	return out
}

// Pod returns the deleted pod that was the last of a name, or by NAME.UID one of several;
// nil: none is remembered.
func (p *Past) Pod(namespace, name string) *corev1.Pod {
	if found, ok := p.byName.Get(namespace + "/" + name); ok {
		return found.(*past).pod()
	}
	return nil
}

// pastPod returns a pod that was deleted, in a namespace that there is still; missing is the
// answer when there is none. What was in a namespace of before that had the same name is
// not shown: it was somebody else's.
func (k *kubelets) pastPod(ctx context.Context, name string, missing error) (*corev1.Pod, error) {
	if k.past == nil || !apierrors.IsNotFound(missing) {
		return nil, missing
	}
	p := k.past(request.NamespaceValue(ctx), name)
	if p == nil {
		return nil, missing
	}
	obj, err := k.namespaces.Get(request.WithNamespace(ctx, ""), p.Namespace, &metav1.GetOptions{})
	if err != nil || p.CreationTimestamp.Before(&obj.(*corev1.Namespace).CreationTimestamp) {
		return nil, missing
	}
	return p, nil
}

// warnPast says that a log is of a pod that is gone.
func warnPast(ctx context.Context, p *corev1.Pod) {
	warning.AddWarning(ctx, "", fmt.Sprintf("pod %s (UID %s) was deleted at %s: its node %s keeps this log for a while",
		p.Name, p.UID, p.DeletionTimestamp.UTC().Format(time.RFC3339), p.Spec.NodeName))
}
