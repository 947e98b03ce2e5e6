package api

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// Recorder writes events as the kubelet's. Without an API it drops them.
type Recorder struct {
	events record.EventRecorder // nil without an API
	node   string
}

// Recorder starts to write events until ctx ends.
func (s *Server) Recorder(ctx context.Context) *Recorder {
	if s.Client == nil {
		return &Recorder{}
	}
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(eventSink{s.Client})
	source := corev1.EventSource{Component: "kubelet", Host: s.cfg.NodeName}
	return &Recorder{events: b.NewRecorder(scheme.Scheme, source), node: s.cfg.NodeName}
}

// Event tells of a pod, or of one container of it when container is not empty.
func (r *Recorder) Event(p *corev1.Pod, container, kind, reason, message string) {
	if r.events == nil || p.Name == "" {
		return
	}
	ref := reference(p)
	if container != "" {
		ref.FieldPath = fieldPath(p, container)
	}
	r.events.Event(ref, kind, reason, message)
}

// Annotated tells of a pod, with annotations of the event.
func (r *Recorder) Annotated(p *corev1.Pod, annotations map[string]string, kind, reason, message string) {
	if r.events != nil && p.Name != "" {
		r.events.AnnotatedEventf(reference(p), annotations, kind, reason, "%s", message)
	}
}

func reference(p *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		Kind:            "Pod",
		APIVersion:      "v1",
		Namespace:       p.Namespace,
		Name:            p.Name,
		UID:             p.UID,
		ResourceVersion: p.ResourceVersion,
	}
}

// Object tells of any object.
func (r *Recorder) Object(of *corev1.ObjectReference, kind, reason, message string) {
	if r.events != nil {
		r.events.Event(of, kind, reason, message)
	}
}

// Node tells of the node. Its name stands for its UID, as in the kubelet's events.
func (r *Recorder) Node(kind, reason, message string) {
	if r.events == nil {
		return
	}
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: r.node, UID: types.UID(r.node)}
	r.events.Event(ref, kind, reason, message)
}

func fieldPath(p *corev1.Pod, container string) string {
	for i := range p.Spec.InitContainers {
		if p.Spec.InitContainers[i].Name == container {
			return "spec.initContainers{" + container + "}"
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if p.Spec.EphemeralContainers[i].Name == container {
			return "spec.ephemeralContainers{" + container + "}"
		}
	}
	return "spec.containers{" + container + "}"
}

// eventSink writes events of any namespace.
type eventSink struct{ client kubernetes.Interface }

func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.client.CoreV1().Events(e.Namespace).Create(context.Background(), e, metav1.CreateOptions{})
}

func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.client.CoreV1().Events(e.Namespace).Update(context.Background(), e, metav1.UpdateOptions{})
}

func (s eventSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	events := s.client.CoreV1().Events(e.Namespace)
	return events.Patch(context.Background(), e.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
}
