package main

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
)

// recorder writes events as the kubelet's.
type recorder struct{ record.EventRecorder }

func newRecorder(ctx context.Context, client kubernetes.Interface, nodeName string) *recorder {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(eventSink{client})
	return &recorder{b.NewRecorder(eventScheme, v1.EventSource{Component: "kubelet", Host: nodeName})}
}

// Event tells of a pod, or one container of it.
func (r *recorder) Event(p *v1.Pod, container, kind, reason, message string) {
	if r.EventRecorder == nil || p.Name == "" {
		return
	}
	ref := &v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion}
	if container != "" {
		ref.FieldPath = fieldPath(p, container)
	}
	r.EventRecorder.Event(ref, kind, reason, message)
}

func (r *recorder) node(name, kind, reason, message string) {
	if r.EventRecorder != nil {
		r.EventRecorder.Event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}, kind, reason, message)
	}
}

func fieldPath(p *v1.Pod, container string) string {
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
